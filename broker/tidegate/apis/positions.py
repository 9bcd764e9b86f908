"""ListOffsets and OffsetForLeaderEpoch: positions in logs, by partition. Each answer follows a refresh of the log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

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
from kio.static.primitive import i32, i64

from tidegate.apis.call import Call
from tidegate.apis.positions_v0 import list_offsets_v0
from tidegate.apis.registry import api
from tidegate.apis.slices import SLICE, Slices, each, in_slices, pause
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
from tidegate.log.logs import AnyLog
from tidegate.log.state import EpochEnds, LogOffsets
from tidegate.protocol import error_responses
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.error_shapes import NO_TIME
from tidegate.store.calls import gather_each
from tidegate.topics.model import Topic

if TYPE_CHECKING:
    from kio.schema.list_offsets.v11.request import ListOffsetsPartition, ListOffsetsRequest
    from kio.schema.offset_for_leader_epoch.v4.request import OffsetForLeaderEpochRequest, OffsetForLeaderPartition

logger = structlog.get_logger()

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

_FIRST_VERSION: Final = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_NO_EPOCH: Final = -1
_READ_COMMITTED: Final = 1
_READ_COMMITTED_FROM: Final = 2
_OFFSET_NOT_AVAILABLE_FROM: Final = 5
_AT_ONCE_MAX: Final = 64

Position = tuple[int, int, int]
"""Offset, timestamp in ms, leader epoch; -1 where there is none."""
_NOWHERE: Final = (-1, -1, -1)
FoundTopics = dict[str, Topic | KafkaError | None]
"""Topics by name; None for an unknown one, and why one could not be looked up."""


@api(
    ApiKey.LIST_OFFSETS,
    first=0,
    last=11,
    away=ErrorCode.kafka_storage_error,
    safe_late=True,
    error=error_responses.list_offsets,
)
async def list_offsets(call: Call, request: ListOffsetsRequest) -> ListOffsetsResponse | bytes:
    """The offset for a timestamp, or at an end of the log.

    v0: a list of offsets. v2: isolation. v4: leader epochs. v5: not available. v7: max timestamp. v8, v9, v11: tiers.
    """
    twice = await _twice(request.topics)
    found = await _find_topics(call, (topic.name for topic in request.topics))
    if call.version == 0:
        return await list_offsets_v0(
            request, lambda name, asked: _outcome(_find(call, found, name, asked, 0, twice), _NOWHERE)
        )

    async def answer(name: str, asked: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
        code, (offset, timestamp, leader_epoch) = await _outcome(
            _find(call, found, name, asked, request.isolation_level, twice), _NOWHERE
        )
        return ListOffsetsPartitionResponse(
            partition_index=asked.partition_index,
            error_code=code,
            timestamp=i64(timestamp),
            offset=i64(offset),
            leader_epoch=i32(leader_epoch),
        )

    topics = []
    async for topic in in_slices(request.topics):
        answers = await each(topic.partitions, partial(answer, topic.name), _AT_ONCE_MAX)
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=tuple(answers)))
    return ListOffsetsResponse(throttle_time=NO_TIME, topics=tuple(topics))


async def _find(
    call: Call, topics: FoundTopics, name: str, asked: ListOffsetsPartition, isolation: int, twice: set[tuple[str, int]]
) -> Position:
    """One partition's position. Raises KafkaError."""
    if (name, asked.partition_index) in twice:
        raise InvalidRequest("the request names the partition twice")
    timestamp = asked.timestamp
    if timestamp < 0 and call.version < _FIRST_VERSION.get(timestamp, call.version + 1):
        raise UnsupportedVersion(f"timestamp {timestamp} is not served in v{call.version}")
    log = _log_of(call, topics, name, asked.partition_index)
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
    if timestamp == EARLIEST_PENDING_UPLOAD:
        if not log.topic.config.remote_storage:
            return _NOWHERE
        first = max(await log.archived_end(), known.log_start_offset)
        return first, -1, _epoch_at(log, known, first)
    found = await _at_time(log, timestamp, _end(known, committed))
    if found is None and not log.high_watermark_known:
        known = await _latest(call, log)
        found = await _at_time(log, timestamp, _end(known, committed))
    return (*found, _epoch_at(log, known, found[0])) if found is not None else _NOWHERE


async def _latest(call: Call, log: AnyLog) -> LogOffsets:
    """The offsets with a known high watermark. Raises OffsetNotAvailable, in the form for old clients (KIP-207)."""
    try:
        return await log.latest()
    except OffsetNotAvailable:
        if call.version < _OFFSET_NOT_AVAILABLE_FROM:
            raise LeaderNotAvailable() from None
        raise


def _end(known: LogOffsets, committed: bool) -> int:
    return known.last_stable_offset if committed else known.high_watermark


async def _at_time(log: AnyLog, timestamp: int, end: int) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record at or after a time, or with the largest timestamp; below `end`."""
    found = await (log.max_timestamp() if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp))
    return found if found is not None and found[0] < end else None


@api(
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    first=2,
    last=4,
    away=ErrorCode.kafka_storage_error,
    safe_late=True,
    error=error_responses.offset_for_leader_epoch,
)
async def offset_for_leader_epoch(call: Call, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    """The end of a leader epoch, by which clients detect that records they read were discarded (KIP-320).

    A slice of the request refreshes each log once, whatever it asks of it.
    """
    topics, slices = await _find_topics(call, (topic.topic for topic in request.topics)), Slices()
    every = [(topic, list[EpochEndOffset]()) async for topic in slices.of(request.topics)]
    asked = [
        (topic.topic, one, answers)
        async for topic, answers in slices.of(every)
        async for one in slices.of(topic.partitions)
    ]
    for first in range(0, len(asked), SLICE):
        part = asked[first : first + SLICE]
        wanted: dict[tuple[str, int], set[int]] = {}
        for name, one, _ in part:
            wanted.setdefault((name, one.partition), set()).add(one.leader_epoch)
        ends = await _epoch_ends(call, topics, wanted)
        for name, one, answers in part:
            code, found = ends[name, one.partition]
            answers.append(_epoch_end(one, code, found))
        await pause()
    results = [
        OffsetForLeaderTopicResult(topic=topic.topic, partitions=tuple(answers))
        async for topic, answers in slices.of(every)
    ]
    return OffsetForLeaderEpochResponse(throttle_time=NO_TIME, topics=tuple(results))


async def _epoch_ends(
    call: Call, topics: FoundTopics, wanted: Mapping[tuple[str, int], set[int]]
) -> dict[tuple[str, int], tuple[ErrorCode, EpochEnds | None]]:
    """The code of each partition, and the ends of the epochs that are wanted of it."""
    ends: dict[tuple[str, int], tuple[ErrorCode, EpochEnds | None]] = {}
    logs: dict[tuple[str, int], AnyLog] = {}
    for place in wanted:
        try:
            logs[place] = _log_of(call, topics, *place)
        except KafkaError as error:
            ends[place] = _code_of(error), None
    found = await asyncio.gather(*(_outcome(log.epoch_ends(wanted[place]), None) for place, log in logs.items()))
    return ends | dict(zip(logs, found, strict=True))


def _epoch_end(asked: OffsetForLeaderPartition, code: ErrorCode, found: EpochEnds | None) -> EpochEndOffset:
    epoch, end_offset = -1, -1
    if found is not None:
        known, ends = found
        try:
            _check_epoch(asked.current_leader_epoch, known)
            epoch, end_offset = ends[asked.leader_epoch]
        except KafkaError as error:
            code = error.code
    return EpochEndOffset(
        error_code=code, partition=asked.partition, leader_epoch=i32(epoch), end_offset=i64(end_offset)
    )


async def _find_topics(call: Call, names: Iterable[str]) -> FoundTopics:
    """The topics of a request by name, each looked up once; unknown ones together, as they need a refresh."""
    catalog = call.context.catalog
    found: FoundTopics = {name: catalog.get(call.org, name) async for name in in_slices(names)}
    unknown = [name for name, topic in found.items() if topic is None]
    found.update(
        zip(unknown, await gather_each((catalog.find(call.org, name) for name in unknown), SLICE), strict=True)
    )
    return found


def _log_of(call: Call, topics: FoundTopics, name: str, index: int) -> AnyLog:
    """Raises KafkaError."""
    topic = topics[name]
    if isinstance(topic, KafkaError):
        raise topic
    if topic is None or not 0 <= index < topic.partition_count:
        raise UnknownTopicOrPartition()
    return call.context.logs.partition(topic, index)


def _epoch_at(log: AnyLog, known: LogOffsets, offset: int) -> int:
    return log.state.epoch_at(offset) if log.state is not None else known.leader_epoch


def _check_epoch(leader_epoch: int, known: LogOffsets) -> None:
    """Raises FencedLeaderEpoch, UnknownLeaderEpoch if the client names another epoch; -1 names none."""
    if leader_epoch != _NO_EPOCH and leader_epoch < known.leader_epoch:
        raise FencedLeaderEpoch()
    if leader_epoch > known.leader_epoch:
        raise UnknownLeaderEpoch()


async def _outcome(work: Awaitable[Any], nothing: Any) -> tuple[ErrorCode, Any]:
    """A partition's code and answer; its failure does not affect other partitions."""
    try:
        return ErrorCode.none, await work
    except KafkaError as error:
        return _code_of(error), nothing
    except Exception:
        logger.exception("position_failed")
        return ErrorCode.unknown_server_error, nothing


def _code_of(error: KafkaError) -> ErrorCode:
    return KafkaStorageError.code if isinstance(error, StoreUnavailable) else error.code


async def _twice(topics: Any) -> set[tuple[str, int]]:
    """Partitions that a request names more than once."""
    asked: set[tuple[str, int]] = set()
    twice: set[tuple[str, int]] = set()
    slices = Slices()
    async for topic in slices.of(topics):
        async for one in slices.of(topic.partitions):
            key = (topic.name, one.partition_index)
            (twice if key in asked else asked).add(key)
    return twice
