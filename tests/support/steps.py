"""Steps of a broker's loops, which a test takes by itself: each returns when what it started is done."""

from __future__ import annotations

import asyncio

from tidegate.cluster.deadlines import Deadlines
from tidegate.groups.expiry import GroupExpiry
from tidegate.groups.waiting import GroupWaits


async def poll_deadlines(deadlines: Deadlines) -> None:
    """Dispatch what is overdue in every shard, without a mark of the sweep."""
    await asyncio.gather(*(deadlines.poll(shard, marks=False) for shard in deadlines.shards))


async def sweep_expiry(expiry: GroupExpiry) -> None:
    """Expire what is due in every shard."""
    await poll_deadlines(expiry.deadlines)


async def refresh_waits(waits: GroupWaits) -> None:
    """Refresh every group with waiting requests."""
    await asyncio.gather(*(waits.refresh(entry) for entry in list(waits.entries.values()) if entry.waiters))


async def renew_waits(waits: GroupWaits) -> None:
    """Renew the lease of every parked request."""
    await asyncio.gather(*(waits.renew(entry) for entry in list(waits.entries.values()) if entry.waiters))
