"""ListGroups, DescribeGroups, DeleteGroups for classic groups, and OffsetDelete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kio.schema.describe_groups.v6.response import DescribedGroup, DescribedGroupMember, DescribeGroupsResponse
from kio.schema.errors import ErrorCode
from kio.schema.list_groups.v5.response import ListedGroup, ListGroupsResponse
from kio.schema.offset_delete.v0.response import (
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32

from tidegate.apis.bounded_answers import each_once
from tidegate.apis.call import Call
from tidegate.apis.mirroring import mirrors_of
from tidegate.apis.registry import api
from tidegate.apis.slices import batches_of, each, in_slices, join_topics
from tidegate.apis.topic_refresh import refresh_again, unknown_topics
from tidegate.cluster.placement import coordinator_of
from tidegate.errors import GroupIdNotFound, InvalidGroupId, KafkaError
from tidegate.groups import directory, offsets
from tidegate.groups.commits import commit_times_ms
from tidegate.groups.share.offsets import delete_group, is_share_group
from tidegate.protocol import error_responses
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.error_shapes import NO_TIME, at_top
from tidegate.protocol.newer_schemas.delete_groups_v3 import DeletableGroupResult, DeleteGroupsResponse
from tidegate.store.keys import GroupKeys

if TYPE_CHECKING:
    from kio.schema.describe_groups.v6.request import DescribeGroupsRequest
    from kio.schema.list_groups.v5.request import ListGroupsRequest
    from kio.schema.offset_delete.v0.request import OffsetDeleteRequest

    from tidegate.protocol.newer_schemas.delete_groups_v3 import DeleteGroupsRequest

_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS = 3, 6, 8, 10, 11
GROUP_OPERATIONS: Final = i32(1 << _READ | 1 << _DELETE | 1 << _DESCRIBE | 1 << _DESCRIBE_CONFIGS | 1 << _ALTER_CONFIGS)
"""Bits of the permitted operations on a group: all that Kafka defines, while there are no access rules."""

Group = TypeVar("Group", bound=Any)

_AT_ONCE: Final = 20
"""Groups of one request that are deleted at the same time."""


async def describe_each(
    call: Call,
    group_ids: Sequence[Any],
    describe: Callable[[Call, Any], Awaitable[Group]],
    undescribed: Callable[[Any, KafkaError], Group],
    with_operations: bool,
) -> tuple[Group, ...]:
    """Each group of a request as `describe` has it, or as `undescribed` has its KafkaError.

    Those that exist have the permitted operations, if asked for.
    """

    async def one(group_id: Any) -> Group:
        group = await describe(call, group_id)
        if not with_operations or group.error_code is not ErrorCode.none:
            return group
        return replace(group, authorized_operations=GROUP_OPERATIONS)

    return tuple(await each_once(group_ids, one, undescribed))


@api(ApiKey.LIST_GROUPS, first=0, last=5, answers_large=True, safe_late=True, error=at_top(groups=()))
async def list_groups(call: Call, request: ListGroupsRequest) -> ListGroupsResponse:
    """List the groups whose named coordinator is this broker: clients query every broker and merge.

    v4: states (KIP-518). v5: types (KIP-848).
    """
    broker_lease, listener = call.context.broker_lease, call.client.listener
    brokers, node_id = broker_lease.nameable(listener), broker_lease.shown_node_id(listener)
    shards = [
        shard
        for shard in range(call.context.settings.coordinator_shards)
        if coordinator_of(shard, brokers).node_id == node_id
    ]
    states = {state.strip().lower() async for state in in_slices(request.states_filter)}
    types = {kind.lower() async for kind in in_slices(request.types_filter)}
    groups = [
        ListedGroup(
            group_id=GroupId(group.group_id),
            protocol_type=group.protocol_type,
            group_state=group.state,
            group_type=group.type,
        )
        async for group in in_slices(await directory.list_groups(call.store, call.org, shards))
        if directory.matches(group, states, types)
    ]
    return ListGroupsResponse(throttle_time=NO_TIME, error_code=ErrorCode.none, groups=tuple(groups))


@api(ApiKey.DESCRIBE_GROUPS, first=0, last=6, answers_large=True, safe_late=True, error=error_responses.describe_groups)
async def describe_groups(call: Call, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """Describe groups and their members; each group succeeds or fails by itself.

    v3: the caller's permitted operations (KIP-430). v4: static members. v6: a group that does not exist is
    GROUP_ID_NOT_FOUND instead of just `Dead` (KIP-1043).
    """
    groups = await describe_each(call, request.groups, _describe, _undescribed, request.include_authorized_operations)
    return DescribeGroupsResponse(throttle_time=NO_TIME, groups=groups)


async def _describe(call: Call, group_id: GroupId) -> DescribedGroup:
    try:
        keys = call.store.group_keys(call.org, group_id)
        found = await directory.describe(call.store, keys, str(call.context.broker_lease.node_id))
    except GroupIdNotFound:
        return _absent(group_id, call.version)
    members = [
        DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata,
            member_assignment=member.assignment,
        )
        async for member in in_slices(found.members)
    ]
    return DescribedGroup(
        error_code=ErrorCode.none,
        group_id=group_id,
        group_state=found.state,
        protocol_type=found.protocol_type,
        protocol_data=found.protocol,
        members=tuple(members),
    )


def _absent(group_id: GroupId, version: int) -> DescribedGroup:
    dead = replace(_undescribed(group_id, GroupIdNotFound(f"Group {group_id} not found.")), group_state="Dead")
    return dead if version >= 6 else replace(dead, error_code=ErrorCode.none, error_message=None)


def _undescribed(group_id: GroupId, error: KafkaError) -> DescribedGroup:
    return DescribedGroup(
        error_code=error.code,
        error_message=error.message,
        group_id=group_id,
        group_state="",
        protocol_type="",
        protocol_data="",
        members=(),
    )


@api(ApiKey.DELETE_GROUPS, first=0, last=3, confirmed=True, error=error_responses.delete_groups)
async def delete_groups(call: Call, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Delete empty groups and their offsets (KIP-229); each succeeds or fails by itself, duplicates are merged.

    v3: error messages.
    """
    group_ids = list(dict.fromkeys(request.groups_names))
    failures = await each(group_ids, partial(_delete, call), _AT_ONCE)
    return DeleteGroupsResponse(
        throttle_time=NO_TIME,
        results=tuple(
            DeletableGroupResult(group_id=group_id, error_code=code, error_message=message)
            for group_id, (code, message) in zip(group_ids, failures, strict=True)
        ),
    )


async def _delete(call: Call, group_id: GroupId) -> tuple[ErrorCode, str | None]:
    try:
        call.refuse_if_gone()
        keys = call.store.group_keys(call.org, group_id)
        if await is_share_group(call.store, keys):
            await delete_group(call.store, call.context.shares.groups, keys, call.context.broker_lease.name)
            return ErrorCode.none, None
        forget_mirrors = await mirrors_of(call, keys)
        await directory.delete_group(call.store, keys, str(call.context.broker_lease.node_id))
        forget_mirrors()
    except KafkaError as error:
        return error.code, error.message
    return ErrorCode.none, None


@api(ApiKey.OFFSET_DELETE, first=0, last=0, confirmed=True, answers_large=True, error=at_top(topics=()))
async def offset_delete(call: Call, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    """Delete a group's offsets of topics that it is not subscribed to (KIP-496), part by part."""
    if not request.group_id:
        raise InvalidGroupId
    keys = call.store.group_keys(call.org, request.group_id)
    batches = batches_of(request.topics, "partitions")
    results: list[tuple[str, list[OffsetDeleteResponsePartition]]] = []
    for topics in chain([next(batches, [])], batches):  # a request for nothing fails as the group does
        results += await _delete_offsets(call, keys, topics)
    joined = [
        OffsetDeleteResponseTopic(name=TopicName(name), partitions=tuple(partitions))
        async for name, partitions in in_slices(join_topics(results))
    ]
    return OffsetDeleteResponse(error_code=ErrorCode.none, throttle_time=NO_TIME, topics=tuple(joined))


async def _delete_offsets(
    call: Call, keys: GroupKeys, topics: Sequence[Any]
) -> list[tuple[str, list[OffsetDeleteResponsePartition]]]:
    """Delete one part of a request; the answered topics."""
    missing = unknown_topics(call, topics)
    if missing:
        await refresh_again(call, missing)
    wanted: dict[str, set[int]] = {}
    for asked in topics:
        topic = call.context.catalog.get(call.org, asked.name)
        known = [
            one.partition_index
            for one in asked.partitions
            if topic and 0 <= one.partition_index < topic.partition_count
        ]
        if known:
            wanted.setdefault(asked.name, set()).update(known)
    call.refuse_if_gone()
    lease = call.context.broker_lease
    subscribed = await offsets.delete(
        call.store,
        keys,
        str(lease.node_id),
        {name: sorted(indexes) for name, indexes in wanted.items()},
        commit_times_ms(call.store, keys.group, lambda: lease.ends_ms, call.arrived_s),
    )

    def code_for(topic: str, partition: int) -> ErrorCode:
        if partition not in wanted.get(topic, ()):
            return ErrorCode.unknown_topic_or_partition
        return ErrorCode.group_subscribed_to_topic if topic in subscribed else ErrorCode.none

    return [
        (
            asked.name,
            [
                OffsetDeleteResponsePartition(
                    partition_index=one.partition_index, error_code=code_for(asked.name, one.partition_index)
                )
                for one in asked.partitions
            ],
        )
        for asked in topics
        if asked.partitions or call.context.catalog.get(call.org, asked.name) is None  # as in OffsetCommit
    ]
