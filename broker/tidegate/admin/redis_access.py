"""The CLI's connection to Redis: one server, a Sentinel primary, or a Cluster, according to `redis_url`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tidegate.admin.failures import CommandFailed
from tidegate.admin.places import RedisServer
from tidegate.errors import CannotStart, StoreUnavailable
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
    import redis
    from redis.backoff import NoBackoff
    from redis.cluster import ClusterNode, RedisCluster
    from redis.retry import Retry

    topology = parse_redis_url(place.url)
    options: dict[str, Any] = {
        "username": topology.username,
        "password": topology.password,
        "socket_timeout": _TIMEOUT_S,
        "socket_connect_timeout": _TIMEOUT_S,
    }
    if topology.tls:
        options |= {"ssl": True, **tls.tls_files(place.settings, topology)}
    if topology.kind == "cluster":
        nodes: list[Any] = [ClusterNode(*host) for host in topology.hosts]  # type: ignore[no-untyped-call]
        return RedisCluster(startup_nodes=nodes, **options)
    address = asyncio.run(find_primary(place.settings))
    options["retry"] = Retry(NoBackoff(), 0)  # redis-py's default retries take seconds without any message
    return redis.Redis(address.host, address.port, topology.database, **options)


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
