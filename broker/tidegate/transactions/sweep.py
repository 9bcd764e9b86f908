"""Look after transactional ids that no request names: abort overdue transactions, complete those of dead brokers.

Each shard keeps one deadline for each of its transactional ids, by Redis's clock: the time-out of an open transaction,
the time by which a decided one should be complete, or the end of an unused id. Brokers poll the shards that have ids;
another broker than the preferred one asks less often, and takes a deadline only when it is late. A taken deadline comes
back after a while. Sweeps leave marks, by which the next one detects that Redis's clock stepped. While there are no
transactional ids, this costs one command a second.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, Final

import structlog

from tidegate.errors import KafkaError, StoreUnavailable
from tidegate.store.keys import TransactionKeys
from tidegate.store.scripts import Script
from tidegate.store.store import Store
from tidegate.store.tasks import TaskSet
from tidegate.telemetry.background_tasks import BackgroundTasks
from tidegate.transactions.coordinator import Coordinator
from tidegate.transactions.model import TIMEOUT_MAX_MS

TAKE_DUE_TRANSACTIONS: Final = Script("transactions/take_due_transactions")

logger = structlog.get_logger()

INTERVAL_MS: Final = 1_000
HOLD_MS: Final = 5_000
"""How long a taken deadline is postponed until what it announces is done."""
LATE_MS: Final = 2_000
"""How overdue it must be before a broker that is not preferred takes it."""
ALL_SHARDS_EVERY: Final = 5
"""A broker asks the shards that prefer another one at each fifth sweep, so that more brokers cost Redis little more."""
GAP_MS: Final = 10_000
"""Without a sweep for so long, open transactions have a whole time-out again: longer than `ALL_SHARDS_EVERY` sweeps."""
_TAKEN_MAX: Final = 100


class TransactionSweep:
    """The deadlines of transactional ids, on one broker; `prefers(shard)` as for the coordinators of groups."""

    def __init__(self, store: Store, coordinator: Coordinator, prefers: Callable[[int], bool]) -> None:
        self._store = store
        self._coordinator = coordinator
        self._prefers = prefers
        self._loops = BackgroundTasks()
        self._sweeps = itertools.count()
        self._tasks = TaskSet()
        self._sweeping: dict[int, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Start the sweep."""
        self._loops.every("transactions", INTERVAL_MS, self.sweep)

    async def close(self) -> None:
        """Stop the sweep, and what this broker completes."""
        await self._loops.close()
        await self._tasks.close()
        await self._coordinator.close()

    async def sweep(self) -> None:
        """Take and handle what is overdue now. Raises StoreUnavailable."""
        found: Any = await self._store.command("HKEYS", self._store.cluster_keys.transaction_shards)
        shards = {int(one) for one in found} | self._coordinator.records.used_shards
        if next(self._sweeps) % ALL_SHARDS_EVERY:
            shards = set(filter(self._prefers, shards))
        for shard in shards - self._sweeping.keys():
            self._sweeping[shard] = self._tasks.start(self._sweep_shard(shard))
        if self._sweeping:  # an unresponsive node does not delay the other shards
            await asyncio.wait(self._sweeping.values(), timeout=INTERVAL_MS / 1000)
        for shard in [shard for shard, task in self._sweeping.items() if task.done()]:
            self._sweeping.pop(shard).result()

    async def _sweep_shard(self, shard: int) -> None:
        _, deadlines = TransactionKeys.of_shard(self._store.prefix, shard)
        late_ms = 0 if self._prefers(shard) else LATE_MS
        try:
            refs = await self._store.run(
                TAKE_DUE_TRANSACTIONS, [deadlines], late_ms, HOLD_MS, _TAKEN_MAX, GAP_MS, TIMEOUT_MAX_MS
            )
        except StoreUnavailable as error:  # in Redis Cluster other shards may be available
            logger.info("transactions_not_swept", shard=shard, reason=str(error))
            return
        await asyncio.gather(*(self._handle(ref.decode(errors="replace")) for ref in refs))

    async def _handle(self, ref: str) -> None:
        try:
            await self._coordinator.handle_deadline(self._coordinator.records.keys_of_ref(ref))
        except KafkaError as error:
            logger.info("transaction_not_swept", transaction=ref, reason=str(error))
