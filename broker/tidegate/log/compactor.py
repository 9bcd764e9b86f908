"""The compactions of one broker, one after another: of the compacted topics' partitions that retention took."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

import structlog

from tidegate.errors import KafkaError, UnknownTopicOrPartition
from tidegate.log.compaction import compact
from tidegate.log.lru_cache import LruCache
from tidegate.store.store import Store
from tidegate.store.tasks import TaskSet

if TYPE_CHECKING:
    from tidegate.log.partition import PartitionLog

logger = structlog.get_logger()

OUTCOME_KNOWN_S: Final = 60.0
"""An append whose reply did not arrive is resolved, or answered as unknown, within this time: until then its entry must
be found under its id."""
_ENDS_BYTES_MAX: Final = 16 << 20
"""About 40,000 partitions; a log that is not in memory between two visits is compacted too."""
_END_BYTES: Final = 300
"""Memory of a past end beside its item."""
_COMMAND_TIMEOUTS: Final = 4
"""And within this many command timeouts, where an operator raised the timeout."""
_RENEWALS: Final = 3
"""How often the upkeep of a partition is postponed within one interval while it is compacted."""


def resolved_after_s(log: PartitionLog) -> float:
    """Seconds after which the outcome of every append is known, so that its entry need not be found any more."""
    return max(OUTCOME_KNOWN_S, _COMMAND_TIMEOUTS * log.patience_s)


class Compactor:
    """Compacts what is offered. A partition is first compacted at its second visit, up to its end at the first."""

    def __init__(self, store: Store, interval_ms: int) -> None:
        self._store = store
        self._interval_ms = interval_ms
        self._queue: dict[PartitionLog, bytes] = {}
        self._wanted = asyncio.Event()
        self._ends = LruCache[bytes, tuple[int, float]](_ENDS_BYTES_MAX)
        """By item: a past log end, and when it was read, seconds."""
        self._tasks = TaskSet()

    def start(self) -> None:
        """Start."""
        self._tasks.start(self._run(), "compaction")

    async def close(self) -> None:
        """Stop; the new stream of an interrupted compaction is removed or expires."""
        await self._tasks.close()

    def offer(self, log: PartitionLog, item: bytes) -> None:
        """Compact the log later if its topic asks for it; `item` is its member of the upkeep list."""
        if "compact" in log.topic.config.cleanup_policy:
            self._queue[log] = item
            self._wanted.set()

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while self._queue:
                log = next(iter(self._queue))
                await self._compact(log, self._queue.pop(log))

    async def _compact(self, log: PartitionLog, item: bytes) -> None:
        try:
            await self.visit(log, item)
        except UnknownTopicOrPartition:
            pass  # deleted
        except KafkaError as error:
            logger.info("compaction_later", log=log.keys.log, reason=str(error))
        except Exception:
            logger.exception("compaction_failed", log=log.keys.log)

    async def visit(self, log: PartitionLog, item: bytes) -> None:
        """Compact a log up to the end that an earlier visit found, if that is long enough ago. Raises KafkaError."""
        end, now_s = (await log.refresh()).end, monotonic()
        noted = self._ends.get(item)
        if noted is not None:
            if now_s - noted[1] < resolved_after_s(log):
                return
            await compact(log, noted[0], _Postponed(self._store, self._interval_ms, item).step)
        self._ends.put(item, (end, now_s), len(item) + _END_BYTES)


class _Postponed:
    """Keeps a partition's upkeep from becoming due at other brokers while it is compacted here."""

    def __init__(self, store: Store, interval_ms: int, item: bytes) -> None:
        self._store, self._interval_ms, self._item = store, interval_ms, item
        self._renewed_s = monotonic()

    async def step(self) -> None:
        """Between two pages."""
        if (monotonic() - self._renewed_s) * 1000 > self._interval_ms / _RENEWALS:
            self._renewed_s = monotonic()
            due_ms = self._store.clock.now_ms() + self._interval_ms
            await self._store.command("ZADD", self._store.cluster_keys.upkeep, "XX", due_ms, self._item)
