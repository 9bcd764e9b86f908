"""Usage per topic and group served by one broker, and topic sizes: one entry of `{cluster}:usage` a minute.

Counting increments plain integers in memory; only unreported counts are kept. A broker that is killed loses at most
the last interval. An entry of unknown outcome is not sent again, so nothing is reported twice.
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
"""Group partitions whose last commit is remembered, to detect rewinds; the oldest are dropped."""
BACK_MAX: Final = 20
"""Rewound commits reported in detail per group and entry; all are counted."""
SAMPLES_MAX: Final = 10_000
"""Usage entries kept, of all brokers together."""
_TOPICS_AT_ONCE: Final = 100
_FORGOTTEN_MS: Final = 60_000
_LAST_S: Final = 1.0


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

    def committed(self, group: str, client_id: str, offsets: Iterable[tuple[Topic, int, int]]) -> None:
        """Count a stored commit of a group (its name in the shard's keys).

        A rewind is detected only if this broker also handled the previous commit of the partition.
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
        """Return the counters and reset them."""
        taken = self.topics, self.groups
        self.topics, self.groups = {}, {}
        return taken


class UsageReports:
    """Reports a broker's counters, and the sizes of the topics in `topics`, every `usage_sample_interval_ms`.

    An entry is written even if all counters are 0, to distinguish an idle broker from a stopped one.
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
        """Start reporting; with reports disabled, only discard the counters, which would grow."""
        if self._interval_ms:
            self._loops.every("usage", self._interval_ms, self.report)
        else:
            self._loops.every("usage", _FORGOTTEN_MS, self._forget)

    async def close(self) -> None:
        """Report the remaining counts and stop."""
        await self._loops.close()
        if self._interval_ms and self._store.available:
            await asyncio.wait({asyncio.ensure_future(self.report())}, timeout=_LAST_S)

    async def report(self) -> None:
        """Write one entry; its id is the end of its interval. Raises StoreUnavailable, and the counts are lost then."""
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
        """Bytes of each topic in Redis and in the archive, by the partitions' estimates."""
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
        """Bytes of the batches in a partition's segments; recounted if the archived range changed."""
        span = tuple(await self._store.read("HMGET", keys.archive, "start", "end"))
        known = self._archive_before.get(keys.archive)
        if known is None or known[0] != span:
            segments = await self._store.read("ZRANGE", keys.segments, 0, -1) if span[1] else ()
            known = span, sum(Segment.from_json(one).size for one in segments)
        self._archived_reads[keys.archive] = known
        return known[1]


def _json(values: Any) -> str:
    return json.dumps(values, separators=(",", ":"))
