"""Subscription to the wake channels of all shards, which carry every group's notifications (`lib/notify`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidegate.store.store import Store

OnGroupChange = Callable[[bytes | None], None]
"""Gets `<group>:<generation>:<state>:<version>`, or None when messages may have been lost."""


async def subscribe_group_changes(store: Store, on_group_change: OnGroupChange) -> None:
    """Subscribe to all notifications; returns when Redis has confirmed it. Raises TimeoutError."""
    confirmed = [store.pubsub.listen(channel, on_group_change) for channel in _channels(store)]
    async with asyncio.timeout(store.settings.redis_command_timeout_ms / 1000):
        await asyncio.gather(*confirmed)


def unsubscribe_group_changes(store: Store, on_group_change: OnGroupChange) -> None:
    """Unsubscribe."""
    for channel in _channels(store):
        store.pubsub.forget(channel, on_group_change)


def _channels(store: Store) -> list[str]:
    return [store.shard_keys(shard).wake for shard in range(store.settings.coordinator_shards)]
