"""What a Redis server says of its memory and of what a crash would lose, as values of the cluster's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.store.store import Store
from broker.telemetry import declared_cluster as own
from broker.telemetry.declared import Declared

_SECTIONS: Final = ("memory", "persistence", "stats", "replication", "clients")


async def server_facts(store: Store) -> dict[str, dict[Declared, int]]:
    """By server, as `host:port`: the primary. Raises StoreUnavailable."""
    facts: dict[str, str] = {}
    for section in _SECTIONS:
        text = (await store.command("INFO", section)).decode("utf-8", "replace")
        facts.update(line.split(":", 1) for line in text.splitlines() if ":" in line)
    address = store.control.address
    server = f"{address.host}:{address.port}" if address is not None else "unknown"
    return {server: values_of(facts)}


def values_of(facts: Mapping[str, str]) -> dict[Declared, int]:
    """The metrics that INFO's fields tell; what a server does not say is left out."""
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
