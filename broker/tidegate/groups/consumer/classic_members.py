"""Members of a consumer group that joined by JoinGroup: how their requests are answered from the group's state.

While a group changes its protocol online, classic members live beside members of KIP-848. Nobody leads: JoinGroup is
answered at once, SyncGroup gets what the server assigned, and Heartbeat asks to rejoin when a member could advance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tidegate.errors import (
    FencedInstanceId,
    IllegalGeneration,
    InconsistentGroupProtocol,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from tidegate.groups.consumer.errors import OtherGroupType
from tidegate.groups.consumer.model import (
    NO_PARTITIONS,
    ClassicMember,
    ConsumerGroup,
    HeartbeatAnswer,
    HeartbeatRequest,
    Member,
    MemberState,
    Partitions,
)
from tidegate.groups.consumer.topics import Topics

_CONSUMER = "consumer"


@dataclass(frozen=True, slots=True)
class ClassicJoin:
    """A JoinGroup. `request` is what it means to the group, under the member id to use if it creates a member."""

    request: HeartbeatRequest
    is_new: bool
    """The client named no member id."""
    id_required: bool
    """A new dynamic member must join again with the id that it is given (KIP-394)."""
    protocol_type: str
    owned: Mapping[str, Sequence[int]]
    """Partitions by topic that the member says it owns."""


@dataclass(frozen=True, slots=True)
class ClassicCall:
    """A Heartbeat, or a SyncGroup. None where the version has no protocol."""

    member_id: str
    generation: int
    instance_id: str | None = None
    is_sync: bool = False
    protocol_type: str | None = None
    protocol: str | None = None


def check_join(group: ConsumerGroup, join: ClassicJoin) -> None:
    """Whether the group takes a join at all.

    Raises OtherGroupType, InconsistentGroupProtocol, MemberIdRequired, UnknownMemberId, FencedInstanceId.
    """
    if not group.members:
        raise OtherGroupType("the group has no members of KIP-848 any more")
    request = join.request
    assert request.classic is not None
    if join.protocol_type != _CONSUMER or not _is_shared(group, request.member_id, request.classic):
        raise InconsistentGroupProtocol("the classic members of the group share no such protocol")
    if request.instance_id is None:
        if join.is_new and join.id_required:
            raise MemberIdRequired
    elif not join.is_new:
        _check_instance(group, request.member_id, request.instance_id)


def _is_shared(group: ConsumerGroup, member_id: str, offered: ClassicMember) -> bool:
    """Whether all other classic members support one of the offered protocols."""
    others = [one.classic for one in group.members.values() if one.classic is not None and one.member_id != member_id]
    supported = Counter(name for one in others for name in {name for name, _ in one.protocols})
    return any(supported[name] == len(others) for name, _ in offered.protocols)


def _check_instance(group: ConsumerGroup, member_id: str, instance_id: str) -> None:
    owner = group.instances.get(instance_id)
    if owner is None:
        raise UnknownMemberId(f"no member has the instance id {instance_id!r}")
    if owner != member_id:
        raise FencedInstanceId(f"the instance id {instance_id!r} belongs to another member")


def owned_partitions(owned: Mapping[str, Sequence[int]], topics: Topics) -> Partitions:
    """The partitions by topic id; deleted topics are left out."""
    found = ((topics.find(name), indexes) for name, indexes in owned.items())
    return frozenset((topic[0], index) for topic, indexes in found if topic is not None for index in indexes)


def enter(group: ConsumerGroup, call: ClassicCall) -> None:
    """Check who asks, and renew the member's session.

    Raises UnknownMemberId, FencedInstanceId, IllegalGeneration, InconsistentGroupProtocol.
    """
    if call.instance_id is not None:
        _check_instance(group, call.member_id, call.instance_id)
    member = group.members.get(call.member_id)
    if member is None or member.classic is None:
        raise UnknownMemberId(f"{call.member_id!r} is not a classic member of the group")
    if call.generation != member.epoch:
        raise IllegalGeneration(f"the generation of the member is {member.epoch}, not {call.generation}")
    if call.protocol_type not in (None, _CONSUMER) or call.protocol not in (None, member.classic.protocol):
        raise InconsistentGroupProtocol(f"the protocol of the member is {member.classic.protocol!r}")
    group.renewed.add(member.member_id)


def answer(group: ConsumerGroup, call: ClassicCall) -> HeartbeatAnswer:
    """Answer a call that was entered. Raises RebalanceInProgress, UnknownMemberId if the member was removed since."""
    member = group.members.get(call.member_id)
    if member is None or member.classic is None:
        raise UnknownMemberId(f"{call.member_id!r} left the group")
    if call.is_sync:
        must_rejoin = member.epoch < group.epoch and member.state is not MemberState.UNREVOKED
    else:
        must_rejoin = (
            member.epoch < group.epoch
            or member.state is MemberState.UNREVOKED
            or (member.state is MemberState.UNRELEASED and not _waits(group, member))
        )
    if must_rejoin:
        group.rejoins[member.member_id] = member.rebalance_timeout_ms
        raise RebalanceInProgress
    group.revocations[member.member_id] = None
    return HeartbeatAnswer(member.member_id, member.epoch, frozenset(member.assigned), protocol=member.classic.protocol)


def _waits(group: ConsumerGroup, member: Member) -> bool:
    """Whether another member has not given up some partition yet that this member is to get."""
    wanted = group.targets.get(member.member_id, NO_PARTITIONS) - member.assigned.keys()
    return any(group.owners.get(partition, member.member_id) != member.member_id for partition in wanted)


def joined(group: ConsumerGroup, member: Member) -> HeartbeatAnswer:
    """The answer to JoinGroup after the member was reconciled; it must sync within its rebalance timeout."""
    assert member.classic is not None
    group.revocations[member.member_id] = member.rebalance_timeout_ms
    return HeartbeatAnswer(member.member_id, member.epoch, frozenset(member.assigned), protocol=member.classic.protocol)


def resolved(join: ClassicJoin, topics: Topics) -> HeartbeatRequest:
    """What the join means to the group."""
    return replace(join.request, owned=owned_partitions(join.owned, topics))
