"""Deploys without rebalances: what a member had that left waits for its successor, for `tidegate.rollout.grace.ms`.

The member stays in the group as a static member does that is away, under a deadline of its own. A new member with its
client id inherits its assignment under the epoch that the group has; nobody else is reassigned. After the deadline the
member is removed like one whose session ended.
"""

from __future__ import annotations

from tidegate.groups.consumer.membership import leave_for_a_while, remove_member
from tidegate.groups.consumer.model import ConsumerGroup, HeartbeatRequest, Member

WAITS = "waits_for_successor"
"""The cause of the event of a member that left."""


def leave(group: ConsumerGroup, member: Member) -> None:
    """A member leaves for good: its partitions wait for a successor if the group has a grace, else others get them."""
    grace_ms = group.rollout_grace_ms
    if not grace_ms or not member.assigned or not member.client_id or member.instance_id is not None:
        remove_member(group, member.member_id, "member_left")
        return
    leave_for_a_while(group, member, WAITS)
    group.revocations[member.member_id] = grace_ms


def predecessor(group: ConsumerGroup, request: HeartbeatRequest) -> Member | None:
    """The member whose place a new one takes: it left, and had the same client id; on the same host if there is one."""
    if request.instance_id is not None or request.classic is not None:
        return None
    left = [one for one in group.members.values() if one.awaits_successor and one.client_id == request.client_id]
    return min(left, key=lambda one: (one.client_host != request.client_host, one.member_id), default=None)
