"""A duty that one broker at a time has: a lease on Redis's clock, and what that means by this broker's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tidegate.store.scripts import Script
from tidegate.store.store import Store

HOLD_DUTY = Script("cluster/hold_duty")

NEVER: Final = float("-inf")


class Duty:
    """One broker's part in a duty. `handover_ms`: for so long after another one's end nobody is seen to have it."""

    def __init__(self, store: Store, key: str, broker: Callable[[], str], hold_ms: int, handover_ms: int) -> None:
        self.now_ms = 0
        """Redis's clock when it was last asked."""
        self._store, self._key, self._broker = store, key, broker
        self._hold_ms, self._handover_ms = hold_ms, handover_ms
        self._clock = asyncio.get_running_loop().time
        self._until_s = self._seen_from_s = NEVER

    async def hold(self) -> bool:
        """Take it, or keep it. Raises StoreUnavailable; what was held ends by itself then."""
        asked_s = self._clock()
        held_ms, idle_ms, self.now_ms = await self._ask(self._hold_ms)
        if idle_ms >= 0:
            self._seen_from_s = self._clock() + max(self._handover_ms - idle_ms, 0) / 1000
        self._until_s = asked_s + held_ms / 1000 if held_ms > 0 else NEVER
        return held_ms > 0

    async def release(self) -> None:
        """Leave it to others, if it is held. Raises StoreUnavailable."""
        if self.held:
            self._until_s = NEVER
            await self._ask(0)

    @property
    def held(self) -> bool:
        """Whether nobody else can have it: counted from before it was asked for, so it ends here first."""
        return self._clock() < self._until_s

    @property
    def seen(self) -> bool:
        """Whether it is held, and long enough after the one who had it before."""
        return self._seen_from_s <= self._clock() < self._until_s

    async def _ask(self, hold_ms: int) -> list[int]:
        answer = await self._store.run(HOLD_DUTY, [self._key], self._broker(), hold_ms)
        return [int(value) for value in answer]
