"""What one broker served, by topic and by group, and how much the topics hold: an entry of `{cluster}:usage` a minute.

Counting touches plain integers; nothing is kept but what was not told yet. A broker that is killed loses that minute
at most. An entry whose outcome is not known is not sent again: what is told is never told twice.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, field
from typing import Any, Final

from tidegate.records.segments import Segment
from tidegate.settings import Settings
from tidegate.store.keys import LogKeys
from tidegate.store.samples import add_sample
from tidegate.store.store import Store
from tidegate.telemetry.background_tasks import BackgroundTasks
from tidegate.topics.model import Topic

COMMITTED_MAX: Final = 100_000
"""Partitions of groups whose last commit is remembered, to tell one that goes back; the oldest are forgotten."""
BACK_MAX: Final = 20
"""Commits that went back, of one group and entry, that are told; they are all counted."""
SAMPLES_MAX: Final = 10_000
"""Entries of usage that are kept, of all brokers together."""
_TOPICS_AT_ONCE: Final = 100
_FORGOTTEN_MS: Final = 60_000
_LAST_S: Final = 1.0


@dataclass(slots=True)
class Served:
    """Of one topic. Requests with several topics count once for each; bytes are those of record batches."""

    records: int = 0
    stored_bytes: int = 0
    produce_requests: int = 0
    produced_bytes: int = 0
    fetch_requests: int = 0
    """Fetches that brought records of the topic."""
    fetched_bytes: int = 0


@dataclass(slots=True)
class Commits:
    """Of one group."""

    count: int = 0
    back_count: int = 0
    back: list[tuple[str, int, int, str]] = field(default_factory=list)
    """`<topic>:<partition>`, the offset before, the offset committed, the client's id."""


class Usage:
    """The counters of one broker since they were told last."""

    def __init__(self) -> None:
        self.topics: dict[str, Served] = {}
        self.groups: dict[str, Commits] = {}
        self._committed: dict[tuple[str, str, int], int] = {}

    def topic(self, topic: Topic) -> Served:
        """The counters of a topic."""
        name = f"{topic.org}/{topic.name}"
        served = self.topics.get(name)
        if served is None:
            served = self.topics[name] = Served()
        return served

    def stored(self, topic: Topic, records: int, size: int) -> None:
        """An entry of this broker stands in a log."""
        served = self.topic(topic)
        served.records += records
        served.stored_bytes += size

    def fetched(self, read: Iterable[tuple[Topic, int]]) -> None:
        """One Fetch was answered: bytes of each partition that brought some."""
        topics = set()
        for topic, size in read:
            served = self.topic(topic)
            served.fetched_bytes += size
            if topic.topic_hex not in topics:
                topics.add(topic.topic_hex)
                served.fetch_requests += 1

    def committed(self, group: str, client_id: str, offsets: Iterable[tuple[Topic, int, int]]) -> None:
        """A commit of a group, by its name in its shard's keys, stands.

        That it goes back is seen where this broker took the commit before it, of the same partition, as well.
        """
        commits = self.groups.get(group)
        if commits is None:
            commits = self.groups[group] = Commits()
        commits.count += 1
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
        """What was counted; counting begins anew."""
        taken = self.topics, self.groups
        self.topics, self.groups = {}, {}
        return taken


class UsageReports:
    """Tells the counters of a broker, and what the topics hold that it is named for, every `usage_sample_interval_ms`.

    `topics` lists those. The entry is there although nothing happened: a broker that counts nothing is not a broker
    that is gone.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        usage: Usage,
        topics: Callable[[], Iterable[Topic]],
        broker: Callable[[], str],
    ) -> None:
        self._store, self._usage, self._topics, self._broker = store, usage, topics, broker
        self._interval_ms, self._entries_max = settings.usage_sample_interval_ms, SAMPLES_MAX
        self._since_s = asyncio.get_running_loop().time()
        self._archived_reads: dict[str, tuple[tuple[bytes | None, ...], int]] = {}
        self._archive_before = self._archived_reads
        self._loops = BackgroundTasks()

    async def start(self) -> None:
        """Begin to tell; where nobody wants to know, to forget: groups come and go."""
        if self._interval_ms:
            self._loops.every("usage", self._interval_ms, self.report)
        else:
            self._loops.every("usage", _FORGOTTEN_MS, self._forget)

    async def close(self) -> None:
        """Tell the rest, and stop."""
        await self._loops.close()
        if self._interval_ms and self._store.available:
            await asyncio.wait({asyncio.ensure_future(self.report())}, timeout=_LAST_S)

    async def report(self) -> None:
        """One entry; its id says when its span ends. Raises StoreUnavailable; what was counted is lost then."""
        held = await self._held()
        topics, groups = self._usage.take()
        now_s = asyncio.get_running_loop().time()
        span_ms, self._since_s = round((now_s - self._since_s) * 1000), now_s
        await add_sample(
            self._store,
            self._store.cluster_keys.usage,
            self._entries_max,
            *("broker", self._broker(), "span_ms", span_ms),
            *("topics", _json({name: astuple(served) for name, served in topics.items()})),
            *("groups", _json({name: astuple(commits) for name, commits in groups.items()})),
            *("held", _json(held)),
        )

    async def _forget(self) -> None:
        self._usage.take()

    async def _held(self) -> dict[str, tuple[int, int]]:
        """Bytes of each topic in Redis and in the archive, as the partitions' own estimates have them."""
        topics, held = list(self._topics()), {}
        self._archive_before, self._archived_reads = self._archived_reads, {}
        for start in range(0, len(topics), _TOPICS_AT_ONCE):
            some = topics[start : start + _TOPICS_AT_ONCE]
            for topic, found in zip(some, await asyncio.gather(*map(self._held_by, some)), strict=True):
                held[f"{topic.org}/{topic.name}"] = found
        return held

    async def _held_by(self, topic: Topic) -> tuple[int, int]:
        log_keys = self._store.log_keys
        keys = [log_keys(topic.org, topic.name, index, topic.topic_hex) for index in range(topic.partition_count)]
        local = await asyncio.gather(*(self._store.read("HGET", one.meta, "bytes") for one in keys))
        archived_reads = await asyncio.gather(*map(self._archived, keys))
        return sum(int(size or 0) for size in local), sum(archived_reads)

    async def _archived(self, keys: LogKeys) -> int:
        """Bytes of the batches in a partition's segments, which are read again when its range has changed."""
        span = tuple(await self._store.read("HMGET", keys.archive, "start", "end"))
        known = self._archive_before.get(keys.archive)
        if known is None or known[0] != span:
            segments = await self._store.read("ZRANGE", keys.segments, 0, -1) if span[1] else ()
            known = span, sum(Segment.from_json(one).size for one in segments)
        self._archived_reads[keys.archive] = known
        return known[1]


def _json(values: Any) -> str:
    return json.dumps(values, separators=(",", ":"))
