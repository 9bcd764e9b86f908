"""DescribeTopicPartitions: topics in order of name, in pages that a cursor continues (KIP-966)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.describe_topic_partitions.v0.response import (
    Cursor,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from kio.schema.errors import ErrorCode

from tidegate.apis.call import Call
from tidegate.apis.metadata import TOPIC_OPERATIONS, encoded_of
from tidegate.apis.registry import api
from tidegate.apis.slices import in_slices
from tidegate.cluster.broker_lease import BrokerInfo
from tidegate.cluster.placement import leader_of
from tidegate.errors import InvalidRequest
from tidegate.protocol import error_responses
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.error_shapes import NO_TIME
from tidegate.topics import names
from tidegate.topics.catalog import Topic

if TYPE_CHECKING:
    from kio.schema.describe_topic_partitions.v0.request import DescribeTopicPartitionsRequest

PARTITIONS_MAX: Final = 2_000
"""Partitions of one page (`max.request.partition.size.limit`)."""


@api(
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    first=0,
    last=0,
    away=ErrorCode.leader_not_available,
    safe_late=True,
    error=error_responses.describe_topic_partitions,
)
async def describe_topic_partitions(
    call: Call, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """A page of partitions, all topics' if none is named; `next_cursor` is where the next page begins, or null."""
    left = max(min(PARTITIONS_MAX, request.response_partition_limit), 1)
    wanted, first = _names_of(call, request)
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    cursor: Cursor | None = None
    async for name in in_slices(wanted):
        if not left:
            cursor = Cursor(topic_name=name, partition_index=0)  # type: ignore[arg-type]
            break
        topic = await call.context.catalog.find(call.org, name) if names.is_legal(name) else None
        if topic is None:
            topics.append(_missing(name))
            continue
        begin = first if request.cursor is not None and name == request.cursor.topic_name else 0
        end = min(topic.partition_count, begin + left)
        topics.append(_described(call, topic, begin, end))
        left -= max(end - begin, 0)
        if end < topic.partition_count and begin < end:
            cursor = Cursor(topic_name=name, partition_index=end)  # type: ignore[arg-type]
            break
    return DescribeTopicPartitionsResponse(throttle_time=NO_TIME, topics=tuple(topics), next_cursor=cursor)


def _names_of(call: Call, request: DescribeTopicPartitionsRequest) -> tuple[list[str], int]:
    """The names from the cursor on, in order, and the first partition of the cursor's topic. Raises InvalidRequest."""
    every = not request.topics
    found = {topic.name for topic in (call.context.catalog.topics(call.org) if every else request.topics)}
    cursor = request.cursor
    if cursor is None:
        return sorted(found), 0
    if not every and cursor.topic_name not in found:
        raise InvalidRequest(f"the cursor's topic {cursor.topic_name!r} is not among those of the request")
    if cursor.partition_index < 0:
        raise InvalidRequest(f"the cursor's partition {cursor.partition_index} is negative")
    return sorted(name for name in found if name >= cursor.topic_name), cursor.partition_index


def _missing(name: str) -> DescribeTopicPartitionsResponseTopic:
    legal = names.is_legal(name)
    code = ErrorCode.unknown_topic_or_partition if legal else ErrorCode.invalid_topic_exception
    values: dict[str, Any] = {
        "error_code": code,
        "name": name,
        "topic_id": None,
        "partitions": (),
        "topic_authorized_operations": TOPIC_OPERATIONS,
    }
    return DescribeTopicPartitionsResponseTopic(**values)


def _described(call: Call, topic: Topic, begin: int, end: int) -> DescribeTopicPartitionsResponseTopic:
    nameable = call.context.broker_lease.nameable(call.client.listener)
    epoch = encoded_of(call.context.catalog).leader_epoch(call)
    values: dict[str, Any] = {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.name in names.INTERNAL,
        "partitions": tuple(_partition(topic, index, nameable, epoch) for index in range(begin, end)),
        "topic_authorized_operations": TOPIC_OPERATIONS,
    }
    return DescribeTopicPartitionsResponseTopic(**values)


def _partition(
    topic: Topic, index: int, nameable: list[BrokerInfo], epoch: int
) -> DescribeTopicPartitionsResponsePartition:
    """A partition has one replica, its leader: replication is the store's responsibility."""
    leader_id = leader_of(topic.topic_id, index, nameable).node_id
    values: dict[str, Any] = {
        "error_code": ErrorCode.none,
        "partition_index": index,
        "leader_id": leader_id,
        "leader_epoch": epoch,
        "replica_nodes": (leader_id,),
        "isr_nodes": (leader_id,),
        "eligible_leader_replicas": (),
        "last_known_elr": (),
    }
    return DescribeTopicPartitionsResponsePartition(**values)
