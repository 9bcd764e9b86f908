"""A duty that one broker at a time has: a lease on Redis's clock, and what that means by this broker's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tidegate.store.scripts import Script
from tidegate.store.store import Store

RENEW_SINGLETON_LEASE = Script("cluster/renew_singleton_lease")

NEVER: Final = float("-inf")


class SingletonLease:
    """One broker's part in a duty. `handover_ms`: for so long after another one's end nobody is seen to have it."""

    def __init__(self, store: Store, key: str, broker: Callable[[], str], lease_ms: int, handover_ms: int) -> None:
        self.now_ms = 0
        """Redis's clock when it was last asked."""
        self._store, self._key, self._broker = store, key, broker
        self._lease_ms, self._handover_ms = lease_ms, handover_ms
        self._clock = asyncio.get_running_loop().time
        self._until_s = self._observed_from_s = NEVER

    async def renew(self) -> bool:
        """Take it, or keep it. Raises StoreUnavailable; what was held ends by itself then."""
        asked_s = self._clock()
        lease_held_ms, idle_ms, self.now_ms = await self._ask(self._lease_ms)
        if idle_ms >= 0:
            self._observed_from_s = self._clock() + max(self._handover_ms - idle_ms, 0) / 1000
        self._until_s = asked_s + lease_held_ms / 1000 if lease_held_ms > 0 else NEVER
        return lease_held_ms > 0

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
    def is_past_handover(self) -> bool:
        """Whether it is held, and long enough after the one who had it before."""
        return self._observed_from_s <= self._clock() < self._until_s

    async def _ask(self, lease_ms: int) -> list[int]:
        answer = await self._store.run(RENEW_SINGLETON_LEASE, [self._key], self._broker(), lease_ms)
        return [int(value) for value in answer]
