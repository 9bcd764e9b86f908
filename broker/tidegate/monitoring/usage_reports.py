"""Reports of usage: one entry of `{cluster}:usage` a minute with a broker's counters and the sizes of topics.

A broker that is killed loses at most the last interval. An entry of unknown outcome is not sent again, so nothing is
reported twice.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import astuple, dataclass
from typing import Any, Final, NamedTuple

from tidegate.errors import StoreUnavailable
from tidegate.log.usage import Usage
from tidegate.monitoring.lag_reading import rounds_until
from tidegate.records.segments import Segment
from tidegate.settings import Settings
from tidegate.store.keys import LogKeys
from tidegate.store.link import Arg
from tidegate.store.samples import add_samples
from tidegate.store.store import Store
from tidegate.telemetry.background_tasks import BackgroundTasks
from tidegate.topics.model import Topic

SAMPLES_MAX: Final = 10_000
"""Usage entries kept, of all brokers together."""
_TOPICS_AT_ONCE: Final = 100
SIZES_MS: Final = 600_000
"""A topic whose size stands still, and to which this broker appends nothing, is measured again after this time, or up
to half of it earlier."""
_FORGOTTEN_MS: Final = 60_000
_LAST_S: Final = 1.0


class _ArchivedBytes(NamedTuple):
    """The archived range of a partition, and the bytes of its batches."""

    start: bytes | None
    end: bytes
    size: int


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Bytes of a topic in Redis and in the archive, and the first report that measures it again."""

    topic_hex: str
    found: tuple[int, int]
    due: int


class UsageReports:
    """Reports a broker's counters, and the sizes of the topics in `topics`, every `usage_report_interval_ms`.

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
        self._interval_ms, self._entries_max = settings.usage_report_interval_ms, SAMPLES_MAX
        self._since_s = asyncio.get_running_loop().time()
        self._reports = 0
        self._sizes: dict[str, _Sizes] = {}
        self._archived: dict[str, dict[int, _ArchivedBytes]] = {}
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
            with suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(_LAST_S):
                    await self.report()

    async def report(self) -> None:
        """Write one entry; its id is the end of its interval. Raises StoreUnavailable, and the counts are lost then."""
        held = await self._held()
        topics, groups = self._usage.take()
        now_s = asyncio.get_running_loop().time()
        span_ms, self._since_s = round((now_s - self._since_s) * 1000), now_s
        entry: list[Arg] = [
            *("broker", self._broker(), "span_ms", span_ms),
            *("topics", _json({name: astuple(served) for name, served in topics.items()})),
            *("groups", _json({name: astuple(commits) for name, commits in groups.items()})),
            *("held", _json(held)),
        ]
        await add_samples(self._store, self._store.cluster_keys.usage, self._entries_max, [entry])

    async def _forget(self) -> None:
        self._usage.take()

    async def _held(self) -> dict[str, tuple[int, int]]:
        """Bytes of each topic in Redis and in the archive, by the partitions' estimates."""
        self._reports += 1
        topics = {f"{topic.org}/{topic.name}": topic for topic in self._topics()}
        self._sizes = {
            name: known
            for name, topic in topics.items()
            if (known := self._sizes.get(name)) is not None and known.topic_hex == topic.topic_hex
        }
        self._archived = {name: read for name, read in self._archived.items() if name in self._sizes}
        due = [name for name in topics if self._is_due(name)]
        for start in range(0, len(due), _TOPICS_AT_ONCE):
            some = due[start : start + _TOPICS_AT_ONCE]
            measured = await asyncio.gather(*(self._held_by(name, topics[name]) for name in some))
            for name, found in zip(some, measured, strict=True):
                known = self._sizes.get(name)
                is_unchanged = known is not None and known.found == found
                reports = rounds_until(SIZES_MS, self._interval_ms, name) if is_unchanged else 1
                self._sizes[name] = _Sizes(topics[name].topic_hex, found, self._reports + reports)
        return {name: self._sizes[name].found for name in topics}

    def _is_due(self, name: str) -> bool:
        known, served = self._sizes.get(name), self._usage.topics.get(name)
        return known is None or known.due <= self._reports or (served is not None and served.records > 0)

    async def _held_by(self, name: str, topic: Topic) -> tuple[int, int]:
        log_keys = self._store.log_keys
        keys = [log_keys(topic.org, topic.name, index, topic.topic_hex) for index in range(topic.partition_count)]
        local = await asyncio.gather(*(self._store.read("HGET", one.meta, "bytes") for one in keys))
        before = self._archived.get(name, {})
        read = await asyncio.gather(*(self._read_archived(one, before.get(at)) for at, one in enumerate(keys)))
        archived = self._archived[name] = {at: one for at, one in enumerate(read) if one is not None}
        return sum(int(size or 0) for size in local), sum(one.size for one in archived.values())

    async def _read_archived(self, keys: LogKeys, known: _ArchivedBytes | None) -> _ArchivedBytes | None:
        """Bytes of the batches in a partition's segments, if it has some; recounted if the archived range changed."""
        start, end = await self._store.read("HMGET", keys.archive, "start", "end")
        if end is None:
            return None
        if known is not None and (known.start, known.end) == (start, end):
            return known
        segments = await self._store.read("ZRANGE", keys.segments, 0, -1)
        return _ArchivedBytes(start, end, sum(Segment.from_json(one).size for one in segments))


def _json(values: Any) -> str:
    return json.dumps(values, separators=(",", ":"))
