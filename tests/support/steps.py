"""Steps of a broker's loops, which a test takes by itself: each returns when what it started is done."""

from __future__ import annotations

import asyncio
import re
from typing import Final

from tidegate.cluster.deadlines import Deadlines
from tidegate.groups.expiry import GroupExpiry
from tidegate.groups.waiting import GroupWaits

_SHARD: Final = re.compile(rb"\{co:(\d+)\}")


async def poll_deadlines(deadlines: Deadlines) -> None:
    """Dispatch what is overdue in every shard that has deadlines, without a mark of the sweep."""
    nodes = deadlines._store.nodes
    found = await asyncio.gather(*(node.control.call("KEYS", "*:deadlines") for node in nodes))
    matches = (_SHARD.search(name) for of_node in found for name in of_node)
    with_deadlines = {int(match[1]) for match in matches if match is not None}
    shards = [shard for shard in deadlines.shards if shard in with_deadlines]
    await asyncio.gather(*(deadlines.poll(shard, marks=False) for shard in shards))


async def sweep_expiry(expiry: GroupExpiry) -> None:
    """Expire what is due in every shard."""
    await poll_deadlines(expiry.deadlines)


async def refresh_waits(waits: GroupWaits) -> None:
    """Refresh every group with waiting requests."""
    await asyncio.gather(*(waits.refresh(entry) for entry in list(waits.entries.values()) if entry.waiters))


async def renew_waits(waits: GroupWaits) -> None:
    """Renew the lease of every parked request."""
    await asyncio.gather(*(waits.renew(entry) for entry in list(waits.entries.values()) if entry.waiters))
