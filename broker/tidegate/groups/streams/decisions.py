"""What a tick's heartbeats of one streams group do to it: the rules of KIP-1071, without I/O and without a clock.

`decide` changes a working copy. First every request enters: it is fenced, or its member's record is updated, and the
first member brings the topology. Then the topology is compared with the topics that exist, and the target is computed,
once for all requests, if the group epoch moved. At last each member is reconciled with its target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from tidegate.errors import GroupIdNotFound, GroupMaxSizeReached, InvalidRequest, KafkaError, UnknownMemberId
from tidegate.groups.consumer.errors import UnreleasedInstanceId
from tidegate.groups.consumer.membership import (
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
    LEAVE_EPOCH,
    NO_PARTITIONS,
    STATIC_LEAVE_EPOCH,
    UNCHANGED_MS,
    GroupEvent,
    MemberState,
)
from tidegate.groups.consumer.topics import Topics
from tidegate.groups.held_bytes import check_size
from tidegate.groups.streams.assignor import STICKY, TaskRunner, assign_sticky
from tidegate.groups.streams.model import (
    NO_TASKS,
    EndpointPartitions,
    StreamsAnswer,
    StreamsGroup,
    StreamsHeartbeat,
    StreamsMember,
    Tasks,
)
from tidegate.groups.streams.reconciliation import reconcile
from tidegate.groups.streams.topology import Configured, Status, StatusCode, Topology, configure

StreamsDecided = StreamsAnswer | KafkaError


@dataclass(frozen=True, slots=True)
class _Entered:
    """An accepted heartbeat before its member is reconciled."""

    request: StreamsHeartbeat
    before: Tasks


def decide(
    group: StreamsGroup, requests: Sequence[StreamsHeartbeat], topics: Topics, size_max: int
) -> list[StreamsDecided]:
    """Apply requests in order of arrival; the answer of each, or its error."""
    decided = [_enter_or_refuse(group, request, size_max) for request in requests]
    if any(isinstance(one, _Entered) for one in decided):
        refresh_target(group, topics)
    reconciled = [_reconcile(group, one) if isinstance(one, _Entered) else one for one in decided]
    endpoints = cache(partial(_endpoints, group))
    return [
        _with_endpoints(group, one, request.endpoint_epoch, endpoints) if isinstance(one, StreamsAnswer) else one
        for one, request in zip(reconciled, requests, strict=True)
    ]


def expire(group: StreamsGroup, expired: Iterable[Expired]) -> None:
    """Fence members whose session or revocation timed out."""
    for one in expired:
        if one.member_id in group.members:
            _remove_member(group, one.member_id, "member_expired", one.cause)
        else:
            group.removed.add(one.member_id)  # a deadline without a member


def remove(group: StreamsGroup, removal: Removal) -> StreamsDecided:
    """Remove a member for LeaveGroup."""
    try:
        member_id = removed_member_id(group, removal)
    except KafkaError as error:
        return error
    _remove_member(group, member_id, removal.kind, reason=removal.reason, detail=removal.detail)
    return StreamsAnswer(member_id, LEAVE_EPOCH)


def _remove_member(
    group: StreamsGroup, member_id: str, kind: str, cause: str = "", reason: str = "", detail: str = ""
) -> None:
    remove_member(group, member_id, kind, cause, reason, detail)
    if not group.members:
        group.shutdown_by = ""


# -- entering


def _enter_or_refuse(group: StreamsGroup, request: StreamsHeartbeat, size_max: int) -> StreamsDecided | _Entered:
    try:
        if request.topology is not None:
            check_topology(group, request.topology)
        if request.is_join:
            return _join(group, request, size_max)
        if not group.is_streams:
            raise GroupIdNotFound("there is no such streams group")
        member = known_member(group, request.member_id, request.instance_id)
        if request.member_epoch == LEAVE_EPOCH:
            _remove_member(group, member.member_id, "member_left")
            return StreamsAnswer(member.member_id, LEAVE_EPOCH)
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            leave_for_a_while(group, replace(member, standby_revoking=NO_PARTITIONS))
            return StreamsAnswer(member.member_id, STATIC_LEAVE_EPOCH)
        owns_only_assigned = request.owned is not None and request.owned <= member.tasks
        check_epoch(member, request.member_epoch, owns_only_assigned=owns_only_assigned)
        check_size(group, request, member)
        return _enter(group, member, request)
    except KafkaError as error:
        return error


def check_topology(group: StreamsGroup, topology: Topology) -> None:
    """Refuse a topology that would replace that of a group with members. Raises InvalidRequest."""
    if group.topology is None or not group.members or topology.epoch < group.topology.epoch:
        return
    if topology != group.topology:
        raise InvalidRequest("the group's members have another topology; it can change when they all have left")


def _join(group: StreamsGroup, request: StreamsHeartbeat, size_max: int) -> _Entered:
    member = group.members.get(request.member_id)
    if request.instance_id is not None:
        owner = group.instances.get(request.instance_id)
        if owner is not None:
            return _replace_static(group, group.members[owner], request)
    if member is not None:
        check_size(group, request, member)
        return _enter(group, member, request)
    if len(group.members) >= size_max:
        raise GroupMaxSizeReached(f"the group has {size_max} members already")
    check_size(group, request)
    who = (request.member_id, request.instance_id or "", request.client_id, request.client_host)
    if not group.is_stored:
        group.is_stored = True
        group.events.append(GroupEvent("created", client_id=request.client_id, client_host=request.client_host))
    group.is_streams = True
    if group.epoch == 0:
        group.bump()  # a member's epoch is never 0
    group.events.append(GroupEvent("member_joined", *who))
    return _enter(group, StreamsMember(request.member_id, instance_id=request.instance_id), request)


def _replace_static(group: StreamsGroup, away: StreamsMember, request: StreamsHeartbeat) -> _Entered:
    """A static member returns, as the same or another member id: it inherits everything from the one that is away."""
    if not away.is_away:
        raise UnreleasedInstanceId(f"the instance id {request.instance_id!r} is used by a member that has not left")
    check_size(group, request, away)
    target = group.targets.get(away.member_id, NO_TASKS)
    group.remove(away.member_id)
    returned = replace(
        away,
        member_id=request.member_id,
        process_id=away.process_id if request.process_id is None else request.process_id,
        epoch=0,
        previous_epoch=0,
        state=MemberState.STABLE,
    )
    group.put(returned)
    group.set_target(returned.member_id, target)
    group.events.append(GroupEvent.of("member_replaced", returned, detail=away.member_id))
    return _enter(group, returned, request)


def _enter(group: StreamsGroup, member: StreamsMember, request: StreamsHeartbeat) -> _Entered:
    """Update the member's record; what the assignor considers asks for a new target if it changed."""
    is_new = member.member_id not in group.members
    topology = request.topology
    if topology is not None and (group.topology is None or (is_new and not group.members)):
        group.topology, group.is_changed = topology, True
    updated = replace(
        member,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms
            if request.rebalance_timeout_ms == UNCHANGED_MS
            else max(request.rebalance_timeout_ms, 0)
        ),
        topology_epoch=member.topology_epoch if topology is None else topology.epoch,
        process_id=member.process_id if request.process_id is None else request.process_id,
        endpoint=member.endpoint if request.endpoint is None else request.endpoint,
        client_tags=member.client_tags if request.client_tags is None else request.client_tags,
        client_id=request.client_id,
        client_host=request.client_host,
        client_software=request.client_software or member.client_software,
    )
    if is_new or (updated.process_id, updated.topology_epoch) != (member.process_id, member.topology_epoch):
        group.bump()
    group.put(updated)
    group.renewed.add(member.member_id)
    if request.shutdown and not group.shutdown_by:
        group.shutdown_by, group.is_changed = member.member_id, True
        group.events.append(GroupEvent.of("shutdown_requested", updated))
    return _Entered(request, NO_TASKS if is_new else member.tasks)


# -- the target


def refresh_target(group: StreamsGroup, topics: Topics) -> None:
    """Compare the topology with the topics that there are; compute the target if needed."""
    topology = group.topology
    if topology is None:
        return
    found = {name: topic for name in topology.topics if (topic := topics.find(name)) is not None}
    group.configured = configure(topology, topics)
    is_ready = group.configured.status is None
    if group.topics_version != topics.version:
        group.topics_version, group.is_changed = topics.version, True
    inputs = (found, is_ready, group.standby_replicas)
    if inputs != (group.topics, group.is_ready, group.assigned_replicas):
        if group.epoch == group.target_epoch:
            group.bump()
            group.events.append(GroupEvent("rebalance_started", cause="topics_or_configs_changed"))
        group.topics, group.is_ready, group.assigned_replicas = inputs
        for dirty in (group.dirty, group.dirty_targets):  # they have the partitions of tasks by topic id
            dirty.update(group.members)
        group.is_changed = True
    if group.epoch != group.target_epoch:
        _assign(group, topology, group.configured)


def _assign(group: StreamsGroup, topology: Topology, configured: Configured) -> None:
    runners = [
        TaskRunner(member_id, member.process_id, group.targets.get(member_id, NO_TASKS))
        for member_id, member in group.members.items()
        if not group.is_stale(member)
    ]
    tasks = configured.tasks if group.is_ready else {}
    stateful = [one.subtopology_id for one in topology.subtopologies if one.changelogs]
    targets = assign_sticky(runners, tasks, stateful, group.standby_replicas)
    for member_id in group.members:
        group.set_target(member_id, targets.get(member_id, NO_TASKS))
    group.target_epoch = group.epoch
    group.is_changed = True
    group.events.append(GroupEvent("assignment_stored", detail=STICKY))


# -- reconciling


def _reconcile(group: StreamsGroup, entered: _Entered) -> StreamsDecided:
    request = entered.request
    member = group.members.get(request.member_id)
    if member is None:  # a later request of the same tick removed it
        return UnknownMemberId(f"{request.member_id!r} left the group")
    owned = NO_TASKS if request.is_join else request.owned
    target = group.targets.get(member.member_id, NO_TASKS)
    others = [one for member_id, one in group.members.items() if member_id != member.member_id]
    advanced = reconcile(member, target, group.target_epoch, owned, group.owners, others)
    group.put(advanced)
    refresh_revocation(group, member, advanced, member.revoking_tasks != advanced.revoking_tasks)
    lost_answer = request.owned is not None and request.owned != advanced.tasks
    has_news = request.is_join or lost_answer or advanced.tasks != entered.before
    if has_news and advanced.endpoint is not None:
        group.endpoint_epoch, group.is_changed = group.endpoint_epoch + 1, True
    return StreamsAnswer(
        member.member_id, advanced.epoch, advanced.tasks if has_news else None, tuple(_statuses(group, advanced))
    )


def _statuses(group: StreamsGroup, member: StreamsMember) -> Iterable[Status]:
    if group.topology is not None and group.is_stale(member):
        detail = f"The member's topology epoch {member.topology_epoch} is behind the group's {group.topology.epoch}."
        yield StatusCode.STALE_TOPOLOGY, detail
    if group.configured.status is not None:
        yield group.configured.status
    if group.shutdown_by:
        yield StatusCode.SHUTDOWN_APPLICATION, f"The member {group.shutdown_by} asked all members to shut down."


def _with_endpoints(
    group: StreamsGroup,
    answer: StreamsAnswer,
    known_epoch: int,
    endpoints: Callable[[], tuple[EndpointPartitions, ...]],
) -> StreamsAnswer:
    """Add what processes with an endpoint have, if the member does not know the newest."""
    if answer.member_epoch < 0:
        return answer
    newest = None if group.endpoint_epoch == known_epoch else endpoints()
    return replace(answer, endpoint_epoch=group.endpoint_epoch, endpoints=newest)


def _endpoints(group: StreamsGroup) -> tuple[EndpointPartitions, ...]:
    return tuple(
        EndpointPartitions(one.endpoint, group.partitions_of(one.assigned), group.partitions_of(one.standby))
        for _, one in sorted(group.members.items())
        if one.endpoint is not None
    )
