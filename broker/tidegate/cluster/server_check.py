"""Check at startup that the Redis server is one that Tidegate can use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from tidegate.errors import StoreUnavailable
from tidegate.settings import Settings
from tidegate.startup import CannotStart
from tidegate.store.node import Node
from tidegate.store.outcome import Failure, Moved, Ok, outcome_of_call
from tidegate.store.scripts import Script
from tidegate.store.store import Store

logger = structlog.get_logger()

PROBE_RIGHTS = Script("cluster/probe_rights")

LEAST: Final = {"redis": (7, 0), "valkey": (7, 2)}
_WAITAOF: Final = (7, 2)
ACTIVE_ACTIVE: Final = (
    "this is an Active-Active database, which merges the writes of several primaries: two brokers would append "
    "different records at one offset. Use a database with one primary"
)


class UnsuitedRedis(CannotStart):
    """The server lacks a required feature; the message names it in one line."""


@dataclass(frozen=True, slots=True)
class ServerReport:
    """A server's own description. `maxmemory` in bytes, 0 is no limit. `warnings` are for humans."""

    server: str
    flavour: str
    version: str
    maxmemory: int
    maxmemory_policy: str
    appendonly: bool
    replicas: int
    warnings: tuple[str, ...]


async def check_server(store: Store, settings: Settings) -> list[ServerReport]:
    """Check each primary and the user's rights. Raises UnsuitedRedis (in Redis Cluster: which), StoreUnavailable."""
    reports = []
    for node in store.nodes:
        try:
            reports.append(await _check(store, node, settings))
        except UnsuitedRedis as error:
            if not store.is_sharded:
                raise
            raise UnsuitedRedis(f"{node}: {error}") from None
    for warning in dict.fromkeys(warning for report in reports for warning in report.warnings):
        servers = [report.server for report in reports if warning in report.warnings]
        logger.warning("redis_setting", advice=warning, servers=servers)
    return reports


async def _check(store: Store, node: Node, settings: Settings) -> ServerReport:
    facts = await _facts(node)
    flavour, version = flavour_of(facts)
    _refuse_unsuited(facts, flavour, version, settings, in_cluster=store.is_sharded)
    await _try_rights(store, node)
    return ServerReport(
        str(node),
        flavour,
        version,
        int(facts.get("maxmemory", 0)),
        facts.get("maxmemory_policy", "unknown"),
        facts.get("aof_enabled") == "1",
        int(facts.get("connected_slaves", 0)),
        tuple(_warnings(facts, flavour)),
    )


async def _facts(node: Node) -> dict[str, str]:
    facts: dict[str, str] = {}
    for section in ("server", "memory", "persistence", "replication", "cluster", "modules"):
        reply = await outcome_of_call(node.control.call("INFO", section))
        if not isinstance(reply, Ok):
            raise UnsuitedRedis(f"INFO {section} is refused: {reply.text}")
        facts.update(_fields(reply.value.decode("utf-8", "replace")))
    return facts


def _fields(text: str) -> dict[str, str]:
    """The fields of a section of INFO; that of modules repeats one, of which `modules` has all values."""
    pairs = [(name, value) for name, colon, value in (line.partition(":") for line in text.splitlines()) if colon]
    modules = [value for name, value in pairs if name == "module"]
    return dict(pairs) | ({"modules": " ".join(modules)} if modules else {})


def is_active_active(facts: Mapping[str, str]) -> bool:
    """Whether the server merges the writes of several primaries, by its modules and fields of INFO."""
    return "crdt" in facts.get("modules", "").lower() or any(name.startswith("crdt") for name in facts)


def why_scripts_fail(error: str) -> str:
    """What an error of a script means where its own text does not say so: "" if it does."""
    if error.removeprefix("ERR ").startswith(
        ("Could not find scripting engine", "Unexpected engine in script shebang")
    ):
        return "this server has no Lua engine: load its module (Valkey 9.1 and newer: lua)"
    return ""


def flavour_of(facts: dict[str, str]) -> tuple[str, str]:
    """Name and version of the server software, from INFO."""
    for flavour in ("valkey", "dragonfly"):
        if f"{flavour}_version" in facts:
            return flavour, facts[f"{flavour}_version"]
    return "redis", facts.get("redis_version", "0.0")


def _refuse_unsuited(
    facts: dict[str, str], flavour: str, version: str, settings: Settings, *, in_cluster: bool
) -> None:
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    least = LEAST.get(flavour)
    if least is not None and numbers < least:
        raise UnsuitedRedis(f"{flavour} {version} is too old: {flavour} {least[0]}.{least[1]} or newer is needed")
    if is_active_active(facts):
        raise UnsuitedRedis(ACTIVE_ACTIVE)
    if facts.get("role", "master") != "master":
        raise UnsuitedRedis(f"this {flavour} is a replica: redis_url must name the primary")
    if facts.get("cluster_enabled") == "1" and not in_cluster:
        raise UnsuitedRedis(f"this {flavour} runs in cluster mode: redis_url must begin with redis+cluster://")
    wanted = settings.durability
    if wanted.startswith("fsynced"):
        if least is not None and numbers < _WAITAOF:
            raise UnsuitedRedis(f"durability={wanted} needs {flavour} 7.2 or newer (WAITAOF), not {version}")
        if facts.get("aof_enabled") != "1":
            raise UnsuitedRedis(f"durability={wanted} needs a server with appendonly yes")
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and not settings.redis_allow_eviction:
        raise UnsuitedRedis(
            f"maxmemory-policy is {policy}, which loses data: set it to noeviction "
            "(or TIDEGATE_REDIS_ALLOW_EVICTION=true)"
        )


def _warnings(facts: dict[str, str], flavour: str) -> list[str]:
    warnings = []
    if flavour not in LEAST:
        warnings.append(f"{flavour} was not tried by us")
    if facts.get("maxmemory_policy", "noeviction") != "noeviction":
        warnings.append("maxmemory-policy may evict keys: data will be lost")
    if int(facts.get("maxmemory", 0)) == 0:
        warnings.append("maxmemory is not set: the server may be killed when memory runs out")
    if facts.get("aof_enabled") != "1":
        warnings.append("appendonly is off: a restart of the server loses records and offsets")
    return warnings


async def _try_rights(store: Store, node: Node) -> None:
    """Run a script that writes keys and publishes. An error other than out-of-memory is a missing right."""
    channel = store.key_at(node, store.cluster_keys.probe, store.cluster_keys.probe_at)
    source = PROBE_RIGHTS.source
    reply = await outcome_of_call(node.control.call("EVAL", source, 1, channel, channel))
    if isinstance(reply, Moved):
        raise StoreUnavailable(f"{node}: {reply.text}")
    if isinstance(reply, Failure):
        reason = reply.text.split(" script:")[0].splitlines()[0]
        reason = why_scripts_fail(reason) or reason
        raise UnsuitedRedis(f"Lua scripts on keys and channels {store.prefix}:* are refused: {reason}")
    if isinstance(reply, Ok) and not reply.value[1]:
        raise UnsuitedRedis("the server takes one stream id twice: " + ACTIVE_ACTIVE)
