"""Redis for the admin HTTP: INFO, memory by owner, latency of scripts."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, Final, TypeVar

from tidegate.apis.call import BrokerContext
from tidegate.cluster.server_check import flavour_of
from tidegate.groups.group_index import group_of
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Link
from tidegate.store.server_facts import server_facts
from tidegate.store.store import Store
from tidegate.telemetry import declared_cluster as own
from tidegate.telemetry.meters import Meter
from tidegate.telemetry.metrics import metrics
from tidegate.topics.model import Topic

PARTITIONS_ASKED_MAX: Final = 400
GROUPS_ASKED_MAX: Final = 100
"""Maximum keys that are measured; the others are extrapolated from them."""
_TOPICS_SHOWN: Final = 100
_SECTIONS: Final = ("server", "clients", "memory", "persistence", "stats", "replication", "cluster", "latencystats")
_LATENCY: Final = "latency_percentiles_usec_"
_LATENCIES_SHOWN: Final = 20

Item = TypeVar("Item")


async def redis(context: BrokerContext) -> dict[str, Any]:
    """The server, its memory and its latency. Raises StoreUnavailable."""
    asked_s = perf_counter()
    text = (await context.store.command("INFO", *_SECTIONS)).decode("utf-8", "replace")
    round_trip_ms = (perf_counter() - asked_s) * 1000
    facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    flavour, version = flavour_of(facts)
    return {
        "flavour": flavour,
        "version": version,
        "mode": "cluster" if facts.get("cluster_enabled") == "1" else facts.get("redis_mode", "standalone"),
        "role": facts.get("role", ""),
        "uptime_s": _number(facts, "uptime_in_seconds"),
        "replicas": _replicas(facts),
        "memory": {
            "used_bytes": _number(facts, "used_memory"),
            "peak_bytes": _number(facts, "used_memory_peak"),
            "resident_bytes": _number(facts, "used_memory_rss"),
            "max_bytes": _number(facts, "maxmemory"),
            "fragmentation_ratio": _decimal(facts, "mem_fragmentation_ratio"),
            **await _memory(context),
        },
        "eviction": {
            "policy": facts.get("maxmemory_policy", "unknown"),
            "evicted_keys": _number(facts, "evicted_keys"),
            "expired_keys": _number(facts, "expired_keys"),
        },
        "persistence": _persistence(facts),
        "clients": {
            "connected": _number(facts, "connected_clients"),
            "max": _number(facts, "maxclients"),
            "blocked": _number(facts, "blocked_clients"),
            "rejected": _number(facts, "rejected_connections"),
        },
        "operations_per_s": _number(facts, "instantaneous_ops_per_sec"),
        "round_trip_ms": round(round_trip_ms, 3),
        "latency": _latency(facts),
        "scripts": scripts(metrics.scripts),
        "links": [
            {"name": link.name, "server": _server(link), "up": link.connected, "in_flight": link.in_flight}
            for link in context.store.links
        ],
        "primaries": await _primaries(context.store),
    }


def _server(link: Link) -> str:
    return f"{link.address.host}:{link.address.port}" if link.address is not None else ""


async def _primaries(store: Store) -> list[dict[str, Any]]:
    """Every server that holds keys, first that of the cluster's keys, which the rest of this response describes."""
    nodes = sorted(store.nodes, key=lambda node: (node is not store.metadata_node, str(node)))
    facts = await server_facts(store)
    return [
        {
            "server": str(node),
            "up": node.up,
            "used_bytes": facts.get(str(node), {}).get(own.REDIS_MEMORY_USED),
            "max_bytes": facts.get(str(node), {}).get(own.REDIS_MEMORY_MAX),
            "replicas": facts.get(str(node), {}).get(own.REDIS_REPLICAS),
        }
        for node in nodes
    ]


def _persistence(facts: Mapping[str, str]) -> dict[str, Any]:
    return {
        "aof": facts.get("aof_enabled") == "1",
        "aof_last_write": facts.get("aof_last_write_status", "unknown"),
        "aof_last_rewrite": facts.get("aof_last_bgrewrite_status", "unknown"),
        "aof_rewriting": facts.get("aof_rewrite_in_progress") == "1",
        "aof_bytes": _number(facts, "aof_current_size"),
        "aof_delayed_fsyncs": _number(facts, "aof_delayed_fsync"),
        "rdb_last_save": facts.get("rdb_last_bgsave_status", "unknown"),
        "rdb_last_save_s": _number(facts, "rdb_last_save_time"),
        "rdb_saving": facts.get("rdb_bgsave_in_progress") == "1",
        "loading": facts.get("loading") == "1",
    }


def _replicas(facts: Mapping[str, str]) -> list[dict[str, Any]]:
    """Parse `slave0:ip=…,port=…,state=online,offset=…,lag=0` and so on; `behind_bytes` is relative to the primary."""
    end, found = int(facts.get("master_repl_offset", 0)), []
    for name, text in sorted(facts.items()):
        if name.startswith("slave") and name[5:].isdigit():
            values = dict(pair.split("=", 1) for pair in text.split(",") if "=" in pair)
            found.append(
                {
                    "address": f"{values.get('ip', '')}:{values.get('port', '')}",
                    "state": values.get("state", ""),
                    "behind_bytes": max(end - int(values.get("offset", end)), 0),
                    "last_contact_s": int(values.get("lag", 0)),
                }
            )
    return found


def _latency(facts: Mapping[str, str]) -> list[dict[str, Any]]:
    """Latency of commands from the server, slowest first; from Redis 7.0 and Valkey 7.2 on."""
    found = []
    for name, text in facts.items():
        if name.startswith(_LATENCY):
            values = dict(pair.split("=", 1) for pair in text.split(",") if "=" in pair)
            found.append(
                {
                    "command": name.removeprefix(_LATENCY),
                    "p50_us": float(values.get("p50", 0)),
                    "p99_us": float(values.get("p99", 0)),
                }
            )
    return sorted(found, key=lambda one: -float(str(one["p99_us"])))[:_LATENCIES_SHOWN]


def scripts(meters: Mapping[str, Meter]) -> list[dict[str, Any]]:
    """Latency of this broker's scripts from send to reply, slowest first. `p99_ms` is a bucket's upper bound."""
    found = [
        {
            "script": label,
            "count": meter.count,
            "mean_ms": round(meter.total_s / meter.count * 1000, 3),
            "p99_ms": _percentile_ms(meter, 0.99),
        }
        for label, meter in meters.items()
        if meter.count
    ]
    return sorted(found, key=lambda one: -float(str(one["mean_ms"])))


def _percentile_ms(meter: Meter, part: float) -> float | None:
    """None above the last bucket's bound."""
    wanted, observed = part * meter.count, 0
    for bound, count in zip(meter.bounds_s, meter.counts, strict=False):
        observed += count
        if observed >= wanted:
            return round(bound * 1000, 3)
    return None


# -- memory


async def _memory(context: BrokerContext) -> dict[str, Any]:
    """Memory by owner, from some hundred keys: the largest topics, and each organisation's topics and groups."""
    topics, groups = await asyncio.gather(_topics_memory(context), _groups_memory(context))
    orgs: defaultdict[str, dict[str, int]] = defaultdict(lambda: {"topics_bytes": 0, "groups_bytes": 0})
    for topic, size, _ in topics:
        orgs[topic.org]["topics_bytes"] += size
    for org, size in groups.items():
        orgs[org]["groups_bytes"] += size
    topics.sort(key=lambda one: (-one[1], one[0].org, one[0].name))
    return {
        "orgs": [{"org": org, **sizes} for org, sizes in sorted(orgs.items())],
        "topics": [
            {"org": topic.org, "topic": topic.name, "bytes": size, "estimated": estimated}
            for topic, size, estimated in topics[:_TOPICS_SHOWN]
        ],
        "topics_left_out": max(len(topics) - _TOPICS_SHOWN, 0),
    }


async def _topics_memory(context: BrokerContext) -> list[tuple[Topic, int, bool]]:
    """Bytes of each topic, and whether partitions were not measured; at least the first partition of each is.

    With more topics than the sample permits, some are omitted.
    """
    topics = spread(context.catalog.all_topics(), PARTITIONS_ASKED_MAX)
    of_each = max(PARTITIONS_ASKED_MAX // max(len(topics), 1), 1)
    asked = [(topic, spread(range(topic.partition_count), of_each)) for topic in topics]
    logs = [
        context.store.log_keys(topic.org, topic.name, index, topic.topic_hex, topic.format).log
        for topic, indexes in asked
        for index in indexes
    ]
    sizes = iter(await _usage(context, logs))
    found = []
    for topic, indexes in asked:
        size = sum(next(sizes) for _ in indexes)
        found.append(
            (topic, size * topic.partition_count // max(len(indexes), 1), len(indexes) < topic.partition_count)
        )
    return found


async def _groups_memory(context: BrokerContext) -> dict[str, int]:
    """Organisation -> estimated bytes of its groups, from a sample of them."""
    names = [context.store.shard_keys(shard).groups for shard in range(context.settings.coordinator_shards)]
    listed = await asyncio.gather(*(context.store.read("HKEYS", name) for name in names))
    refs: defaultdict[str, list[str]] = defaultdict(list)
    for ref in (one.decode() for shard in listed for one in shard):
        refs[ref.partition("/")[0]].append(ref)
    of_each = max(GROUPS_ASKED_MAX // max(len(refs), 1), 1)
    found = {}
    for org, every in refs.items():
        some = [group_of(context.store, ref) for ref in spread(every, of_each)]
        sizes = await _usage(context, [key for keys in some for key in _group_keys(keys)])
        found[org] = sum(sizes) * len(every) // len(some)
    return found


def _group_keys(keys: GroupKeys) -> tuple[str, ...]:
    return keys.group, keys.members, keys.subscriptions, keys.assignments, keys.offsets


async def _usage(context: BrokerContext, names: Sequence[str]) -> list[int]:
    sizes = await asyncio.gather(*(context.store.read("MEMORY", "USAGE", name, "SAMPLES", 5) for name in names))
    return [int(size or 0) for size in sizes]


def spread(items: Sequence[Item], count_max: int) -> list[Item]:
    """At most `count` elements, evenly spaced."""
    if len(items) <= count_max:
        return list(items)
    return [items[at * len(items) // count_max] for at in range(count_max)]


def _number(facts: Mapping[str, str], name: str) -> int | None:
    text = facts.get(name, "")
    return int(text) if text.lstrip("-").isdigit() else None


def _decimal(facts: Mapping[str, str], name: str) -> float | None:
    try:
        return float(facts[name])
    except (KeyError, ValueError):
        return None
