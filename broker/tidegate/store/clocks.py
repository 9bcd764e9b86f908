"""The clock of the server that has a key."""

from __future__ import annotations

from tidegate.store.redis_clock import ServerClock
from tidegate.store.store import Store


def clock_of(store: Store, key: str) -> ServerClock:
    """The clock by which scripts judge what is stored under a key; in Redis Cluster that of its node."""
    return store.node(key).clock if store.is_sharded else store.clock


def may_expire(store: Store, key: str) -> bool:
    """Whether the clock by which a key's content expires may be right; of a single server callers asked before."""
    return not store.is_sharded or store.node(key).clock.agrees
