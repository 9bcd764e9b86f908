"""The topics of the cluster, as the catalogue in Redis has them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from tidegate.store.keys import BATCH_FORMAT, RECORD_FORMAT, ClusterKeys, LogKeys
from tidegate_pipeline.errors import UsageError

if TYPE_CHECKING:
    from tidegate_pipeline.redis_access import Client

_READY = "ready"
_BITS_CONFIG: Final = "tidegate.sequence.bits"
_BITS: Final = 10
"""Its default."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that clients are shown. `topic_id` is in hex: a topic made again has another."""

    org: str
    name: str
    topic_id: str
    partition_count: int
    bits: int = 0
    """Of format record: sequence bits of its offsets; 0: format batch."""

    def keys(self, prefix: str, partition: int) -> LogKeys:
        """The keys of one of its partitions."""
        return keys_of(prefix, self.org, self.name, partition, self.topic_id, self.bits)


@dataclass(frozen=True, slots=True)
class RecordKeys(LogKeys):
    """Keys of a partition of format record, with the sequence bits of its offsets."""

    bits: int


def keys_of(prefix: str, org: str, topic: str, partition: int, topic_id: str, bits: int = 0) -> LogKeys:
    """The keys of a partition; `bits` as of Topic."""
    if not bits:
        return LogKeys.of(prefix, org, topic, partition, topic_id)
    keys = LogKeys.of(prefix, org, topic, partition, topic_id, RECORD_FORMAT)
    return RecordKeys(**{one.name: getattr(keys, one.name) for one in fields(LogKeys)}, bits=bits)


def read_topics(client: Client, prefix: str, org: str) -> dict[str, Topic]:
    """The ready topics of an organisation by name, in order of name."""
    topics = {}
    for field, text in client.hgetall(ClusterKeys(prefix).topics).items():
        of_org, _, name = field.decode().partition("/")
        record = json.loads(text)
        if of_org == org and record["state"] == _READY:
            is_record = record.get("format", BATCH_FORMAT) == RECORD_FORMAT
            topics[name] = Topic(org, name, record["id"], record["partitions"], _BITS if is_record else 0)
    own = _own_bits(client, prefix, [topic for topic in topics.values() if topic.bits])
    return dict(sorted({**topics, **own}.items()))


def _own_bits(client: Client, prefix: str, topics: Sequence[Topic]) -> dict[str, Topic]:
    """Topics of format record with the bits that their configs set."""
    if not topics:
        return {}
    keys = ClusterKeys(prefix)
    with client.pipeline(transaction=False) as pipe:
        for topic in topics:
            pipe.hget(keys.topic(topic.org, topic.name), _BITS_CONFIG)
        found = pipe.execute()
    return {
        topic.name: replace(topic, bits=int(bits))
        for topic, bits in zip(topics, found, strict=True)
        if bits is not None
    }


def find_topic(client: Client, prefix: str, org: str, name: str) -> Topic:
    """A topic by its name. Raises UsageError."""
    topics = read_topics(client, prefix, org)
    if name not in topics:
        raise UsageError(f"no such topic in organisation {org}: {name}")
    return topics[name]


def find_batch_topic(client: Client, prefix: str, org: str, name: str) -> Topic:
    """As `find_topic`, for what works on whole batches. Raises UsageError."""
    topic = find_topic(client, prefix, org, name)
    if topic.bits:
        raise UsageError(f"{name} has format record: replays and restores are for topics of format batch")
    return topic


class Condition(NamedTuple):
    """What a topic's own config must be, or must not be."""

    name: str
    value: str
    wanted: bool = True


def with_configs(client: Client, prefix: str, topics: Iterable[Topic], conditions: Sequence[Condition]) -> list[Topic]:
    """Those of the topics of which all conditions hold."""
    keys, found = ClusterKeys(prefix), list(topics)
    with client.pipeline(transaction=False) as pipe:
        for topic in found:
            pipe.hmget(keys.topic(topic.org, topic.name), [one.name for one in conditions])
        return [
            topic
            for topic, reported in zip(found, pipe.execute(), strict=True)
            if all((value == one.value.encode()) is one.wanted for value, one in zip(reported, conditions, strict=True))
        ]
