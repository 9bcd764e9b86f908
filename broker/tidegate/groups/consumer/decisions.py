"""What a tick's heartbeats of one group do to it: the rules of KIP-848, without I/O and without a clock.

`decide` changes a working copy. First every request enters: it is fenced, or its member's record and subscription are
updated. Then the target assignment is computed, once for all of them, if the group epoch moved. At last each member is
reconciled with its target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tidegate.errors import (
    GroupIdNotFound,
    GroupMaxSizeReached,
    KafkaError,
    UnknownMemberId,
)
from tidegate.groups.consumer import classic_members, rollouts
from tidegate.groups.consumer.assignors import ASSIGNORS, UNIFORM, Subscriber
from tidegate.groups.consumer.classic_members import ClassicCall, ClassicJoin
from tidegate.groups.consumer.errors import UnreleasedInstanceId
from tidegate.groups.consumer.membership import (
    REVOCATION_TIMED_OUT,
    Expired,
    Removal,
    check_epoch,
    known_member,
    leave_for_a_while,
    refresh_revocation,
    remove_member,
    removed_member_id,
)
from tidegate.groups.consumer.model import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NO_PARTITIONS,
    STATIC_LEAVE_EPOCH,
    UNCHANGED_MS,
    ConsumerGroup,
    GroupEvent,
    HeartbeatAnswer,
    HeartbeatRequest,
    Member,
    MemberState,
    Partitions,
)
from tidegate.groups.consumer.reconciliation import reconcile
from tidegate.groups.consumer.topics import Topics
from tidegate.groups.held_bytes import check_size

Decided = HeartbeatAnswer | KafkaError
Request = HeartbeatRequest | ClassicJoin | ClassicCall


@dataclass(frozen=True, slots=True)
class _Entered:
    """An accepted heartbeat before its member is reconciled."""

    request: HeartbeatRequest
    owned: Partitions | None
    assigned_before: Partitions
    has_resubscribed: bool


def decide(group: ConsumerGroup, requests: Sequence[Request], topics: Topics, size_max: int) -> list[Decided]:
    """Apply requests in order of arrival; the answer of each, or its error."""
    decided = [_enter_or_refuse(group, request, topics, size_max) for request in requests]
    if any(isinstance(one, _Entered | ClassicCall) for one in decided):
        refresh_target(group, topics)
    return [_answer(group, one, topics) for one in decided]


def _answer(group: ConsumerGroup, entered: Decided | _Entered | ClassicCall, topics: Topics) -> Decided:
    if isinstance(entered, _Entered):
        return _reconcile(group, entered, topics)
    if not isinstance(entered, ClassicCall):
        return entered
    try:
        return classic_members.answer(group, entered)
    except KafkaError as error:
        return error


def expire(group: ConsumerGroup, expired: Iterable[Expired]) -> None:
    """Fence members whose session or revocation timed out."""
    for one in expired:
        if one.member_id in group.members:
            cause = one.cause
            if group.members[one.member_id].classic is not None and cause == REVOCATION_TIMED_OUT:
                cause = "did_not_rejoin"
            elif group.members[one.member_id].awaits_successor:
                cause = "no_successor"
            remove_member(group, one.member_id, "member_expired", cause)
        else:
            group.removed.add(one.member_id)  # a deadline without a member


def remove(group: ConsumerGroup, removal: Removal) -> Decided:
    """Remove a member for LeaveGroup."""
    try:
        member_id = removed_member_id(group, removal)
    except KafkaError as error:
        return error
    remove_member(group, member_id, removal.kind, reason=removal.reason, detail=removal.detail)
    return HeartbeatAnswer(member_id, LEAVE_EPOCH)


# -- entering


def _enter_or_refuse(
    group: ConsumerGroup, request: Request, topics: Topics, size_max: int
) -> Decided | _Entered | ClassicCall:
    try:
        if isinstance(request, ClassicCall):
            classic_members.enter(group, request)
            return request
        if isinstance(request, ClassicJoin):
            classic_members.check_join(group, request)
            request = classic_members.resolved(request, topics)
        if request.member_epoch == JOIN_EPOCH:
            return _join(group, request, size_max)
        member = _known(group, request)
        if request.member_epoch == LEAVE_EPOCH:
            rollouts.leave(group, member)
            return HeartbeatAnswer(member.member_id, LEAVE_EPOCH)
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            leave_for_a_while(group, member)
            return HeartbeatAnswer(member.member_id, STATIC_LEAVE_EPOCH)
        owned = request.owned
        owns_only_assigned = owned is not None and owned <= member.assigned.keys()
        check_epoch(member, request.member_epoch, owns_only_assigned=owns_only_assigned)
        check_size(group, request, member)
        return _enter(group, member, request, owned)
    except KafkaError as error:
        return error


def _known(group: ConsumerGroup, request: HeartbeatRequest) -> Member:
    """The member that a request names."""
    if not group.is_consumer and not group.is_lost:
        raise GroupIdNotFound("there is no such consumer group")
    return known_member(group, request.member_id, request.instance_id)


def _join(group: ConsumerGroup, request: HeartbeatRequest, size_max: int) -> _Entered:
    member = group.members.get(request.member_id)
    if request.instance_id is not None:
        owner = group.instances.get(request.instance_id)
        if owner is not None and owner != request.member_id:
            return _replace_static(group, group.members[owner], request)
    if member is not None and member.is_away:
        return (_succeed if member.awaits_successor else _replace_static)(group, member, request)
    owned = NO_PARTITIONS if request.classic is None else request.owned
    if member is not None:
        check_size(group, request, member)
        return _enter(group, member, request, owned)
    predecessor = rollouts.predecessor(group, request)
    if predecessor is not None:
        return _succeed(group, predecessor, request)
    if len(group.members) >= size_max:
        raise GroupMaxSizeReached(f"the group has {size_max} members already")
    check_size(group, request)
    if not group.is_stored:
        group.is_stored = True
        group.events.append(GroupEvent("created", client_id=request.client_id, client_host=request.client_host))
    group.is_consumer = True
    if group.epoch == 0:
        group.bump()  # a member's epoch is never 0
    member = Member(request.member_id, instance_id=request.instance_id)
    group.events.append(
        GroupEvent(
            "member_joined",
            request.member_id,
            request.instance_id or "",
            request.client_id,
            request.client_host,
        )
    )
    return _enter(group, member, request, owned)


def _replace_static(group: ConsumerGroup, away: Member, request: HeartbeatRequest) -> _Entered:
    """A static member returns, as the same or another member id: it inherits everything from the one that is away.

    A change of the protocol replaces a member that has not left, as a classic restart does.
    """
    if not away.is_away and away.classic is None and request.classic is None:
        raise UnreleasedInstanceId(f"the instance id {request.instance_id!r} is used by a member that has not left")
    return _take_over(group, away, request)


def _succeed(group: ConsumerGroup, predecessor: Member, request: HeartbeatRequest) -> _Entered:
    """A new member inherits the assignment of one that left, and nothing that its own request does not bring."""
    unknown = replace(predecessor, rack_id=None, assignor=None, client_software="")
    subscribed = replace(request, topics=request.topics or frozenset(), regex=request.regex or "")
    return _take_over(group, unknown, subscribed)


def _take_over(group: ConsumerGroup, away: Member, request: HeartbeatRequest) -> _Entered:
    """A member inherits the assignment of one that is away."""
    check_size(group, request, away)
    target = group.targets.get(away.member_id, NO_PARTITIONS)
    group.remove(away.member_id)
    group.targets.pop(away.member_id, None)
    returned = replace(
        away, member_id=request.member_id, epoch=0, previous_epoch=0, state=MemberState.STABLE, revoking=NO_PARTITIONS
    )
    group.put(returned)
    group.set_target(returned.member_id, target)
    group.events.append(GroupEvent.of("member_replaced", returned, detail=away.member_id))
    return _enter(group, returned, request, NO_PARTITIONS)


def _enter(group: ConsumerGroup, member: Member, request: HeartbeatRequest, owned: Partitions | None) -> _Entered:
    """Update the member's record; a changed subscription asks for a new target."""
    is_new = member.member_id not in group.members
    updated = replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms
            if request.rebalance_timeout_ms == UNCHANGED_MS
            else max(request.rebalance_timeout_ms, 0)
        ),
        assignor=member.assignor if request.assignor is None else request.assignor,
        topics=member.topics if request.topics is None else request.topics,
        regex=member.regex if request.regex is None else request.regex,
        client_id=request.client_id,
        client_host=request.client_host,
        client_software=request.client_software or member.client_software,
        classic=request.classic,
        principal=request.principal if request.regex or (request.regex is None and member.regex) else "",
    )
    has_resubscribed = (updated.topics, updated.regex) != (member.topics, member.regex)
    if has_resubscribed:
        group.bump()
        if not is_new:
            group.events.append(GroupEvent.of("subscription_changed", updated))
    group.put(updated)
    group.renewed.add(member.member_id)
    return _Entered(request, owned, frozenset(member.assigned), has_resubscribed)


# -- the target


def refresh_target(group: ConsumerGroup, topics: Topics) -> None:
    """Compare the subscribed topics and the preferred assignor with those of the target; compute it if needed."""
    subscribed = {member_id: _subscribed(member, topics) for member_id, member in group.members.items()}
    found = {name: topic for name in set().union(*subscribed.values()) if (topic := topics.find(name)) is not None}
    assignor = preferred_assignor(group.members.values())
    if group.topics_version != topics.version:
        group.topics_version = topics.version
        group.is_changed = True
    if (found != group.topics or assignor != group.assignor) and group.epoch == group.target_epoch:
        group.bump()
        group.events.append(GroupEvent("rebalance_started", cause="topics_or_assignor_changed"))
    group.topics, group.assignor = found, assignor
    if group.epoch == group.target_epoch or not group.may_assign:
        return
    subscribers = [
        Subscriber(
            member_id,
            member.instance_id,
            frozenset(found[name][0] for name in subscribed[member_id] if name in found),
            group.targets.get(member_id, NO_PARTITIONS),
        )
        for member_id, member in group.members.items()
    ]
    targets = ASSIGNORS[assignor](subscribers, dict(found.values()))
    for member_id in group.members:
        group.set_target(member_id, targets[member_id])
    group.target_epoch = group.epoch
    group.is_changed = True
    group.events.append(GroupEvent("assignment_stored", detail=assignor))


def _subscribed(member: Member, topics: Topics) -> frozenset[str]:
    if not member.regex:
        return member.topics
    return member.topics.union(topics.matching(member.regex, member.principal, member.client_host.removeprefix("/")))


def preferred_assignor(members: Iterable[Member]) -> str:
    """The assignor that most members ask for; the default breaks a tie, and is taken if nobody asks."""
    votes = Counter(member.assignor for member in members if member.assignor)
    order = list(ASSIGNORS)
    return min(votes, key=lambda name: (-votes[name], order.index(name)), default=UNIFORM)


# -- reconciling


def _reconcile(group: ConsumerGroup, entered: _Entered, topics: Topics) -> Decided:
    member = group.members.get(entered.request.member_id)
    if member is None:  # a later request of the same tick removed it
        return UnknownMemberId(f"{entered.request.member_id!r} left the group")
    target, unsubscribed = group.targets.get(member.member_id, NO_PARTITIONS), NO_PARTITIONS
    if entered.has_resubscribed or group.target_epoch < group.epoch:  # the target may be of an older subscription
        subscribed = {group.topics[name][0] for name in _subscribed(member, topics) if name in group.topics}
        target = frozenset(one for one in target if one[0] in subscribed)
        if entered.has_resubscribed:
            unsubscribed = frozenset(one for one in member.assigned if one[0] not in subscribed)
    advanced = reconcile(member, target, group.target_epoch, entered.owned, group.owners, unsubscribed)
    group.put(advanced)
    refresh_revocation(group, member, advanced, member.revoking != advanced.revoking)
    if advanced.classic is not None:
        return classic_members.joined(group, advanced)
    assigned = frozenset(advanced.assigned)
    news = entered.request.is_full or assigned != entered.assigned_before
    return HeartbeatAnswer(member.member_id, advanced.epoch, assigned if news else None)
