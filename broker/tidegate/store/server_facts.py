"""Redis memory and persistence figures from INFO, as cluster metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import hiredis

from tidegate.errors import StoreUnavailable
from tidegate.store.info import info_fields
from tidegate.store.node import Node
from tidegate.store.store import Store
from tidegate.telemetry import declared_cluster as own
from tidegate.telemetry.declared import Declared

_SECTIONS: Final = ("memory", "persistence", "stats", "replication", "clients")


async def server_facts(store: Store) -> dict[str, dict[Declared, int]]:
    """Server (`host:port`) -> metrics of each primary that answers. Raises StoreUnavailable if none does."""
    nodes = store.nodes
    reported = await asyncio.gather(*map(_facts, nodes), return_exceptions=True)
    found = {str(node): values_of(one) for node, one in zip(nodes, reported, strict=True) if isinstance(one, dict)}
    failure = next((one for one in reported if isinstance(one, BaseException)), None)
    if failure is not None and not found:
        raise failure
    return found


async def _facts(node: Node) -> dict[str, str]:
    facts: dict[str, str] = {}
    for section in _SECTIONS:
        try:
            reply = await node.control.call("INFO", section)
        except hiredis.ReplyError as error:
            raise StoreUnavailable(str(error)) from None
        facts.update(info_fields(reply))
    return facts


def values_of(facts: Mapping[str, str]) -> dict[Declared, int]:
    """The metrics in INFO's fields; absent fields are left out."""
    numbers = {
        own.REDIS_MEMORY_USED: "used_memory",
        own.REDIS_MEMORY_MAX: "maxmemory",
        own.REDIS_EVICTED: "evicted_keys",
        own.REDIS_AOF: "aof_enabled",
        own.REDIS_UNSAVED: "rdb_changes_since_last_save",
        own.REDIS_REPLICAS: "connected_slaves",
        own.REDIS_CLIENTS: "connected_clients",
    }
    values = {metric: int(facts[name]) for metric, name in numbers.items() if facts.get(name, "").isdecimal()}
    if "maxmemory_policy" in facts:
        values[own.REDIS_MAY_EVICT] = int(facts["maxmemory_policy"] != "noeviction")
    outcomes = [facts[name] for name in ("aof_last_write_status", "rdb_last_bgsave_status") if name in facts]
    if outcomes:
        values[own.REDIS_PERSISTENCE_OK] = int(all(outcome == "ok" for outcome in outcomes))
    return values
