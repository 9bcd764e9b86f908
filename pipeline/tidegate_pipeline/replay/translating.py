"""A group's committed offsets on the source topic of a replay -> offsets on the target."""

from __future__ import annotations

import json

from tidegate.store.keys import ClusterKeys, GroupKeys
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.redis_access import Client
from tidegate_pipeline.replay.translation import Table, translate
from tidegate_pipeline.topics import Topic


def committed_offsets(client: Client, prefix: str, org: str, group: str, topic: Topic) -> dict[int, int]:
    """By partition. Raises UsageError where the group has committed nothing there."""
    shards = client.hget(ClusterKeys(prefix).info, "coordinator_shards")
    if shards is None:
        raise UsageError(f"no broker was ever started with the prefix {prefix}")
    keys = GroupKeys.of(prefix, int(shards), org, group)
    names = [f"{topic.name}:{partition}" for partition in range(topic.partition_count)]
    found = {at: json.loads(text)["offset"] for at, text in enumerate(client.hmget(keys.offsets, names)) if text}
    if not found:
        raise UsageError(f"group {group} has committed nothing on {topic.name}")
    return found


def translate_group(table: Table, committed: dict[int, int], target: Topic) -> list[dict[str, object]]:
    """What `tidegate group reset --from-file` takes, a row for each partition of the target that has anything."""
    rows = {partition: table.read(partition) for partition in committed}
    if not any(rows.values()):
        raise UsageError(
            f"job {table.job} has replayed nothing from {table.topic} yet: no translations at {table.root}"
        )
    return [
        {"topic": target.name, "partition": partition, "offset": offset}
        for partition, offset in translate(rows, committed).items()
    ]
