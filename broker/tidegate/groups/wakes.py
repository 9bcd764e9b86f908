"""The wake channels of all shards: every group's wake-ups come through them (`lib/notify`), whoever is to hear."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidegate.store.store import Store

OnWake = Callable[[bytes | None], None]
"""Gets `<group>:<generation>:<state>:<version>`, or None where messages may have been lost."""


async def hear_groups(store: Store, on_wake: OnWake) -> None:
    """Have every wake-up told from now on; returns when Redis has confirmed it. Raises TimeoutError."""
    confirmed = [store.wakeups.listen(channel, on_wake) for channel in _channels(store)]
    async with asyncio.timeout(store.settings.redis_command_timeout_ms / 1000):
        await asyncio.gather(*confirmed)


def forget_groups(store: Store, on_wake: OnWake) -> None:
    """Have none told any more."""
    for channel in _channels(store):
        store.wakeups.forget(channel, on_wake)


def _channels(store: Store) -> list[str]:
    return [store.shard_keys(shard).wake for shard in range(store.settings.coordinator_shards)]
