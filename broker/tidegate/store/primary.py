"""Find the primary: the server that `redis_url` names, or the one that its sentinels name.

Every connection attempt queries all sentinels and uses the answer of the one with the latest fail-over. The server must
then confirm that it is a primary, and so must the one that `redis_url` names. A primary that sentinels demote closes
its connections to clients, but a partitioned one does not notice, so the sentinels are also queried once a second.
"""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final

import structlog

from tidegate.settings import Settings
from tidegate.store.addresses import Address, parse_redis_url
from tidegate.store.batching import SingleFlight
from tidegate.store.tls import tls_context

if TYPE_CHECKING:
    from tidegate.store.sentinels import Sentinels

logger = structlog.get_logger()

FOLLOW_MS: Final = 1_000
"""Interval of the queries for a changed primary."""
_RECONNECT_S: Final = 1.0
"""Least interval of reconnections because of read-only errors."""


class Primary:
    """The address of the primary. Raises ValueError, CannotStart (unusable TLS files)."""

    def __init__(self, settings: Settings) -> None:
        self.topology = parse_redis_url(settings.redis_url)
        self.by_sentinels = self.topology.kind == "sentinel"
        self._tls = tls_context(settings, self.topology)
        self._settings = settings
        self._sentinels: Sentinels | None = None
        self._asking = SingleFlight[str]()  # one query for all links
        self._reconnected_s = -inf
        self.address = self.at(*self.topology.hosts[0])
        """The last known address of the primary; initially the first host of `redis_url`."""

    async def find(self) -> Address:
        """The current address of the primary. Raises StoreUnavailable."""
        if not self.by_sentinels:
            return self.address
        return await self._asking.do("primary", self._ask)

    def may_reconnect(self) -> bool:
        """Whether a read-only error may reconnect now: once per `_RECONNECT_S`, because a primary may refuse writes."""
        now_s = monotonic()
        if now_s - self._reconnected_s < _RECONNECT_S:
            return False
        self._reconnected_s = now_s
        return True

    async def close(self) -> None:
        """Close the connections to the sentinels."""
        await self._asking.close()
        if self._sentinels is not None:
            await self._sentinels.close()

    def at(self, host: str, port: int) -> Address:
        """A server of this topology, with the login and TLS setting of `redis_url`."""
        return self.topology.address(host, port, self._tls)

    async def _ask(self) -> Address:
        if self._sentinels is None:
            from tidegate.store.sentinels import Sentinels  # a broker without sentinels starts without redis-py

            self._sentinels = Sentinels(self._settings, self.topology)
        host, port = await self._sentinels.primary()
        found = self.at(host, port)
        if found != self.address:
            logger.info("redis_primary_found", host=host, port=port, service=self.topology.service)
            self.address = found
        return found


async def find_primary(settings: Settings) -> Address:
    """The current address of the primary, queried once. Raises StoreUnavailable, CannotStart, ValueError."""
    primary = Primary(settings)
    try:
        return await primary.find()
    finally:
        await primary.close()
