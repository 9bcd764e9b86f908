"""The topics of the cluster, as the catalogue in Redis has them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidegate.store.keys import ClusterKeys, LogKeys
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.redis_access import Client

_READY = "ready"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that clients are shown. `topic_id` is in hex: a topic made again has another."""

    org: str
    name: str
    topic_id: str
    partition_count: int

    def keys(self, prefix: str, partition: int) -> LogKeys:
        """The keys of one of its partitions."""
        return LogKeys.of(prefix, self.org, self.name, partition, self.topic_id)


def read_topics(client: Client, prefix: str, org: str) -> dict[str, Topic]:
    """The ready topics of an organisation by name, in order of name."""
    topics = {}
    for field, text in client.hgetall(ClusterKeys(prefix).topics).items():
        of_org, _, name = field.decode().partition("/")
        record = json.loads(text)
        if of_org == org and record["state"] == _READY:
            topics[name] = Topic(org, name, record["id"], record["partitions"])
    return dict(sorted(topics.items()))


def find_topic(client: Client, prefix: str, org: str, name: str) -> Topic:
    """A topic by its name. Raises UsageError."""
    topics = read_topics(client, prefix, org)
    if name not in topics:
        raise UsageError(f"no such topic in organisation {org}: {name}")
    return topics[name]


class Condition(NamedTuple):
    """What a topic's own config must be, or must not be."""

    name: str
    value: str
    wanted: bool = True


def with_configs(client: Client, prefix: str, topics: Iterable[Topic], conditions: Sequence[Condition]) -> list[Topic]:
    """Those of the topics of which all conditions hold."""
    keys, found = ClusterKeys(prefix), list(topics)
    with client.pipeline(transaction=False) as asking:
        for topic in found:
            asking.hmget(keys.topic(topic.org, topic.name), [one.name for one in conditions])
        return [
            topic
            for topic, reported in zip(found, asking.execute(), strict=True)
            if all((value == one.value.encode()) is one.wanted for value, one in zip(reported, conditions, strict=True))
        ]
