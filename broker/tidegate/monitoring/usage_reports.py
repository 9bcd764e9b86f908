"""Reports of usage: one entry of `{cluster}:usage` a minute with a broker's counters and the sizes of topics.

A broker that is killed loses at most the last interval. An entry of unknown outcome is not sent again, so nothing is
reported twice.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import astuple
from typing import Any, Final

from tidegate.errors import StoreUnavailable
from tidegate.log.usage import Usage
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
_FORGOTTEN_MS: Final = 60_000
_LAST_S: Final = 1.0


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
