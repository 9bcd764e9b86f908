"""What a tick's heartbeats of one share group do to it: the rules of KIP-932, without I/O and without a clock.

`decide` changes a working copy. First every request enters: it is fenced, or its member's record and subscription are
updated. Then the target assignment is computed, once for all of them, if the group epoch moved. At last each member is
given its target: share groups have no revocation, because partitions may have several members.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tidegate.errors import GroupIdNotFound, GroupMaxSizeReached, KafkaError, UnknownMemberId
from tidegate.groups.consumer.decisions import Decided
from tidegate.groups.consumer.errors import FencedMemberEpoch
from tidegate.groups.consumer.model import JOIN_EPOCH, LEAVE_EPOCH, NO_PARTITIONS, HeartbeatAnswer
from tidegate.groups.consumer.topics import Topics
from tidegate.groups.held_bytes import check_size
from tidegate.groups.share.assignor import assign_simple
from tidegate.groups.share.model import (
    ShareGroup,
    ShareGroupEvent,
    ShareHeartbeat,
    ShareMember,
)


def decide(group: ShareGroup, requests: Sequence[ShareHeartbeat], topics: Topics, size_max: int) -> list[Decided]:
    """Apply requests in order of arrival; the answer of each, or its error."""
    decided = [_enter_or_refuse(group, request, size_max) for request in requests]
    if any(isinstance(one, ShareHeartbeat) for one in decided):
        refresh_target(group, topics)
    return [_advance(group, one) if isinstance(one, ShareHeartbeat) else one for one in decided]


def expire(group: ShareGroup, member_ids: Iterable[str]) -> None:
    """Remove members whose session timed out. The records that they acquired stay locked until their locks expire."""
    for member_id in member_ids:
        if member_id in group.members:
            _remove_member(group, member_id, "member_expired", "session_timed_out")
        else:
            group.removed.add(member_id)  # a deadline without a member


def _remove_member(group: ShareGroup, member_id: str, kind: str, cause: str = "") -> None:
    member = group.remove(member_id)
    group.bump()
    group.events.append(ShareGroupEvent.of(kind, member, cause))
    if not group.members:  # a group without members has nothing to assign: its target follows its epoch at once
        group.target_epoch = group.epoch
        group.topics = {}


def _enter_or_refuse(group: ShareGroup, request: ShareHeartbeat, size_max: int) -> Decided | ShareHeartbeat:
    try:
        if request.member_epoch == JOIN_EPOCH:
            return _join(group, request, size_max)
        if not group.is_stored:
            raise GroupIdNotFound("there is no such share group")
        member = group.members.get(request.member_id)
        if member is None:
            raise UnknownMemberId(f"{request.member_id!r} is not a member of the group")
        if request.member_epoch == LEAVE_EPOCH:
            _remove_member(group, member.member_id, "member_left")
            return HeartbeatAnswer(member.member_id, LEAVE_EPOCH)
        if request.member_epoch not in (member.epoch, member.previous_epoch):
            raise FencedMemberEpoch(
                f"the member epoch is {member.epoch}, not {request.member_epoch}; the member must join again"
            )
        check_size(group, request, member)
        return _enter(group, member, request)
    except KafkaError as error:
        return error


def _join(group: ShareGroup, request: ShareHeartbeat, size_max: int) -> ShareHeartbeat:
    member = group.members.get(request.member_id)
    if member is not None:
        check_size(group, request, member)
        return _enter(group, member, request)
    if len(group.members) >= size_max:
        raise GroupMaxSizeReached(f"the group has {size_max} members already")
    check_size(group, request)
    if not group.is_stored:
        group.is_stored = True
        group.events.append(ShareGroupEvent("created", client_id=request.client_id, client_host=request.client_host))
    if group.epoch == 0:
        group.bump()  # a member's epoch is never 0
    group.events.append(ShareGroupEvent("member_joined", request.member_id, request.client_id, request.client_host))
    return _enter(group, ShareMember(request.member_id), request)


def _enter(group: ShareGroup, member: ShareMember, request: ShareHeartbeat) -> ShareHeartbeat:
    """Update the member's record; a changed subscription asks for a new target."""
    updated = replace(
        member,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        topics=member.topics if request.topics is None else request.topics,
        client_id=request.client_id,
        client_host=request.client_host,
        client_software=request.client_software or member.client_software,
    )
    if updated.topics != member.topics:
        group.bump()
        if member.member_id in group.members:
            group.events.append(ShareGroupEvent.of("subscription_changed", updated))
    group.put(updated)
    group.renewed.add(member.member_id)
    return request


def refresh_target(group: ShareGroup, topics: Topics) -> None:
    """Compare the subscribed topics with those of the target; compute it if needed."""
    names = {name for member in group.members.values() for name in member.topics}
    found = {name: topic for name in names if (topic := topics.find(name)) is not None}
    if group.topics_version != topics.version:
        group.topics_version = topics.version
        group.is_changed = True
    if found != group.topics and group.epoch == group.target_epoch:
        group.bump()
        group.events.append(ShareGroupEvent("rebalance_started", cause="topics_changed"))
    group.topics = found
    if group.epoch == group.target_epoch:
        return
    subscriptions = {
        member_id: frozenset(found[name][0] for name in member.topics if name in found)
        for member_id, member in group.members.items()
    }
    targets = assign_simple(subscriptions, group.targets, dict(found.values()))
    for member_id in group.members:
        group.set_target(member_id, targets[member_id])
    group.target_epoch = group.epoch
    group.is_changed = True
    group.events.append(ShareGroupEvent("assignment_stored", detail="simple"))


def _advance(group: ShareGroup, request: ShareHeartbeat) -> Decided:
    """Give the member its target. An answer that may have been lost is given again."""
    member = group.members.get(request.member_id)
    if member is None:  # a later request of the same tick removed it
        return UnknownMemberId(f"{request.member_id!r} left the group")
    target = group.targets.get(member.member_id, NO_PARTITIONS)
    has_news = request.member_epoch != member.epoch or target != member.assigned
    if member.epoch != group.target_epoch or target != member.assigned:
        member = replace(member, epoch=group.target_epoch, previous_epoch=member.epoch, assigned=target)
        group.put(member)
    return HeartbeatAnswer(member.member_id, member.epoch, target if has_news else None)
