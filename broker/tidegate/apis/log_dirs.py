"""DescribeLogDirs and AlterReplicaLogDirs: Redis is the one log directory of all brokers.

A broker lists the partitions that it is named the leader of, so that tools which ask every broker count each once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from kio.schema.alter_replica_log_dirs.v2.response import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from kio.schema.describe_log_dirs.v5.response import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from kio.schema.errors import ErrorCode

from tidegate.apis.call import Call
from tidegate.apis.registry import api
from tidegate.apis.slices import Slices, each
from tidegate.cluster.errors import LogDirNotFound
from tidegate.cluster.placement import leader_of
from tidegate.errors import KafkaError, KafkaStorageError, StoreUnavailable, UnknownTopicOrPartition
from tidegate.protocol import error_responses
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.error_shapes import NO_TIME
from tidegate.store.log_sizes import log_bytes
from tidegate.topics.catalog import Topic

if TYPE_CHECKING:
    from kio.schema.alter_replica_log_dirs.v2.request import AlterReplicaLogDirsRequest
    from kio.schema.describe_log_dirs.v5.request import DescribeLogDirsRequest

LOG_DIR: Final = "redis"
"""The path of the one log directory."""
_AT_ONCE: Final = 64


@api(
    ApiKey.DESCRIBE_LOG_DIRS,
    first=1,
    last=5,
    away=ErrorCode.kafka_storage_error,
    safe_late=True,
    answers_large=True,
    error=error_responses.describe_log_dirs,
)
async def describe_log_dirs(call: Call, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    """The bytes of partitions in Redis (KIP-113); unknown ones are left out. v4: total bytes (KIP-827), not known."""
    await call.context.catalog.refresh()  # what another broker has just made is not left out
    topics, slices = [], Slices()
    async for topic, indexes in slices.of(_wanted(call, request.topics)):
        if topic is None:
            continue
        led = [index async for index in slices.of(indexes) if _leads(call, topic, index)]

        async def described(index: int, topic: Topic = topic) -> DescribeLogDirsPartition:
            values: dict[str, Any] = {"partition_index": index, "partition_size": await _size(call, topic, index)}
            return DescribeLogDirsPartition(**values, offset_lag=0, is_future_key=False)  # type: ignore[arg-type]

        if led:
            partitions = await each(led, described, _AT_ONCE)
            topics.append(DescribeLogDirsTopic(name=topic.name, partitions=tuple(partitions)))  # type: ignore[arg-type]
    result = DescribeLogDirsResult(error_code=ErrorCode.none, log_dir=LOG_DIR, topics=tuple(topics))
    return DescribeLogDirsResponse(throttle_time=NO_TIME, error_code=ErrorCode.none, results=(result,))


def _wanted(call: Call, asked: Any) -> Iterator[tuple[Topic | None, list[int]]]:
    """The topics asked for (None is all), each with the partitions that exist; None for one that does not."""
    catalog = call.context.catalog
    if asked is None:
        for topic in list(catalog.topics(call.org)):
            yield topic, list(range(topic.partition_count))
        return
    for one in asked:
        found = catalog.get(call.org, one.topic)
        count = 0 if found is None else found.partition_count
        yield found, sorted({index for index in one.partitions if 0 <= index < count})


def _leads(call: Call, topic: Topic, index: int) -> bool:
    lease, listener = call.context.broker_lease, call.client.listener
    brokers = lease.nameable(listener)
    return not brokers or leader_of(topic.topic_id, index, brokers).node_id == lease.shown_node_id(listener)


async def _size(call: Call, topic: Topic, index: int) -> int:
    keys = call.store.log_keys(topic.org, topic.name, index, topic.topic_hex, topic.format)
    return await log_bytes(call.store, keys, topic.format)


@api(
    ApiKey.ALTER_REPLICA_LOG_DIRS,
    first=1,
    last=2,
    away=ErrorCode.kafka_storage_error,
    safe_late=True,
    error=error_responses.alter_replica_log_dirs,
)
async def alter_replica_log_dirs(call: Call, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
    """Every partition is in the one directory already; there is no other (KIP-113)."""
    results: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    slices = Slices()
    async for one in slices.of(request.dirs):
        async for topic in slices.of(one.topics):
            async for index in slices.of(topic.partitions):
                values: dict[str, Any] = {"partition_index": index}
                code = await _moved(call, one.path, topic.name, index)
                result = AlterReplicaLogDirPartitionResult(**values, error_code=code)
                results.setdefault(topic.name, []).append(result)
    topics = [
        AlterReplicaLogDirTopicResult(topic_name=name, partitions=tuple(partitions))  # type: ignore[arg-type]
        async for name, partitions in slices.of(results.items())
    ]
    return AlterReplicaLogDirsResponse(throttle_time=NO_TIME, results=tuple(topics))


async def _moved(call: Call, path: str, name: str, index: int) -> ErrorCode:
    try:
        if path != LOG_DIR:
            raise LogDirNotFound(f"the log directory is {LOG_DIR!r}")
        topic = await call.context.catalog.find(call.org, name)
        if topic is None or not 0 <= index < topic.partition_count:
            raise UnknownTopicOrPartition
    except StoreUnavailable:
        return KafkaStorageError.code
    except KafkaError as error:
        return error.code
    return ErrorCode.none
