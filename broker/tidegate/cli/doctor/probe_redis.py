"""Probes Redis: INFO, the user's rights, latency, and the cluster that owns the keys."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import redis

from tidegate.cli.client.redis_access import connected, server_of, servers
from tidegate.cli.client.stray_entries import Ends, Stopped, Truncated, examine_ends
from tidegate.cli.doctor.observations import Lease
from tidegate.cli.doctor.probe_groups import LateGroup, late_groups
from tidegate.cli.failures import CommandFailed
from tidegate.cli.places import RedisServer
from tidegate.cluster.server_check import PROBE_RIGHTS, flavour_of
from tidegate.store.addresses import without_password
from tidegate.store.keys import ClusterKeys
from tidegate.store.redis_clock import time_ms
from tidegate.store.scripts import LIBRARY_PREFIX

COVERAGE: Final = "cluster-require-full-coverage"
_PINGS: Final = 20
_KEYS_TRIED: Final = 1_000


@dataclass(frozen=True, slots=True)
class Server:
    """One server with keys: the fields of INFO as text, and the error of the rights probe ("" if it succeeded)."""

    address: str
    info: Mapping[str, str]
    rights: str
    latencies_ms: tuple[float, ...]
    libraries: tuple[str, ...] | None = None
    """Libraries of our functions, one for each version of the brokers; None where the user may not list them."""


@dataclass(frozen=True, slots=True)
class RedisProbe:
    """All results; with `failure` set the others are empty."""

    where: str
    prefix: str
    failure: str = ""
    user: str = ""
    servers: tuple[Server, ...] = ()
    cluster_id: str | None = None
    leases: tuple[Lease, ...] = ()
    stopped: tuple[Stopped, ...] = ()
    truncated: tuple[Truncated, ...] = ()
    late_groups: tuple[LateGroup, ...] = ()


def facts(server: Server) -> dict[str, Any]:
    """A server as a row of a table and as JSON."""
    flavour, version = flavour_of(dict(server.info))
    return {
        "address": server.address,
        "version": f"{flavour} {version}",
        "role": server.info.get("role"),
        "used_bytes": int(server.info.get("used_memory", 0)),
        "max_bytes": int(server.info.get("maxmemory", 0)),
        "policy": server.info.get("maxmemory_policy"),
        "aof": server.info.get("aof_enabled") == "1",
        "replicas": int(server.info.get("connected_slaves", 0)),
        "scripts": None if server.libraries is None else "functions" if server.libraries else "evalsha",
        "median_ping_ms": round(statistics.median(server.latencies_ms), 2),
    }


def probe(place: RedisServer) -> RedisProbe:
    """Blocks until Redis has answered, 10 s at most for each reply."""
    where = without_password(place.url)
    try:
        with connected(place) as client:
            found = tuple(
                _server(name, one, _probe(client, name, place.prefix)) for name, one in servers(client).items()
            )
            cluster_id, leases = _cluster(client, ClusterKeys(place.prefix), place.settings.broker_lease_timeout_ms)
            ends = _ends(client, place.prefix) if cluster_id else Ends()
            late = _late_groups(client, place.prefix) if cluster_id else ()
            return RedisProbe(
                where, place.prefix, "", _user(client), found, cluster_id, leases, tuple(ends.stopped),
                tuple(ends.truncated), late,
            )  # fmt: skip
    except CommandFailed as failure:
        return RedisProbe(where, place.prefix, str(failure))


def _server(name: str, client: Any, probe: str) -> Server:
    info = {field: str(value) for field, value in client.info("everything").items()}
    if info.get("cluster_enabled") == "1":
        with suppress(redis.ResponseError):  # brokers' users may lack the right
            info |= client.config_get(COVERAGE)
    pings = tuple(_timed(client) for _ in range(_PINGS))
    return Server(name, info, _rights(client, probe), pings, _libraries(client))


def _probe(client: Any, server: str, prefix: str) -> str:
    """A key in a slot of this server."""
    keys = ClusterKeys(prefix)
    if not hasattr(client, "get_primaries"):
        return keys.probe
    names = (keys.probe_at(number) for number in range(_KEYS_TRIED))
    return next((name for name in names if client.get_node_from_key(name).name == server), keys.probe)


def _rights(client: Any, probe: str) -> str:
    """The same probe that a broker runs at its start."""
    try:
        client.eval(PROBE_RIGHTS.source, 1, probe, probe)
    except redis.ResponseError as error:
        reported_text = str(error).split(" script:")[0].splitlines()[0]
        return "" if reported_text.startswith(("MOVED", "READONLY")) else reported_text
    return ""


def _libraries(client: Any) -> tuple[str, ...] | None:
    try:
        found = client.execute_command("FUNCTION LIST", "LIBRARYNAME", f"{LIBRARY_PREFIX}*")
    except redis.ResponseError:
        return None
    names = (one[b"library_name"] if isinstance(one, dict) else one[one.index(b"library_name") + 1] for one in found)
    return tuple(sorted(name.decode() for name in names))


def _timed(client: Any) -> float:
    started = perf_counter()
    client.ping()
    return (perf_counter() - started) * 1000


def _user(client: Any) -> str:
    try:
        reported_text = client.execute_command("ACL WHOAMI")
        return reported_text.decode() if isinstance(reported_text, bytes) else str(reported_text)
    except redis.ResponseError:
        return ""


def _ends(client: Any, prefix: str) -> Ends:
    try:
        return examine_ends(client, prefix)
    except redis.ResponseError:  # missing rights are reported elsewhere
        return Ends()


def _late_groups(client: Any, prefix: str) -> tuple[LateGroup, ...]:
    keys = ClusterKeys(prefix)
    try:
        shards = int(client.hget(keys.info, "coordinator_shards") or 0)
        return tuple(late_groups(client, prefix, shards, time_ms(server_of(client, keys.info).time())))
    except redis.ResponseError:  # missing rights are reported elsewhere
        return ()


def _cluster(client: Any, keys: ClusterKeys, gone_ms: int) -> tuple[str | None, tuple[Lease, ...]]:
    try:
        cluster_id = client.hget(keys.info, "cluster_id")
        records = client.hgetall(keys.brokers)
        renewed = dict(client.zrange(keys.leases, 0, -1, withscores=True))
        now_ms = time_ms(server_of(client, keys.leases).time())
    except redis.ResponseError:  # missing rights are reported elsewhere
        return None, ()
    leases = []
    for node_id, record in sorted(records.items(), key=lambda item: int(item[0])):
        reported = json.loads(record)
        age_ms = max(now_ms - int(renewed.get(node_id, now_ms)), 0) if now_ms else 0
        if age_ms >= gone_ms:
            continue
        addresses = {name: f"{place[0]}:{place[1]}" for name, place in reported["listeners"].items()}
        leases.append(Lease(int(node_id), reported["state"], age_ms, addresses))
    return cluster_id.decode() if cluster_id else None, tuple(leases)
