"""How full each Redis server is: producers are slowed down, then refused, before `maxmemory` is reached.

What Redis refuses at `maxmemory` is refused in the middle of a script. Groups, commits and leases continue above the
limit, and need what is left.
"""

from __future__ import annotations

import asyncio
from typing import Final

import hiredis
import structlog

from tidegate.errors import StoreUnavailable
from tidegate.store.info import info_fields
from tidegate.store.node import Node
from tidegate.store.store import Store

logger = structlog.get_logger()

MEASURE_INTERVAL_MS: Final = 1_000
SHARE_MAX: Final = 0.95
"""Share of `maxmemory` above which records are refused; the rest is for groups, commits and leases."""
DELAYED_SHARE: Final = 0.1
"""Delays begin this share of `maxmemory` below the limit."""
DELAY_MAX_S: Final = 1.0
"""Delay just below the limit: five requests in flight are then five a second."""


class MemoryPressure:
    """Measures the servers; records are refused above the share `share_max` of `maxmemory`."""

    def __init__(self, store: Store, share_max: float = SHARE_MAX) -> None:
        self.is_high = False
        """Whether some server delays or refuses records, or some organisation has reached its limit."""
        self.full_orgs: frozenset[str] = frozenset()
        """Organisations whose records fill what they may have."""
        self._store = store
        self._share_max = share_max
        self._shares: dict[Node, float] = {}

    async def measure(self) -> None:
        """Ask every server. One that does not answer counts as free: its appends fail by themselves."""
        nodes = list(self._store.nodes)
        shares = await asyncio.gather(*map(_share, nodes))
        refused_before = any(share >= self._share_max for share in self._shares.values())
        self._shares = dict(zip(nodes, shares, strict=True))
        fullest = max(shares, default=0.0)
        self.is_high = fullest > self._share_max - DELAYED_SHARE or bool(self.full_orgs)
        refuses, used_percent = fullest >= self._share_max, round(fullest * 100, 1)
        if refuses and not refused_before:
            logger.warning("redis_memory_short", used_percent=used_percent)
        if refused_before and not refuses:
            logger.info("redis_memory_available", used_percent=used_percent)

    def delay_s(self, key: str) -> float | None:
        """How long to delay an append to the key's server; None: refuse it."""
        share = self._shares.get(self._store.node(key), 0.0)
        if share >= self._share_max:
            return None
        return DELAY_MAX_S * max(share - self._share_max + DELAYED_SHARE, 0.0) / DELAYED_SHARE


async def _share(node: Node) -> float:
    """The used share of a server's `maxmemory`, without the buffers that do not count; 0 without a limit."""
    try:
        reply = await node.control.call("INFO", "memory")
    except (hiredis.ReplyError, StoreUnavailable, OSError):
        return 0.0
    facts = info_fields(reply)
    limit = int(facts.get("maxmemory", 0))
    used = int(facts.get("used_memory", 0)) - int(facts.get("mem_not_counted_for_evict", 0))
    return used / limit if limit else 0.0
