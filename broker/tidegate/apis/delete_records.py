"""DeleteRecords: move log starts, by partition; each succeeds or fails by itself."""

from __future__ import annotations

from collections.abc import Mapping
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
from tidegate.apis.named_topics import NamedTopic, as_now, topics_of
from tidegate.apis.registry import api
from tidegate.apis.slices import Slices, each, in_slices
from tidegate.errors import (
    InvalidTopic,
    KafkaError,
    KafkaStorageError,
    OffsetOutOfRange,
    PolicyViolation,
    StoreUnavailable,
    UnknownTopicOrPartition,
)
from tidegate.log.partition import PartitionLog
from tidegate.log.record_format.record_log import RecordLog
from tidegate.protocol import error_responses
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.error_shapes import NO_TIME
from tidegate.topics import names

if TYPE_CHECKING:
    from kio.schema.delete_records.v2.request import (
        DeleteRecordsPartition,
        DeleteRecordsRequest,
        DeleteRecordsTopic,
    )

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
    """Delete the records below an offset of each partition (KIP-107); the low watermark is the new log start.

    Topics and high watermarks are those before the first deletion: the last one can be minutes later.
    """
    slices = Slices()
    named = await topics_of(call, {asked.name: None async for asked in slices.of(request.topics)})
    ends = [await _high_watermarks(call, named[asked.name], asked) async for asked in slices.of(request.topics)]
    topics = []
    async for asked, its_ends in slices.of(zip(request.topics, ends, strict=True)):
        results = await each(
            asked.partitions, partial(_result, call, named[asked.name], asked.name, its_ends), _AT_ONCE
        )
        topics.append(DeleteRecordsTopicResult(name=asked.name, partitions=tuple(results)))
    return DeleteRecordsResponse(throttle_time=NO_TIME, topics=tuple(topics))


async def _high_watermarks(call: Call, topic: NamedTopic, asked: DeleteRecordsTopic) -> dict[int, int | Exception]:
    """The high watermarks of a topic's partitions whose records are all deleted, or the errors of those."""

    async def one(index: int) -> int | Exception:
        try:
            return (await _log(call, topic, asked.name, index).end_offset()).high_watermark
        except Exception as error:  # noqa: BLE001 - becomes the partition's error
            return error

    indexes = [one.partition_index async for one in in_slices(asked.partitions) if one.offset == HIGH_WATERMARK]
    return dict(zip(indexes, await each(indexes, one, _AT_ONCE), strict=True))


def _log(call: Call, topic: NamedTopic, name: str, index: int) -> PartitionLog | RecordLog:
    """A partition whose records may be deleted. Raises KafkaError."""
    if name in names.INTERNAL:
        raise InvalidTopic(f"{name!r} is an internal topic: its records cannot be deleted")
    found = as_now(call, topic)
    if not 0 <= index < found.partition_count:
        raise UnknownTopicOrPartition
    if found.config.cleanup_policy == {"compact"}:
        raise PolicyViolation(f"{name} is compacted: cleanup.policy has no delete")
    return call.context.logs.partition(found, index)


async def _result(
    call: Call,
    topic: NamedTopic,
    name: str,
    ends: Mapping[int, int | Exception],
    asked: DeleteRecordsPartition,
) -> DeleteRecordsPartitionResult:
    code, low_watermark = ErrorCode.none, -1
    try:
        call.refuse_if_gone()
        log = _log(call, topic, name, asked.partition_index)
        low_watermark = await _delete(log, asked.offset, ends.get(asked.partition_index))
    except StoreUnavailable:
        code = KafkaStorageError.code
    except KafkaError as error:
        code = error.code
    except Exception:
        logger.exception("delete_records_failed", topic=name, partition=asked.partition_index)
        code = ErrorCode.unknown_server_error
    values: dict[str, Any] = {"partition_index": asked.partition_index, "low_watermark": low_watermark}
    return DeleteRecordsPartitionResult(**values, error_code=code)


async def _delete(log: PartitionLog | RecordLog, offset: int, end: int | Exception | None) -> int:
    """Delete the records below an offset, -1: below `end`; returns the low watermark. Raises also what `end` is."""
    if offset < HIGH_WATERMARK:
        raise OffsetOutOfRange
    if offset != HIGH_WATERMARK or end is None:
        return await log.delete_records(offset)
    if isinstance(end, Exception):
        raise end
    try:
        return await log.delete_records(end)
    except OffsetOutOfRange:
        raise KafkaStorageError("the log ends before it: it failed over") from None
