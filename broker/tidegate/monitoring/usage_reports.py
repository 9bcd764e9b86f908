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
from itertools import islice
from typing import Any, Final, NamedTuple

from tidegate.errors import StoreUnavailable
from tidegate.log.usage import Usage
from tidegate.monitoring.lag_reading import rounds_until
from tidegate.records.segments import Segment
from tidegate.settings import Settings
from tidegate.store.calls import gather_readable, log_faulty, parsed
from tidegate.store.keys import LogKeys
from tidegate.store.link import Arg
from tidegate.store.log_sizes import log_bytes
from tidegate.store.samples import add_samples
from tidegate.store.store import Store
from tidegate.telemetry.background_tasks import BackgroundTasks
from tidegate.topics.model import Topic

SAMPLES_MAX: Final = 10_000
"""Usage entries kept, of all brokers together."""
_PARTITIONS_AT_ONCE: Final = 200
"""Measured together: a round trip for many, and few milliseconds of the event loop."""
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
        due = {name: topic for name, topic in topics.items() if self._is_due(name)}
        local, archived = dict.fromkeys(due, 0), {name: dict[int, _ArchivedBytes]() for name in due}
        partitions = ((name, at) for name, topic in due.items() for at in range(topic.partition_count))
        while some := list(islice(partitions, _PARTITIONS_AT_ONCE)):
            calls = {f"{name}:{at}": parsed(self._held_by(topics[name], name, at)) for name, at in some}
            measured, faulty = await gather_readable(calls)
            log_faulty("usage", faulty)
            for name, at in some:
                size, segments = measured.get(f"{name}:{at}", (0, None))
                local[name] += size
                if segments is not None:
                    archived[name][at] = segments
        self._archived.update(archived)
        for name, topic in due.items():
            found = local[name], sum(one.size for one in archived[name].values())
            known = self._sizes.get(name)
            is_unchanged = known is not None and known.found == found
            reports = rounds_until(SIZES_MS, self._interval_ms, name) if is_unchanged else 1
            self._sizes[name] = _Sizes(topic.topic_hex, found, self._reports + reports)
        return {name: self._sizes[name].found for name in topics}

    def _is_due(self, name: str) -> bool:
        known, served = self._sizes.get(name), self._usage.topics.get(name)
        return known is None or known.due <= self._reports or (served is not None and served.records > 0)

    async def _held_by(self, topic: Topic, name: str, at: int) -> tuple[int, _ArchivedBytes | None]:
        """Bytes of a partition in Redis, and in the archive."""
        keys = self._store.log_keys(topic.org, topic.name, at, topic.topic_hex, topic.format)
        size = await log_bytes(self._store, keys, topic.format)
        return size, await self._read_archived(keys, self._archived.get(name, {}).get(at))

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
