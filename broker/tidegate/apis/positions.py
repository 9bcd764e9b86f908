"""ListOffsets and OffsetForLeaderEpoch: positions in logs, by partition. Each answer follows a refresh of the log."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import timedelta
from functools import partial
from typing import Any, Final

import structlog
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v11.response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kio.schema.offset_for_leader_epoch.v4.response import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from kio.static.primitive import i32, i32Timedelta, i64

from tidegate.apis.call import Call
from tidegate.apis.registry import ApiKey, api
from tidegate.apis.slices import each, in_slices
from tidegate.errors import (
    FencedLeaderEpoch,
    InvalidRequest,
    KafkaError,
    KafkaStorageError,
    LeaderNotAvailable,
    OffsetNotAvailable,
    StoreUnavailable,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from tidegate.log.partition import PartitionLog
from tidegate.log.state import LogOffsets

logger = structlog.get_logger()

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5

_FIRST_VERSION: Final = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
_READ_COMMITTED: Final = 1
_READ_COMMITTED_FROM: Final = 2
_OFFSET_NOT_AVAILABLE_FROM: Final = 5
_NOT_THROTTLED: Final = i32Timedelta.parse(timedelta(0))
_AT_ONCE_MAX: Final = 64
_NAMES_SLICE: Final = 10_000

Position = tuple[int, int, int]
"""Offset, timestamp in ms, leader epoch; -1 where there is none."""
_NOWHERE: Final = (-1, -1, -1)


@api(ApiKey.LIST_OFFSETS, first=1, last=10)
async def list_offsets(call: Call, request: Any) -> ListOffsetsResponse:
    """The offset for a timestamp, or at an end of the log.

    v2: isolation. v4: leader epochs. v5: not available. v7: max timestamp. v8, v9: tiers.
    """
    twice = await _twice(request.topics)

    async def answer(name: str, asked: Any) -> ListOffsetsPartitionResponse:
        code, (offset, timestamp, leader_epoch) = await _outcome(
            _find(call, name, asked, request.isolation_level, twice), _NOWHERE
        )
        return ListOffsetsPartitionResponse(
            partition_index=asked.partition_index,
            error_code=code,
            timestamp=i64(timestamp),
            offset=i64(offset),
            leader_epoch=i32(leader_epoch),
        )

    topics = []
    for topic in request.topics:
        answers = await each(topic.partitions, partial(answer, topic.name), _AT_ONCE_MAX)
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=tuple(answers)))
    return ListOffsetsResponse(throttle_time=_NOT_THROTTLED, topics=tuple(topics))


async def _find(call: Call, name: str, asked: Any, isolation: int, twice: set[tuple[str, int]]) -> Position:
    """One partition's position. Raises KafkaError."""
    if (name, asked.partition_index) in twice:
        raise InvalidRequest("the request names the partition twice")
    log = await _log_of(call, name, asked.partition_index)
    timestamp = asked.timestamp
    if timestamp < 0 and call.version < _FIRST_VERSION.get(timestamp, call.version + 1):
        raise UnsupportedVersion(f"timestamp {timestamp} is not served in v{call.version}")
    known = await (_latest(call, log) if timestamp == LATEST else log.end_offset())
    _check_epoch(asked.current_leader_epoch, known)
    committed = isolation == _READ_COMMITTED and call.version >= _READ_COMMITTED_FROM
    if timestamp == LATEST:
        return _end(known, committed), -1, known.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = known.log_start_offset if timestamp == EARLIEST else known.local_start_offset
        return start, -1, _epoch_at(log, known, start)
    if timestamp == LATEST_TIERED:
        last = await log.archived_end() - 1 if log.topic.config.remote_storage else -1
        return last, -1, _epoch_at(log, known, last) if last >= 0 else -1
    found = await _at_time(log, timestamp, _end(known, committed))
    if found is None and not log.high_watermark_known:
        known = await _latest(call, log)
        found = await _at_time(log, timestamp, _end(known, committed))
    return (*found, _epoch_at(log, known, found[0])) if found is not None else _NOWHERE


async def _latest(call: Call, log: PartitionLog) -> LogOffsets:
    """The offsets with a known high watermark. Raises OffsetNotAvailable, in the form for old clients (KIP-207)."""
    try:
        return await log.latest()
    except OffsetNotAvailable:
        if call.version < _OFFSET_NOT_AVAILABLE_FROM:
            raise LeaderNotAvailable() from None
        raise


def _end(known: LogOffsets, committed: bool) -> int:
    return known.last_stable_offset if committed else known.high_watermark


async def _at_time(log: PartitionLog, timestamp: int, end: int) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record at or after a time, or with the largest timestamp; below `end`."""
    found = await (log.max_timestamp() if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp))
    return found if found is not None and found[0] < end else None


@api(ApiKey.OFFSET_FOR_LEADER_EPOCH, first=2, last=4)
async def offset_for_leader_epoch(call: Call, request: Any) -> OffsetForLeaderEpochResponse:
    """The end of a leader epoch, by which clients detect that records they read were discarded (KIP-320)."""
    topics = []
    for topic in request.topics:
        partitions = []
        async for asked in in_slices(topic.partitions):
            code, (epoch, end_offset) = await _outcome(_epoch_end(call, topic.topic, asked), (-1, -1))
            partitions.append(
                EpochEndOffset(
                    error_code=code, partition=asked.partition, leader_epoch=i32(epoch), end_offset=i64(end_offset)
                )
            )
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=tuple(partitions)))
    return OffsetForLeaderEpochResponse(throttle_time=_NOT_THROTTLED, topics=tuple(topics))


async def _epoch_end(call: Call, name: str, asked: Any) -> tuple[int, int]:
    log = await _log_of(call, name, asked.partition)
    _check_epoch(asked.current_leader_epoch, await log.end_offset())
    return await log.epoch_end(asked.leader_epoch)


async def _log_of(call: Call, name: str, index: int) -> PartitionLog:
    topic = await call.context.catalog.find(call.org, name)
    if topic is None or not 0 <= index < topic.partition_count:
        raise UnknownTopicOrPartition()
    return call.context.logs.partition(topic, index)


def _epoch_at(log: PartitionLog, known: LogOffsets, offset: int) -> int:
    return log.view.epoch_at(offset) if log.view is not None else known.leader_epoch


def _check_epoch(leader_epoch: int, known: LogOffsets) -> None:
    """Raises FencedLeaderEpoch, UnknownLeaderEpoch if the client names another epoch; -1 names none."""
    if 0 <= leader_epoch < known.leader_epoch:
        raise FencedLeaderEpoch()
    if leader_epoch > known.leader_epoch:
        raise UnknownLeaderEpoch()


async def _outcome(work: Awaitable[Any], nothing: Any) -> tuple[ErrorCode, Any]:
    """A partition's code and answer; its failure does not affect other partitions."""
    try:
        return ErrorCode.none, await work
    except StoreUnavailable:
        return KafkaStorageError.code, nothing
    except KafkaError as error:
        return error.code, nothing
    except Exception:
        logger.exception("position_failed")
        return ErrorCode.unknown_server_error, nothing


async def _twice(topics: Any) -> set[tuple[str, int]]:
    """Partitions that a request names more than once."""
    asked: set[tuple[str, int]] = set()
    twice: set[tuple[str, int]] = set()
    for topic in topics:
        async for one in in_slices(topic.partitions, _NAMES_SLICE):
            key = (topic.name, one.partition_index)
            (twice if key in asked else asked).add(key)
    return twice
