"""The way of one member from its current to its target assignment, without ever two owners of a partition.

A partition goes to its new owner only after its owner confirmed the revocation, by a heartbeat that no longer names the
partition among those it owns, or was removed. A member with something to revoke gets nothing new, and its epoch stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tidegate.groups.consumer.model import NO_PARTITIONS, Member, MemberState, Partition, Partitions


def reconcile(
    member: Member,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    owners: Mapping[Partition, str],
    unsubscribed: Partitions = NO_PARTITIONS,
) -> Member:
    """The member's next record, or the same one if it cannot advance.

    `owned` is what the member says it owns, None if it did not say; `owners` has every partition that some member
    has or has not confirmed to have given up; `unsubscribed` are assigned ones that it stops reading with this request.
    """
    if member.state is MemberState.UNREVOKED:
        if owned is None or owned & member.revoking:
            return _revoke(member, unsubscribed)
    elif member.state is MemberState.STABLE and member.epoch == target_epoch:
        return _revoke(member, unsubscribed)
    retained = {partition: epoch for partition, epoch in member.assigned.items() if partition in target}
    revoking = frozenset(member.assigned) - target
    if revoking and (owned is None or owned & revoking):
        return replace(member, state=MemberState.UNREVOKED, assigned=retained, revoking=revoking)
    wanted = target - retained.keys()
    granted = {partition for partition in wanted if owners.get(partition, member.member_id) == member.member_id}
    return replace(
        member,
        epoch=target_epoch,
        previous_epoch=member.previous_epoch if member.epoch == target_epoch else member.epoch,
        state=MemberState.STABLE if len(granted) == len(wanted) else MemberState.UNRELEASED,
        assigned={**retained, **dict.fromkeys(granted, target_epoch)},
        revoking=NO_PARTITIONS,
    )


def _revoke(member: Member, unsubscribed: Partitions) -> Member:
    """Ask for partitions that the member stops reading, before it can advance towards a target."""
    if not unsubscribed:
        return member
    retained = {partition: epoch for partition, epoch in member.assigned.items() if partition not in unsubscribed}
    return replace(member, state=MemberState.UNREVOKED, assigned=retained, revoking=member.revoking | unsubscribed)
