"""Topics for the admin HTTP: partitions, sizes, configs, reading groups."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from tidegate.apis.call import BrokerContext
from tidegate.apis.slices import each, in_slices
from tidegate.cluster.placement import leader_of
from tidegate.errors import KafkaError, UnknownTopicOrPartition
from tidegate.groups import directory
from tidegate.groups.offsets import offset_field, parse_entry
from tidegate.http.record_lag import counted_lag
from tidegate.topics import configs
from tidegate.topics.configs import Source
from tidegate.topics.model import Topic

PARTITIONS_MAX: Final = 1_000
"""Maximum partitions per response."""
_COMMITS_MAX: Final = 200_000
"""Maximum committed offsets read to find a topic's groups: number of groups times number of partitions."""
_AT_ONCE: Final = 32
"""Partitions that are read concurrently: a large topic must not saturate the connection to Redis."""
_GROUPS_AT_ONCE: Final = 4
"""Groups that are read concurrently, with up to `PARTITIONS_MAX` commits each: 3 ms."""
_SOURCES: Final = {Source.TOPIC: "topic", Source.DEFAULT: "default"}
"""Every other source is the broker: its settings, or its configs that were set at run time."""


async def topics(
    context: BrokerContext, org: str, after: str = "", count_max: int | None = None
) -> list[dict[str, Any]]:
    """An organisation's topics after `after`, in order of name. Raises StoreUnavailable."""
    await context.catalog.refresh()
    listed = [topic for topic in context.catalog.topics(org) if topic.name > after][:count_max]
    sizes: dict[str, list[int]] = {topic.name: [0, 0] for topic in listed}

    async def add(topic: Topic, index: int) -> None:
        size, batches = await _size(context, topic, index)
        of_topic = sizes[topic.name]
        of_topic[0] += size
        of_topic[1] += batches

    places = ((topic, index) for topic in listed for index in range(topic.partition_count))
    await each(places, lambda place: add(*place), _AT_ONCE)
    return [
        {
            "topic": topic.name,
            "id": str(topic.topic_id),
            "partition_count": topic.partition_count,
            "bytes": sizes[topic.name][0],
            "batches": sizes[topic.name][1],
            "cleanup_policy": ",".join(sorted(topic.config.cleanup_policy)),
            "retention_ms": topic.config.retention_ms,
            "retention_bytes": topic.config.retention_bytes,
            "tiered": topic.config.remote_storage,
            "configs_set": len(topic.overrides),
        }
        async for topic in in_slices(listed)
    ]


async def topic(
    context: BrokerContext, org: str, name: str, first: int = 0, count_max: int = PARTITIONS_MAX
) -> dict[str, Any]:
    """One topic with its partitions from `first` on, and the groups that read these partitions.

    Raises UnknownTopicOrPartition, StoreUnavailable.
    """
    await context.catalog.refresh()
    found = await context.catalog.find(org, name)
    if found is None:
        raise UnknownTopicOrPartition(f"there is no topic {name}")
    indexes = range(first, min(first + count_max, found.partition_count))
    held, partitions = await asyncio.gather(
        each(range(found.partition_count), lambda index: _size(context, found, index), _AT_ONCE),
        each(indexes, lambda index: _offsets(context, found, index), _AT_ONCE),
    )
    for partition in partitions:
        partition["bytes"], partition["batches"] = held[partition["partition"]]
    ends = {partition["partition"]: partition["high_watermark"] for partition in partitions}
    groups, left_out = await _groups(context, found, ends) if ends else ([], 0)
    return {
        "topic": found.name,
        "id": str(found.topic_id),
        "partition_count": found.partition_count,
        "bytes": sum(size for size, _ in held),
        "partitions": partitions,
        "configs": [
            {
                "name": one.name,
                "value": one.value,
                "source": _SOURCES.get(one.source, "broker"),
                "type": one.type.name.lower(),
                "doc": one.doc,
            }
            for one in configs.describe_topic(context.settings, found.overrides)
        ],
        "groups": groups,
        "groups_not_asked": left_out,
    }


async def _size(context: BrokerContext, topic: Topic, index: int) -> tuple[int, int]:
    """Bytes and batches of a partition in Redis, from the brokers' estimates."""
    meta = context.store.log_keys(topic.org, topic.name, index, topic.topic_hex).meta
    size, batches = await context.store.read("HMGET", meta, "bytes", "batches")
    return max(int(size or 0), 0), max(int(batches or 0), 0)


async def _offsets(context: BrokerContext, topic: Topic, index: int) -> dict[str, Any]:
    """Offsets are None when the log cannot be read now."""
    preferred = context.broker_lease.preferred()
    leader = leader_of(topic.topic_id, index, preferred).node_id if preferred else None
    log = context.logs.partition(topic, index)
    try:
        known = await log.end_offset()
    except KafkaError:
        known = None
    return {
        "partition": index,
        "leader": leader,
        "leader_epoch": known.leader_epoch if known else None,
        "log_start": known.log_start_offset if known else None,
        "local_start": known.local_start_offset if known else None,
        "high_watermark": known.high_watermark if known else None,
        "log_end": known.log_end_offset if known else None,
        "stray_entry": str(log.stray) if log.stray is not None else None,
    }


async def _groups(
    context: BrokerContext, topic: Topic, ends: Mapping[int, int | None]
) -> tuple[list[dict[str, Any]], int]:
    """Groups that subscribe to the topic or have committed for these partitions; and the number of unchecked groups."""
    groups_max = max(_COMMITS_MAX // len(ends), 1)
    listed = await directory.list_groups(context.store, topic.org, range(context.settings.coordinator_shards))
    fields = [offset_field(topic.name, index) for index in ends]

    async def ask(group: directory.ListedGroup) -> dict[str, Any] | None:
        keys = context.store.stored_group_keys(topic.org, group.group_id)
        subscribed, offsets = await asyncio.gather(
            context.store.read("HGET", keys.group, "subscribed"), context.store.read("HMGET", keys.offsets, *fields)
        )
        reads = f'"{topic.name}"'.encode() in (subscribed or b"") and group.state != "Empty"
        commits = [
            (parse_entry(value), place) for value, place in zip(offsets, ends.items(), strict=True) if value is not None
        ]
        lags = [
            await counted_lag(context, topic, index, commit.offset)
            if topic.config.is_record
            else max(end - commit.offset, 0)
            for commit, (index, end) in commits
            if end is not None and commit.topic_id in ("", topic.topic_hex)
        ]
        if not reads and not lags:
            return None
        return {
            "group": group.group_id,
            "state": group.state,
            "subscribed": reads,
            "committed_partitions": len(lags),
            "lag": None if None in lags else sum(lag or 0 for lag in lags),
        }

    found = await each(listed[:groups_max], ask, _GROUPS_AT_ONCE)
    return [one for one in found if one is not None], max(len(listed) - groups_max, 0)
