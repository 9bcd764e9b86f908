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
from tidegate.store.durability_level import DurabilityLevel
from tidegate.store.keys import ClusterKeys
from tidegate.store.primary import find_primary

_TIMEOUT_S: Final = 10.0
_SLOTS_TRIED: Final = 10_000


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


@contextmanager
def durable_change(client: Any, place: RedisServer, *, everywhere: bool = False) -> Iterator[None]:
    """After the body, wait until what it wrote is as durable as `durability` says, as brokers do with their changes.

    The body writes keys of the cluster's slot only, with `everywhere` also others. Raises CommandFailed.
    """
    level = DurabilityLevel.of(place.settings.durability)
    if level.immediate:
        yield
        return
    keys = ClusterKeys(place.prefix)
    written = servers(client) if everywhere else {"": server_of(client, keys.proof)}
    before = {name: _history(server) for name, server in written.items()}
    yield
    wait = level.wait(min(place.settings.durability_timeout_ms, int(_TIMEOUT_S * 900)))
    for name, server in written.items():
        key = _key_at(client, name, keys) if everywhere else keys.proof
        _, held = server.pipeline(transaction=False).set(key, 1).execute_command(*wait).execute()
        if not level.holds(held) or _history(server) != before[name]:
            setting = place.settings.durability
            raise CommandFailed(f"the change is stored, but not as durable as TIDEGATE_DURABILITY={setting} asks for")


def _history(server: Any) -> tuple[str, str]:
    """Differs where a server was started again or took over: its proof covers no write of before."""
    return server.info("server")["run_id"], server.info("replication")["master_replid"]


def _key_at(client: Any, name: str, keys: ClusterKeys) -> str:
    """A key that the server of that name holds."""
    if not hasattr(client, "get_primaries"):
        return keys.proof
    names = map(keys.proof_at, range(_SLOTS_TRIED))
    return next((key for key in names if client.get_node_from_key(key).name == name), keys.proof)


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
