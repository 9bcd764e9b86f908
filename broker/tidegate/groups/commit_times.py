"""The times that a commit carries, by which its script recognises that it was delayed on its way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidegate.store.store import Store

WITHOUT_LEASE: Final = 0
"""The lease end of a caller without a broker lease."""
UNKNOWN_TIME: Final = 0
"""When a script was sent, where Redis's clock is not known."""


def commit_times_ms(store: Store, lease_ends_ms: Callable[[], int]) -> tuple[int, int]:
    """By which the scripts recognise a commit that was delayed on its way: when the lease ends, and when it was sent.

    Both by Redis's clock. In Redis Cluster neither is known: the group's server may have another clock than the server
    that holds the lease. The second is 0 too before the first renewal of a lease.
    """
    if store.is_sharded:
        return WITHOUT_LEASE, UNKNOWN_TIME
    return lease_ends_ms(), UNKNOWN_TIME if store.clock.difference_ms is None else store.clock.now_ms()
