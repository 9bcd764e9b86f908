"""Describe-, Alter- and DeleteShareGroupOffsets: start offsets of share groups (KIP-932)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from tidegate.apis import group_creation
from tidegate.apis.bounded_answers import each_once
from tidegate.apis.call import Call
from tidegate.apis.registry import api
from tidegate.apis.slices import SLICE, Slices, each, in_slices
from tidegate.apis.topic_rights import may
from tidegate.errors import (
    GroupIdNotFound,
    InvalidGroupId,
    KafkaError,
    StoreUnavailable,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from tidegate.groups.share import offsets
from tidegate.groups.share.partitions import partitions_of
from tidegate.groups.share.records import Progress
from tidegate.groups.share.sessions import SharePartition
from tidegate.protocol import error_responses
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.error_shapes import NO_TIME, at_top
from tidegate.protocol.versions import Fields
from tidegate.security.acls import Operation
from tidegate.store.keys import GroupKeys
from tidegate.topics.model import Topic

if TYPE_CHECKING:
    from kio.schema.alter_share_group_offsets.v0.request import AlterShareGroupOffsetsRequest
    from kio.schema.delete_share_group_offsets.v0.request import DeleteShareGroupOffsetsRequest
    from kio.schema.describe_share_group_offsets.v1.request import (
        DescribeShareGroupOffsetsRequest,
        DescribeShareGroupOffsetsRequestGroup,
    )

NO_OFFSET = -1
_AT_ONCE = 20
"""Ends of logs of one request that are read at the same time."""
_NO_ID = UUID(int=0)


def _keys(call: Call, group_id: str) -> GroupKeys:
    if not group_id:
        raise InvalidGroupId
    return call.store.group_keys(call.org, group_id)


async def _topic(call: Call, operation: Operation, name: str) -> Topic:
    """A topic that the client may use so. Raises TopicAuthorizationFailed, UnknownTopicOrPartition."""
    if not may(call, operation, name):
        raise TopicAuthorizationFailed
    topic = await call.context.catalog.find(call.org, name)
    if topic is None:
        raise UnknownTopicOrPartition
    return topic


# -- DescribeShareGroupOffsets


@api(
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
    first=0,
    last=1,
    answers_large=True,
    error=error_responses.describe_share_group_offsets,
)
async def describe_offsets(call: Call, request: DescribeShareGroupOffsetsRequest) -> Any:
    """Start offsets of groups, all or those that are named; each group by itself. v1: lag."""

    def key(group: DescribeShareGroupOffsetsRequestGroup) -> Hashable:
        if group.topics is None:
            return group.group_id
        return group.group_id, tuple((topic.topic_name, tuple(topic.partitions)) for topic in group.topics)

    groups = await each_once(request.groups, partial(_describe, call), _undescribed, key)
    return Fields(throttle_time=NO_TIME, groups=tuple(groups))


async def _describe(call: Call, group: DescribeShareGroupOffsetsRequestGroup) -> Any:
    keys = _keys(call, group.group_id)
    known = await partitions_of(call.store, keys)
    if group.topics is None:
        wanted: dict[str, list[int]] = {}
        async for partition, name in in_slices(known.items()):
            wanted.setdefault(name, []).append(partition.index)
    else:
        wanted = {topic.topic_name: list(topic.partitions) for topic in group.topics}
    slices = Slices()
    topics = [await _describe_topic(call, keys, slices, *one) async for one in slices.of(wanted.items())]
    return Fields(group_id=group.group_id, topics=tuple(topics), error_code=ErrorCode.none, error_message=None)


def _undescribed(group: DescribeShareGroupOffsetsRequestGroup, error: KafkaError) -> Any:
    return Fields(group_id=group.group_id, topics=(), error_code=error.code, error_message=error.message)


async def _describe_topic(call: Call, keys: GroupKeys, slices: Slices, name: str, indexes: Sequence[int]) -> Any:
    """One topic. A partition without a start offset, or that does not exist, has -1, which is not an error."""
    if not may(call, Operation.DESCRIBE, name):
        return await _described(slices, name, _NO_ID, indexes, {}, {}, ErrorCode.topic_authorization_failed)
    topic = await call.context.catalog.find(call.org, name)
    if topic is None:
        return await _described(slices, name, _NO_ID, indexes, {}, {}, ErrorCode.none)
    present = [index for index in dict.fromkeys(indexes) if 0 <= index < topic.partition_count]
    found: dict[int, Progress] = {}
    ends: dict[int, int] = {}

    async def read_end(index: int) -> None:
        if found[index].start >= 0:
            ends[index] = (await call.context.logs.partition(topic, index).latest()).high_watermark

    for at in range(0, len(present), SLICE):
        part = present[at : at + SLICE]
        partitions = [SharePartition(topic.topic_id, index) for index in part]
        found |= zip(part, await call.context.shares.records.progress(keys, partitions), strict=True)
        await each(part, read_end, _AT_ONCE)
    return await _described(slices, name, topic.topic_id, indexes, found, ends, ErrorCode.none)


async def _described(
    slices: Slices,
    name: str,
    topic_id: UUID,
    indexes: Sequence[int],
    found: Mapping[int, Progress],
    ends: Mapping[int, int],
    code: ErrorCode,
) -> Any:
    partitions = [
        Fields(
            partition_index=index,
            start_offset=found[index].start if index in ends else NO_OFFSET,
            leader_epoch=0,
            lag=found[index].lag(ends[index]) if index in ends else NO_OFFSET,
            error_code=code,
            error_message=None,
        )
        async for index in slices.of(indexes)
    ]
    return Fields(topic_name=name, topic_id=topic_id, partitions=tuple(partitions))


# -- AlterShareGroupOffsets


@api(ApiKey.ALTER_SHARE_GROUP_OFFSETS, first=0, last=0, confirmed=True, error=at_top(responses=()))
async def alter_offsets(call: Call, request: AlterShareGroupOffsetsRequest) -> Any:
    """Set start offsets of a group without members and drop its records in flight; the first one creates a group.

    The other partitions of a topic that the group did not read before begin as at a first assignment, but now.
    """
    keys = _keys(call, request.group_id)
    await _expire(call, keys)
    changes: dict[SharePartition, tuple[str, int]] = {}
    altered: dict[UUID, Topic] = {}
    responses, slices = [], Slices()
    async for topic in slices.of(request.topics):
        found, error = await _found(call, topic.topic_name)
        results = []
        async for one in slices.of(topic.partitions):
            failure = error
            if found is not None and not 0 <= one.partition_index < found.partition_count:
                failure = UnknownTopicOrPartition()
            if found is not None and failure is None:
                partition = SharePartition(found.topic_id, one.partition_index)
                changes[partition] = topic.topic_name, max(one.start_offset, 0)
                altered[found.topic_id] = found
            results.append(_result(failure, partition_index=one.partition_index))
        topic_id = _NO_ID if found is None else found.topic_id
        responses.append(Fields(topic_name=topic.topic_name, topic_id=topic_id, partitions=tuple(results)))
    if changes:
        await group_creation.admit(call, keys)
    starts, new = call.context.shares.start_offsets, list[Topic]()
    for found in altered.values():
        if not await starts.is_read(keys, found.topic_hex, found.partition_count):
            new.append(found)
    await offsets.alter_offsets(call.store, keys, changes, partial(_lease_ends_ms, call))
    for found in new:
        await starts.initialise_others(keys, found.name, found.topic_hex, found.partition_count)
    return _whole(responses)


def _lease_ends_ms(call: Call) -> int:
    """When the broker's lease ends, for a script that is sent now. Raises RequestTimedOut if the client has left."""
    call.refuse_if_gone()
    return call.context.broker_lease.ends_ms


async def _expire(call: Call, keys: GroupKeys) -> None:
    """Remove members whose sessions ended, so that they do not protect the group. Raises StoreUnavailable."""
    await call.context.shares.groups.expire(keys)


async def _found(call: Call, name: str) -> tuple[Topic | None, KafkaError | None]:
    try:
        return await _topic(call, Operation.READ, name), None
    except StoreUnavailable:
        raise
    except KafkaError as error:
        return None, error


def _result(error: KafkaError | None, **fields: Any) -> Any:
    code = ErrorCode.none if error is None else error.code
    return Fields(error_code=code, error_message=None if error is None else error.message, **fields)


def _whole(responses: Sequence[Any]) -> Any:
    return Fields(throttle_time=NO_TIME, error_code=ErrorCode.none, error_message=None, responses=tuple(responses))


# -- DeleteShareGroupOffsets


@api(ApiKey.DELETE_SHARE_GROUP_OFFSETS, first=0, last=0, confirmed=True, error=at_top(responses=()))
async def delete_offsets(call: Call, request: DeleteShareGroupOffsetsRequest) -> Any:
    """Remove the start offsets of topics of a group without members: its next member initialises them again."""
    keys = _keys(call, request.group_id)
    if not await offsets.is_share_group(call.store, keys):
        raise GroupIdNotFound
    await _expire(call, keys)
    removed_topics: set[UUID] = set()
    responses = []
    async for topic in in_slices(request.topics):
        found, error = await _found(call, topic.topic_name)
        if found is not None:
            removed_topics.add(found.topic_id)
        topic_id = _NO_ID if found is None else found.topic_id
        responses.append(_result(error, topic_name=topic.topic_name, topic_id=topic_id))
    known = await partitions_of(call.store, keys)
    removed = [partition async for partition in in_slices(known) if partition.topic_id in removed_topics]
    await offsets.remove_partitions(
        call.store, keys, removed, must_be_empty=True, lease_ends_ms=partial(_lease_ends_ms, call)
    )
    return _whole(responses)
