"""Usage per topic and group served by one broker, counted in memory until `monitoring.usage_reports` reports it.

Counting increments plain integers; only unreported counts are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from tidegate.topics.model import Topic

COMMITTED_MAX: Final = 100_000
"""Group partitions whose last commit is remembered, to detect rewinds; the oldest are dropped."""
BACK_MAX: Final = 20
"""Rewound commits reported in detail per group and entry; all are counted."""


def _nothing() -> None:
    """No commit waits to be counted."""


@dataclass(slots=True)
class Served:
    """Usage of one topic. A request with several topics counts once for each; bytes are those of record batches."""

    records: int = 0
    stored_bytes: int = 0
    produce_requests: int = 0
    produced_bytes: int = 0
    fetch_requests: int = 0
    """Fetches that returned records of the topic."""
    fetched_bytes: int = 0


@dataclass(slots=True)
class Commits:
    """Commits of one group."""

    count: int = 0
    back_count: int = 0
    back: list[tuple[str, int, int, str]] = field(default_factory=list)
    """`<topic>:<partition>`, the offset before, the offset committed, the client's id."""


class Usage:
    """The counters of one broker since the last report."""

    def __init__(self) -> None:
        self.topics: dict[str, Served] = {}
        self.groups: dict[str, Commits] = {}
        self._committed: dict[tuple[str, str, int], int] = {}
        self.before_take: Callable[[], None] = _nothing
        """Called before the counters are taken: commits that are not counted yet are counted then."""

    def topic(self, topic: Topic) -> Served:
        """The counters of a topic."""
        name = f"{topic.org}/{topic.name}"
        served = self.topics.get(name)
        if served is None:
            served = self.topics[name] = Served()
        return served

    def stored(self, topic: Topic, records: int, size: int) -> None:
        """Count an entry that this broker appended."""
        served = self.topic(topic)
        served.records += records
        served.stored_bytes += size

    def fetched(self, read: Iterable[tuple[Topic, int]]) -> None:
        """Count one Fetch: the bytes of each partition that returned some."""
        topics = set()
        for topic, size in read:
            served = self.topic(topic)
            served.fetched_bytes += size
            if topic.topic_hex not in topics:
                topics.add(topic.topic_hex)
                served.fetch_requests += 1

    def fetched_together(self, topic: Topic, size: int, count: int) -> None:
        """Count `count` Fetches that returned the same `size` bytes of one partition."""
        served = self.topic(topic)
        served.fetched_bytes += size * count
        served.fetch_requests += count

    def committed(self, group: str, client_id: str, offsets: Iterable[tuple[Topic, int, int]], count: int = 1) -> None:
        """Count stored commits of a group (its name in the shard's keys), of which the last one is given.

        A rewind is detected only if this broker also handled the previous commit of the partition.
        """
        commits = self.groups.get(group)
        if commits is None:
            commits = self.groups[group] = Commits()
        commits.count += count
        known = self._committed
        for topic, index, offset in offsets:
            key = group, topic.topic_hex, index
            before = known.get(key, -1)
            known[key] = offset
            if offset < before:
                commits.back_count += 1
                if len(commits.back) < BACK_MAX:
                    commits.back.append((f"{topic.name}:{index}", before, offset, client_id))
        while len(known) > COMMITTED_MAX:
            del known[next(iter(known))]

    def take(self) -> tuple[dict[str, Served], dict[str, Commits]]:
        """Return the counters and reset them."""
        self.before_take()
        taken = self.topics, self.groups
        self.topics, self.groups = {}, {}
        return taken
