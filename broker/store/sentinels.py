"""Redis' sentinels: asked which server is the primary. A broker without them imports none of redis-py for it."""

from __future__ import annotations

import redis.exceptions
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from broker.errors import StoreUnavailable
from broker.settings import Settings
from broker.store.addresses import Topology
from broker.store.tls import tls_files


class Sentinels:
    """Those that `redis_url` names. One question at a time: redis-py's Sentinel bears no two."""

    def __init__(self, settings: Settings, topology: Topology) -> None:
        self._topology = topology
        timeout_s = settings.redis_connect_timeout_ms / 1000 / len(topology.hosts)
        with_tls = topology.tls if settings.redis_sentinel_tls is None else settings.redis_sentinel_tls
        login = {
            "username": settings.redis_sentinel_username,
            "password": settings.redis_sentinel_password,
            "socket_timeout": timeout_s,
            "socket_connect_timeout": timeout_s,
            "retry": Retry(NoBackoff(), 0),
        }
        if with_tls:
            login |= {"ssl": True, **tls_files(settings, topology)}
        self._sentinel = Sentinel(topology.hosts, sentinel_kwargs=login)  # type: ignore[no-untyped-call]

    async def primary(self) -> tuple[str, int]:
        """Host and port of the primary now. Raises StoreUnavailable."""
        try:
            host, port = await self._sentinel.discover_master(self._topology.service)
        except (redis.exceptions.RedisError, OSError) as error:
            raise StoreUnavailable(await self._unknown()) from error
        return host, port

    async def close(self) -> None:
        """Close the connections to them."""
        for client in self._sentinel.sentinels:
            await client.aclose()

    async def _unknown(self) -> str:
        """Why there is no answer. Redis-py tells of each sentinel how it would connect, and not what it was told."""
        hosts = ", ".join(f"{host}:{port}" for host, port in self._topology.hosts)
        told = ""
        try:
            await self._sentinel.sentinels[0].ping()
        except (redis.exceptions.RedisError, OSError) as error:
            told = f" (one says: {error})"
        return f"no sentinel of {hosts} answers and names a primary of {self._topology.service!r} that is up{told}"
