"""The CLI's connection to Redis: one server, a Sentinel primary, or a Cluster, according to `redis_url`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tidegate.cli.failures import CommandFailed
from tidegate.cli.places import RedisServer
from tidegate.errors import StoreUnavailable
from tidegate.startup import CannotStart
from tidegate.store import tls
from tidegate.store.addresses import parse_redis_url, without_password
from tidegate.store.primary import find_primary

_TIMEOUT_S: Final = 10.0


@contextmanager
def connected(place: RedisServer) -> Iterator[Any]:
    """A redis-py client that returns bytes; error replies and time-outs become CommandFailed."""
    import redis

    if place.missing:
        raise CommandFailed(place.missing)
    try:
        with _client(place) as client:
            yield client
    except (redis.RedisError, redis.RedisClusterException, OSError, StoreUnavailable, CannotStart) as error:
        cause = error.__cause__ if isinstance(error, redis.RedisError) else None
        why = tls.reason(cause) if isinstance(cause, OSError) else str(error)
        raise CommandFailed(f"Redis at {without_password(place.url)}: {why}") from error


def _client(place: RedisServer) -> Any:
    from tidegate.store import clients  # imports redis-py, which is slow

    topology = parse_redis_url(place.url)
    files = tls.tls_files(place.settings, topology) if topology.tls else None
    options = clients.login(topology.username, topology.password, _TIMEOUT_S, files)
    if topology.kind == "cluster":
        return clients.cluster_client(topology, options)
    address = asyncio.run(find_primary(place.settings))
    return clients.server_client(address.host, address.port, topology.database, options)


def servers(client: Any) -> dict[str, Any]:
    """A client per server that holds keys, by `host:port`; several in Redis Cluster only."""
    if hasattr(client, "get_primaries"):
        return {node.name: client.get_redis_connection(node) for node in client.get_primaries()}
    options = client.get_connection_kwargs()
    return {f"{options['host']}:{options['port']}": client}


def server_of(client: Any, key: str) -> Any:
    """The client of the server that holds a key; the Cluster client parses replies and has no TIME."""
    if hasattr(client, "get_primaries"):
        return client.get_redis_connection(client.get_node_from_key(key))
    return client
