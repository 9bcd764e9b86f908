"""The way of one member from its current tasks to its target, without ever two members that run an active task.

As for partitions of consumer groups, a task goes to its new owner after the old one has confirmed that it closed it.
Beyond that a process never has a task twice, because both would use its one state directory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tidegate.groups.consumer.model import NO_PARTITIONS, MemberState
from tidegate.groups.streams.model import StreamsMember, Task, Tasks


def reconcile(
    member: StreamsMember,
    target: Tasks,
    target_epoch: int,
    owned: Tasks | None,
    owners: Mapping[Task, str],
    others: Iterable[StreamsMember],
) -> StreamsMember:
    """The member's next record, or the same one if it cannot advance.

    `owned` is what the member reports to own, None if it did not; `owners` has every active task that some member runs
    or has not confirmed to have closed; `others` are the other members of the group.
    """
    if member.state is MemberState.UNREVOKED:
        if owned is None or owned.overlaps(member.revoking_tasks):
            return member
    elif member.state is MemberState.STABLE and member.epoch == target_epoch:
        return member
    active = {task: epoch for task, epoch in member.assigned.items() if task in target.active}
    standby = member.standby & target.standby
    revoking = Tasks(frozenset(member.assigned) - target.active, member.standby - target.standby)
    if revoking and (owned is None or owned.overlaps(revoking)):
        return replace(
            member,
            state=MemberState.UNREVOKED,
            assigned=active,
            standby=standby,
            revoking=revoking.active,
            standby_revoking=revoking.standby,
        )
    in_process = [one for one in others if one.process_id == member.process_id]
    process_active = set(active).union(*(one.held for one in in_process))
    process_standby = set(standby).union(*(one.standby | one.standby_revoking for one in in_process))
    wanted = Tasks(target.active - active.keys(), target.standby - standby)
    granted = Tasks(
        frozenset(
            task
            for task in wanted.active
            if owners.get(task, member.member_id) == member.member_id and task not in process_standby
        ),
        wanted.standby - process_active - process_standby,
    )
    return replace(
        member,
        epoch=target_epoch,
        previous_epoch=member.previous_epoch if member.epoch == target_epoch else member.epoch,
        state=MemberState.STABLE if granted == wanted else MemberState.UNRELEASED,
        assigned={**active, **dict.fromkeys(granted.active, target_epoch)},
        standby=standby | granted.standby,
        revoking=NO_PARTITIONS,
        standby_revoking=NO_PARTITIONS,
    )
