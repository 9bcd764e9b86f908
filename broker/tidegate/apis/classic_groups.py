"""JoinGroup, SyncGroup and LeaveGroup (they may wait for other members), Heartbeat (inline: no task and no future)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog
from kio.schema.errors import ErrorCode
from kio.schema.leave_group.v5.response import LeaveGroupResponse, MemberResponse

from tidegate.apis import classic_members, group_creation
from tidegate.apis.call import Call, Repeat
from tidegate.apis.consumer_groups import leave_consumer_group
from tidegate.apis.leader_assignments import describe_owners, read_assignments
from tidegate.apis.mirroring import note_assigned
from tidegate.apis.record_groups import note_owners
from tidegate.apis.registry import api, inline_api
from tidegate.apis.slices import in_slices
from tidegate.errors import InconsistentGroupProtocol, InvalidGroupId
from tidegate.groups import classic
from tidegate.groups.consumer.errors import OTHER_TYPE, OtherGroupType
from tidegate.groups.delayed_heartbeats import DelayedHeartbeat, supports_delayed_heartbeats
from tidegate.groups.model import Joined, JoinRefused, JoinRequest, Leaving, MemberRef, SyncRequest
from tidegate.protocol import error_responses, group_writers
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.consumer_blobs import TOPICS_MAX, subscribed_topics, topic_count
from tidegate.protocol.error_shapes import NO_TIME, at_top
from tidegate.store.keys import GroupKeys
from tidegate.telemetry.metrics import metrics

if TYPE_CHECKING:
    from kio.schema.heartbeat.v4.request import HeartbeatRequest
    from kio.schema.join_group.v9.request import JoinGroupRequest
    from kio.schema.leave_group.v5.request import LeaveGroupRequest
    from kio.schema.sync_group.v5.request import SyncGroupRequest

logger = structlog.get_logger()

_MS: Final = timedelta(milliseconds=1)
_CONSUMER: Final = "consumer"
_HEARTBEATS: Final = metrics.apis[ApiKey.HEARTBEAT]
_JOINS: Final = metrics.apis[ApiKey.JOIN_GROUP]
_LEAVES: Final = metrics.apis[ApiKey.LEAVE_GROUP]


@api(
    ApiKey.JOIN_GROUP,
    first=0,
    last=9,
    cancelled=True,
    prepared=True,
    decoded_bytes_max=4 << 20,  # metadata is limited to 1 MiB a member: `groups.classic`
    error=error_responses.join_group,
)
async def join_group(call: Call, request: JoinGroupRequest) -> list[bytes]:
    """Join or rejoin a group and wait for the end of the join phase.

    v0: the session timeout is also the rebalance timeout. v4: new members rejoin with the id that they are given
    (KIP-394). v5: static members (KIP-345). v7: protocol type (KIP-559). v8: reason (KIP-800). v9: skip_assignment
    (KIP-814).
    """
    if not request.group_id:
        raise InvalidGroupId
    keys = call.store.group_keys(call.org, request.group_id)
    if isinstance(call.client.delayed, DelayedHeartbeat):
        call.client.delayed.rejoins(request.session_timeout.total_seconds())
    asked = _join_request(call, request)
    if not asked.member_id and group_creation.has_limit(call):
        await group_creation.admit(call, keys)
    try:
        try:
            joined = await classic.join(call.store, call.context.waits, keys, asked)
        except OtherGroupType:
            joined = await classic_members.join(call, keys, asked)
    except JoinRefused as refused:
        code = refused.error.code.value
        _JOINS.error(code)
        return group_writers.join_group(call.version, code, -1, None, None, "", refused.member_id, ())
    if request.group_instance_id is not None:  # it may have replaced a member, which must not be answered as before
        call.context.heartbeats.snapshots.discard(keys)
    if joined.members and not joined.skip_assignment and joined.protocol_type == _CONSUMER:
        _note_subscribed(call, keys, joined)
    return group_writers.join_group(
        call.version,
        ErrorCode.none.value,
        joined.generation,
        joined.protocol_type or None,
        joined.protocol or None,
        joined.leader,
        joined.member_id,
        [(member.member_id, member.instance_id, member.metadata) for member in joined.members],
        joined.skip_assignment,
    )


def _join_request(call: Call, request: JoinGroupRequest) -> JoinRequest:
    return JoinRequest(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=call.client_id or "",
        client_host=f"/{call.client.host}",
        session_timeout_ms=request.session_timeout // _MS,
        rebalance_timeout_ms=request.rebalance_timeout // _MS,
        protocol_type=request.protocol_type,
        protocols=[(protocol.name, protocol.metadata) for protocol in request.protocols],
        id_required=call.version >= 4,
        static_leader_list=call.version >= 9,
        reason=request.reason or "",
        client_software=call.client.called_itself,
        arrived_s=call.arrived_s,
    )


def _note_subscribed(call: Call, keys: GroupKeys, joined: Joined) -> None:
    """Record the generation's subscribed topics, which protects their offsets; without the record all are protected."""
    topics: set[str] | None = set()
    subscriptions = {member.metadata for member in joined.members}  # most members have the same subscription
    readable = sum(map(topic_count, subscriptions)) <= TOPICS_MAX
    for metadata in subscriptions:
        subscribed = subscribed_topics(metadata) if readable else None
        if subscribed is None:
            logger.warning("subscription_unreadable", group=keys.ref)
            topics = None
            break
        assert topics is not None
        topics |= subscribed
    classic.note_subscribed(call.store, keys, joined.generation, topics)


@api(
    ApiKey.SYNC_GROUP,
    first=0,
    last=5,
    safe_late=True,
    cancelled=True,
    prepared=True,
    error=at_top(protocol_type=None, protocol_name=None, assignment=b""),
)
async def sync_group(call: Call, request: SyncGroupRequest) -> bytes:
    """Store the leader's assignments, or wait for the member's own. v3: static members. v5: protocol (KIP-559)."""
    if call.version >= 5 and (request.protocol_type is None or request.protocol_name is None):
        raise InconsistentGroupProtocol
    if not request.group_id:
        raise InvalidGroupId
    keys = call.store.group_keys(call.org, request.group_id)
    assignments = await read_assignments(request.assignments) if request.assignments else ()
    entered = SyncRequest(
        MemberRef(request.member_id, request.generation_id, request.group_instance_id),
        request.protocol_type,
        request.protocol_name,
        assignments,
        await describe_owners(assignments) if assignments and request.protocol_type in (_CONSUMER, None) else "",
    )
    if assignments and call.context.catalog.record_topics:
        await note_owners(call, keys, entered)
    try:
        synced = await classic.sync(call.context.waits, keys, entered)
    except OtherGroupType:
        synced = await classic_members.sync(call, keys, entered)
    note_assigned(call, keys, entered, synced)
    return group_writers.sync_group(
        call.version,
        ErrorCode.none.value,
        synced.protocol_type or None,
        synced.protocol or None,
        synced.assignment,
    )


@inline_api(ApiKey.HEARTBEAT, first=0, last=4, safe_late=True, prepared=True, error=at_top())
def heartbeat(call: Call, request: HeartbeatRequest) -> None:
    """Renew a member's session, and report a rebalance to it (KIP-62). v3: static members (KIP-345)."""
    if not request.group_id:
        raise InvalidGroupId
    version = call.version
    keys = call.store.group_keys(call.org, request.group_id)
    member_ref = MemberRef(request.member_id, request.generation_id, request.group_instance_id)
    answer = partial(_answer_heartbeat, call, keys, member_ref)
    delayed = _delayed(call)
    if delayed is not None:
        delayed.heartbeat(keys, member_ref, answer)
        return
    heartbeats = call.context.heartbeats
    member = heartbeats.answer(keys, member_ref, answer)
    if member is not None:
        call.client.repeat = Repeat(call, group_writers.heartbeat(version, 0), partial(heartbeats.renew, member))


def _answer_heartbeat(call: Call, keys: GroupKeys, member_ref: MemberRef, code: int) -> None:
    if code == OTHER_TYPE:
        classic_members.heartbeat(call, keys, member_ref, partial(_answer_heartbeat, call, keys, member_ref))
        return
    if code:
        _HEARTBEATS.error(code)
    call.reply(group_writers.heartbeat(call.version, code))


def _delayed(call: Call) -> DelayedHeartbeat | None:
    """The connection's delayed heartbeat; delays need a supported client and a connection without fetches."""
    client, delayed_heartbeats = call.client, call.context.delayed_heartbeats
    if (
        delayed_heartbeats is None
        or client.fetched
        or call.draining.is_set()
        or not supports_delayed_heartbeats(client.software_name, call.client_id)
    ):
        return None
    delayed = client.delayed
    if not isinstance(delayed, DelayedHeartbeat):
        delayed = client.delayed = DelayedHeartbeat(delayed_heartbeats)
    return delayed


@api(ApiKey.LEAVE_GROUP, first=0, last=5, prepared=True, error=at_top(members=()))
async def leave_group(call: Call, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Remove members, at their own or an administrator's request, with one rebalance. v3: several members (KIP-345)."""
    if not request.group_id:
        raise InvalidGroupId
    keys = call.store.group_keys(call.org, request.group_id)
    leaving = [
        Leaving(one.member_id, one.group_instance_id, one.reason or "") async for one in in_slices(request.members)
    ]
    broker, who, host = call.context.waits.broker(), call.client_id or "", f"/{call.client.host}"
    lease_ends_ms = call.context.broker_lease.ends_ms
    codes = await classic.leave(
        call.store, keys, leaving, broker, client_id=who, client_host=host, lease_ends_ms=lease_ends_ms
    )
    call.context.heartbeats.snapshots.discard(keys)  # ahead of the message about it
    if set(codes) == {ErrorCode.unknown_member_id.value}:
        codes = await leave_consumer_group(call, keys, leaving)
    for code in set(codes) - {ErrorCode.none.value}:
        _LEAVES.error(code)
    return LeaveGroupResponse(
        throttle_time=NO_TIME, error_code=ErrorCode.none, members=await _left(request.members, codes)
    )


async def _left(members: Sequence[Any], codes: Sequence[int]) -> tuple[MemberResponse, ...]:
    left = [
        MemberResponse(
            member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=ErrorCode(code)
        )
        async for member, code in in_slices(zip(members, codes, strict=True))
    ]
    return tuple(left)
