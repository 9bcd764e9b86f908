"""Dispatch overdue deadlines, kept in one sorted set per shard, to the shard's preferred broker or, if late, to any.

Taking an item postpones it by `HOLD_MS` and dispatches it; its handler removes or reschedules it. If the broker stops
meanwhile, the item becomes due again. This loop affects latency only, never correctness.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from tidegate.errors import StoreUnavailable
from tidegate.store.scripts import Script
from tidegate.store.store import Store

TAKE_DUE = Script("cluster/take_due")

CLOCK_KIND: Final = "clock"
"""The kind of an item that says by how many ms, its name, Redis's clock stepped back."""
HOLD_MS: Final = 5_000
"""How long a taken item is postponed until its handler removes or reschedules it."""
LATE_MS: Final = 2_000
"""How overdue an item must be before a broker that is not preferred takes it."""
_ITEMS_MAX: Final = 200
_POLL_MIN_MS: Final = 50
_POLL_MAX_MS: Final = 1_000

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Due:
    """One overdue item: the kind of deadline, and the group; of a clock step its ms."""

    kind: str
    name: str

    @classmethod
    def parse(cls, item: bytes) -> Due | None:
        """The item as it is stored; None for one that no broker wrote."""
        try:
            kind, separator, name = item.decode().partition("|")
        except UnicodeDecodeError:
            return None
        is_ours = name.isdecimal() if kind == CLOCK_KIND else separator
        return cls(kind, name) if is_ours else None


class Deadlines:
    """Polls every shard about once a second, earlier if a deadline is known to be due.

    `on_stepped_back(shard, ms)` is called when Redis's clock moved backwards, until a call returns.
    """

    def __init__(
        self,
        store: Store,
        prefers: Callable[[int], bool],
        on_due: Callable[[list[Due]], Awaitable[None]],
        on_stepped_back: Callable[[int, int], Awaitable[None]] | None = None,
    ) -> None:
        self._store = store
        self._prefers = prefers
        self._on_due = on_due
        self._on_stepped_back = on_stepped_back
        self.shards = range(store.settings.coordinator_shards)
        self._next_poll = [0.0] * len(self.shards)
        self._polling: dict[int, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start polling."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="deadlines")

    async def close(self) -> None:
        """Stop polling."""
        if self._task is not None:
            tasks = [self._task, *self._polling.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            due = [shard for shard, at in enumerate(self._next_poll) if at <= now and shard not in self._polling]
            if due:  # an unresponsive node does not delay the other shards
                await asyncio.wait([self._begin(shard) for shard in due], timeout=_POLL_MAX_MS / 1000)
            free = [at for shard, at in enumerate(self._next_poll) if shard not in self._polling]
            wait_s = min(free) - loop.time() if free else _POLL_MAX_MS / 1000
            await asyncio.sleep(max(wait_s, _POLL_MIN_MS / 1000))

    def _begin(self, shard: int) -> asyncio.Task[None]:
        task = self._polling[shard] = asyncio.get_running_loop().create_task(self.poll(shard, marks=True))
        task.add_done_callback(lambda done: self._on_polled(shard, done))
        return task

    def _on_polled(self, shard: int, done: asyncio.Task[None]) -> None:
        del self._polling[shard]
        error = None if done.cancelled() else done.exception()
        if error is not None and not isinstance(error, StoreUnavailable):
            logger.error("deadlines_failed", exc_info=error)

    async def poll(self, shard: int, *, marks: bool) -> None:
        """Dispatch the overdue items of a shard, and return when they are handled.

        `marks`: leave a mark of this sweep, by which the next one detects a step of Redis's clock.
        """
        loop = asyncio.get_running_loop()
        self._next_poll[shard] = loop.time() + _POLL_MAX_MS / 1000
        late_ms = 0 if self._prefers(shard) else LATE_MS
        deadlines = self._store.shard_keys(shard).deadlines
        args = late_ms, HOLD_MS, _ITEMS_MAX, int(marks)
        until_ms, *items = await self._store.run(TAKE_DUE, [deadlines], *args)
        if 0 <= until_ms < _POLL_MAX_MS:
            self._next_poll[shard] = loop.time() + max(until_ms, _POLL_MIN_MS) / 1000
        if not items:
            return
        due, failure = list[Due](), None
        for item in items:
            one = Due.parse(item)
            if one is None:
                await self._remove_foreign(deadlines, item)
                continue
            due.append(one)
            if one.kind == CLOCK_KIND:
                try:
                    await self._stepped_back(shard, one)
                except Exception as error:  # noqa: BLE001 - it is raised when the deadlines are handled, too
                    failure = error
        await self._on_due(due)
        if failure is not None:
            raise failure

    async def _remove_foreign(self, deadlines: str, item: bytes) -> None:
        """Remove an item that no broker wrote: taken each time again, many of them would keep others out."""
        logger.warning("foreign_deadline_removed", key=deadlines, item=repr(item))
        await self._store.command("ZREM", deadlines, item)

    async def _stepped_back(self, shard: int, item: Due) -> None:
        if self._on_stepped_back is not None:
            await self._on_stepped_back(shard, int(item.name))
        await self._store.command("ZREM", self._store.shard_keys(shard).deadlines, f"{item.kind}|{item.name}")
