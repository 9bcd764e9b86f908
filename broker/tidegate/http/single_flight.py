"""A short-lived cache with request coalescing: concurrent requests for one key cost a single load."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar
from time import monotonic
from typing import Any, Final, TypeVar

from tidegate.store.batching import SingleFlight

FRESH_MAX_S: Final = 5.0
"""A result stays fresh for as long as its load took, so that at most half of the time is spent on loading; but not
longer than this, s."""
AT_ONCE: Final = 2
"""Maximum concurrent loads: one of 10,000 groups takes seconds of the broker's single core."""

Found = TypeVar("Found")

_loading: ContextVar[SingleFlightCache | None] = ContextVar("_loading", default=None)
"""The cache whose load the current task is part of."""


class SingleFlightCache:
    """Recent results by key; failures are not cached."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._gate = asyncio.Semaphore(at_once)
        self._loading = SingleFlight[Hashable]()
        self._changes = 0
        self._found: dict[Hashable, tuple[float, Any]] = {}
        """Expiry time and result."""

    def forget(self) -> None:
        """Invalidate all results, after a change."""
        self._changes += 1
        self._loading.forget()
        self._found.clear()

    async def get(self, key: Hashable, load: Callable[[], Awaitable[Found]], fresh_s: float = 0.0) -> Found:
        """The cached result of `key`, or that of `load`; waits while `at_once` other loads are running.

        The result stays fresh for `fresh_s` at least. Raises RuntimeError within a load of this cache: loads that wait
        for each other's permits would never end.
        """
        if _loading.get() is self:
            raise RuntimeError(f"{key} is read within another load of the same cache")
        now_s = monotonic()
        self._found = {one: kept for one, kept in self._found.items() if now_s < kept[0]}
        if key in self._found:
            kept: Found = self._found[key][1]
            return kept
        return await self._loading.do(key, lambda: self._load(key, load, fresh_s))

    async def _load(self, key: Hashable, load: Callable[[], Awaitable[Found]], fresh_s: float) -> Found:
        changes = self._changes
        async with self._gate:
            began_s = monotonic()
            _loading.set(self)  # of this load's task alone
            found = await load()
        ended_s = monotonic()
        if changes == self._changes:  # otherwise the load may predate a change
            self._found[key] = ended_s + max(fresh_s, min(ended_s - began_s, FRESH_MAX_S)), found
        return found
