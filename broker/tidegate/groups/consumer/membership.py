"""Members of groups with epochs, whatever they are assigned: who is fenced, leaves, is removed (KIP-848, KIP-1071)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from tidegate.errors import FencedInstanceId, UnknownMemberId
from tidegate.groups.consumer.errors import FencedMemberEpoch
from tidegate.groups.consumer.model import (
    NO_PARTITIONS,
    STATIC_LEAVE_EPOCH,
    EpochGroup,
    EpochMember,
    GroupEvent,
    M,
    MemberState,
)

REVOCATION_TIMED_OUT: Final = "revocation_timed_out"


@dataclass(frozen=True, slots=True)
class Expired:
    """A member whose deadline has passed, and which deadline."""

    member_id: str
    cause: str


@dataclass(frozen=True, slots=True)
class Removal:
    """A member that LeaveGroup removes: by its id, or by its instance id."""

    member_id: str
    instance_id: str | None
    kind: str
    reason: str = ""
    detail: str = ""


def removed_member_id(group: EpochGroup[Any, Any], removal: Removal) -> str:
    """The member that is to be removed. Raises UnknownMemberId, FencedInstanceId."""
    member_id = removal.member_id
    if removal.instance_id is not None:
        owner = group.instances.get(removal.instance_id)
        if owner is None:
            raise UnknownMemberId
        if member_id not in ("", owner):
            raise FencedInstanceId
        member_id = owner
    if member_id not in group.members:
        raise UnknownMemberId
    return member_id


def remove_member(
    group: EpochGroup[Any, Any], member_id: str, kind: str, cause: str = "", reason: str = "", detail: str = ""
) -> None:
    """Remove a member: the rest of the group needs a new target."""
    member = group.remove(member_id)
    group.bump()
    group.events.append(GroupEvent.of(kind, member, cause, reason, detail))
    if not group.members:  # a group without members has nothing to assign: its target follows its epoch at once
        group.target_epoch = group.epoch
        group.topics = {}


def known_member(group: EpochGroup[M, Any], member_id: str, instance_id: str | None) -> M:
    """The member that a request names; the instance is checked before the id.

    Raises UnknownMemberId, FencedInstanceId.
    """
    if instance_id is not None:
        owner = group.instances.get(instance_id)
        if owner is None:
            raise UnknownMemberId(f"no member has the instance id {instance_id!r}")
        if owner != member_id:
            raise FencedInstanceId(f"the instance id {instance_id!r} belongs to another member")
    member = group.members.get(member_id)
    if member is None or member.awaits_successor:
        raise UnknownMemberId(f"{member_id!r} is not a member of the group")
    return member


def check_epoch(member: EpochMember, member_epoch: int, *, owns_only_assigned: bool) -> None:
    """Accept the member's epoch; the previous one too if the member owns nothing that it was not given since.

    Raises FencedMemberEpoch.
    """
    if member_epoch == member.epoch:
        return
    lost_answer = member_epoch < member.epoch and member_epoch == member.previous_epoch and owns_only_assigned
    if not lost_answer:
        raise FencedMemberEpoch(f"the member epoch is {member.epoch}, not {member_epoch}; the member must join again")


def leave_for_a_while(group: EpochGroup[M, Any], member: M, cause: str = "static_member_away") -> None:
    """A static member leaves and will return: it keeps what it has, and gives up what it was asked to."""
    cancel_revocation(group, member)
    group.put(
        replace(
            member,
            epoch=STATIC_LEAVE_EPOCH,
            previous_epoch=member.epoch,
            state=MemberState.STABLE,
            revoking=NO_PARTITIONS,
        )
    )
    group.renewed.add(member.member_id)
    group.events.append(GroupEvent.of("member_left", member, cause))


def cancel_revocation(group: EpochGroup[Any, Any], member: EpochMember) -> None:
    """End the time that a member has to confirm a revocation."""
    if member.state is MemberState.UNREVOKED:
        group.revocations[member.member_id] = None


def refresh_revocation(group: EpochGroup[Any, Any], member: EpochMember, advanced: EpochMember, has_more: bool) -> None:
    """Start the time to confirm a revocation of a member that was asked for one (more), or end it."""
    if advanced.state is not MemberState.UNREVOKED:
        cancel_revocation(group, member)
    elif has_more:
        group.revocations[member.member_id] = advanced.rebalance_timeout_ms
        group.events.append(GroupEvent.of("revocation_requested", advanced, detail=str(len(advanced.revoking))))
