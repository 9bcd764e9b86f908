"""A lease, by Redis's clock, for work that one broker at a time does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tidegate.store.scripts import Script
from tidegate.store.store import Store

RENEW_SINGLETON_LEASE = Script("cluster/renew_singleton_lease")

NEVER: Final = float("-inf")


class SingletonLease:
    """One broker's side of the lease. A new holder waits `handover_ms` after the end of the previous lease."""

    def __init__(self, store: Store, key: str, broker: Callable[[], str], lease_ms: int, handover_ms: int) -> None:
        self.now_ms = 0
        """Redis's clock at the last request."""
        self._store, self._key, self._broker = store, key, broker
        self._lease_ms, self._handover_ms = lease_ms, handover_ms
        self._clock = asyncio.get_running_loop().time
        self._until_s = self._observed_from_s = NEVER

    async def renew(self) -> bool:
        """Acquire or renew. Raises StoreUnavailable; a held lease then expires by itself."""
        asked_s = self._clock()
        lease_held_ms, idle_ms, self.now_ms = await self._ask(self._lease_ms)
        if idle_ms >= 0:
            self._observed_from_s = self._clock() + max(self._handover_ms - idle_ms, 0) / 1000
        self._until_s = asked_s + lease_held_ms / 1000 if lease_held_ms > 0 else NEVER
        return lease_held_ms > 0

    async def release(self) -> None:
        """End the lease if it is held. Raises StoreUnavailable."""
        if self.held:
            self._until_s = NEVER
            await self._ask(0)

    @property
    def held(self) -> bool:
        """Whether this broker has the lease; counted from the request, so it expires here before it does in Redis."""
        return self._clock() < self._until_s

    @property
    def is_past_handover(self) -> bool:
        """Whether the lease is held and `handover_ms` have passed since the previous holder's end."""
        return self._observed_from_s <= self._clock() < self._until_s

    async def _ask(self, lease_ms: int) -> list[int]:
        answer = await self._store.run(RENEW_SINGLETON_LEASE, [self._key], self._broker(), lease_ms)
        return [int(value) for value in answer]
