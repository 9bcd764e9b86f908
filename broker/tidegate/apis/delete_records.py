"""DeleteRecords: move log starts, by partition; each succeeds or fails by itself."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog
from kio.schema.delete_records.v2.response import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from kio.schema.errors import ErrorCode

from tidegate.apis.call import Call
from tidegate.apis.registry import api
from tidegate.apis.slices import each
from tidegate.errors import (
    InvalidTopic,
    KafkaError,
    KafkaStorageError,
    OffsetOutOfRange,
    PolicyViolation,
    StoreUnavailable,
    UnknownTopicOrPartition,
)
from tidegate.protocol import error_responses
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.error_shapes import NO_TIME
from tidegate.topics import names
from tidegate.topics.catalog import Topic

if TYPE_CHECKING:
    from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest

logger = structlog.get_logger()

HIGH_WATERMARK: Final = -1
"""The offset that stands for all records that may be read."""
_AT_ONCE: Final = 16


@api(
    ApiKey.DELETE_RECORDS,
    first=0,
    last=2,
    confirmed=True,
    away=ErrorCode.kafka_storage_error,
    error=error_responses.delete_records,
)
async def delete_records(call: Call, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Delete the records below an offset of each partition (KIP-107); the low watermark is the new log start."""
    await call.context.catalog.refresh()  # another broker may have changed policies or partitions
    topics = []
    for asked in request.topics:
        topic = await _topic_of(call, asked.name)
        results = await each(asked.partitions, partial(_result, call, asked.name, topic), _AT_ONCE)
        topics.append(DeleteRecordsTopicResult(name=asked.name, partitions=tuple(results)))
    return DeleteRecordsResponse(throttle_time=NO_TIME, topics=tuple(topics))


async def _topic_of(call: Call, name: str) -> Topic | KafkaError:
    """A topic whose records may be deleted, or the error of all its partitions."""
    if name in names.INTERNAL:
        return InvalidTopic(f"{name!r} is an internal topic: its records cannot be deleted")
    try:
        topic = await call.context.catalog.find(call.org, name)
    except StoreUnavailable as error:
        return error
    if topic is None:
        return UnknownTopicOrPartition()
    return topic


async def _result(
    call: Call, name: str, topic: Topic | KafkaError, asked: DeleteRecordsPartition
) -> DeleteRecordsPartitionResult:
    code, low_watermark = ErrorCode.none, -1
    try:
        if isinstance(topic, KafkaError):
            raise topic
        if not 0 <= asked.partition_index < topic.partition_count:
            raise UnknownTopicOrPartition
        if topic.config.cleanup_policy == {"compact"}:
            raise PolicyViolation(f"{name} is compacted: cleanup.policy has no delete")
        if asked.offset < HIGH_WATERMARK:
            raise OffsetOutOfRange
        low_watermark = await call.context.logs.partition(topic, asked.partition_index).delete_records(asked.offset)
    except StoreUnavailable:
        code = KafkaStorageError.code
    except KafkaError as error:
        code = error.code
    except Exception:
        logger.exception("delete_records_failed", topic=name, partition=asked.partition_index)
        code = ErrorCode.unknown_server_error
    values: dict[str, Any] = {"partition_index": asked.partition_index, "low_watermark": low_watermark}
    return DeleteRecordsPartitionResult(**values, error_code=code)
