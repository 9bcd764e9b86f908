"""One look for everybody who asks within a moment: what many ask for at once costs what one costs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from time import monotonic
from typing import Any, Final, TypeVar

from tidegate.store.batching import SingleFlight

FRESH_MAX_S: Final = 5.0
"""What is found is told to others for as long as it took to find, so that at most half the time is spent on it; but not
longer than this."""
AT_ONCE: Final = 2
"""Looks under way at a time: one at 10,000 groups takes seconds of this broker's only core."""

Found = TypeVar("Found")


class SingleFlightCache:
    """What was found lately, by key; failures are not kept."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._gate = asyncio.Semaphore(at_once)
        self._loading = SingleFlight[Hashable]()
        self._changes = 0
        self._found: dict[Hashable, tuple[float, Any]] = {}
        """With when each is too old."""

    def forget(self) -> None:
        """Look again, whoever asks next: something was changed."""
        self._changes += 1
        self._loading.forget()
        self._found.clear()

    async def get(self, key: Hashable, load: Callable[[], Awaitable[Found]], fresh_s: float = 0.0) -> Found:
        """What `load` finds, or found for somebody else a moment ago; others' looks may have to end first.

        It stays fresh for `fresh_s` at least.
        """
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
            found = await load()
        ended_s = monotonic()
        if changes == self._changes:  # it did not begin before a change
            self._found[key] = ended_s + max(fresh_s, min(ended_s - began_s, FRESH_MAX_S)), found
        return found
