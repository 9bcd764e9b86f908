"""Findings about groups whose partitions the brokers assign: who waits for whom (KIP-848)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tidegate.diagnosis.checks.finding import (
    SOON_MS,
    GroupFinding,
    GroupSeverity,
    evicting,
    few,
    last_contact_text,
    named,
)
from tidegate.diagnosis.formatting import clock, counted, either, format_duration, listed, ranges
from tidegate.diagnosis.group_events import Event
from tidegate.diagnosis.group_snapshot import GroupSnapshot, MemberSnapshot, Partitions

_TYPES: Final = ("consumer", "streams")
_FENCED_SHOWN_MS: Final = 600_000
"""Age up to which a member that did not confirm a revocation is reported."""


def reconciling(snapshot: GroupSnapshot, events: Sequence[Event]) -> list[GroupFinding]:
    """Why members of a KIP-848 or streams group do not have their target assignment yet."""
    if snapshot.type not in _TYPES or snapshot.target_epoch is None:
        return []
    found = [
        *_no_target(snapshot),
        *_unconfirmed(snapshot),
        *_held_by_away(snapshot),
        *_awaiting_successors(snapshot),
        *_behind(snapshot),
    ]
    return found + _fenced(snapshot, events)


def _no_target(snapshot: GroupSnapshot) -> list[GroupFinding]:
    if not snapshot.members or snapshot.generation == snapshot.target_epoch:
        return []
    return [
        GroupFinding(
            "no_target_assignment",
            GroupSeverity.NOTE if snapshot.now_ms - snapshot.state_since_ms < SOON_MS else GroupSeverity.TROUBLE,
            f"The target assignment of group epoch {snapshot.generation} is not computed: the members have that of "
            f"epoch {snapshot.target_epoch}.",
            (f"consumer.assignment.interval.ms is {snapshot.configs.get('consumer.assignment.interval.ms', '0')}",),
            "It is computed at the next heartbeat of any member after the group's assignment interval.",
        )
    ]


def _unconfirmed(snapshot: GroupSnapshot) -> list[GroupFinding]:
    revoking = [member for member in snapshot.members if member.phase == "revoking"]
    if not revoking:
        return []
    waits = {member.member_id: _waiting_for(snapshot, member) for member in revoking}
    blocked = {one.member_id: one for members in waits.values() for one in members}
    late = snapshot.now_ms - snapshot.state_since_ms >= SOON_MS
    waiting = (
        f" {listed(map(named, blocked.values()))} {either(len(blocked), 'waits', 'wait')} for it." if blocked else ""
    )
    return [
        GroupFinding(
            "revocation_unconfirmed",
            GroupSeverity.TROUBLE if late else GroupSeverity.NOTE,
            f"{listed(map(named, revoking))} {either(len(revoking), 'has', 'have')} not confirmed to have given up "
            f"{listed([text for member in revoking for text in _texts(member.revoking or {})])}.{waiting}",
            few(_revocation(snapshot, member, waits[member.member_id]) for member in revoking),
            "A client confirms in its next poll(), after onPartitionsRevoked: look at what that process does between "
            f"two polls. {evicting(snapshot, revoking)} and the others continue.",
        )
    ]


def _revocation(snapshot: GroupSnapshot, member: MemberSnapshot, waiting: Sequence[MemberSnapshot]) -> str:
    ends = ""
    if member.revoke_by_ms is not None:
        left = format_duration(member.revoke_by_ms - snapshot.now_ms)
        ends = f"; it is fenced at {clock(member.revoke_by_ms)} (in {left})"
    for_whom = f", which {listed(map(named, waiting))} {either(len(waiting), 'waits', 'wait')} for" if waiting else ""
    return (
        f"{member.member_id} of {named(member)}, member epoch {member.epoch}: {last_contact_text(snapshot, member)}, "
        f"has to give up {listed(_texts(member.revoking or {}))}{for_whom}{ends}"
    )


def _waiting_for(snapshot: GroupSnapshot, holder: MemberSnapshot) -> list[MemberSnapshot]:
    """The members whose target has partitions that a member has to give up."""
    held = _places(holder.revoking or {})
    return [
        one
        for one in snapshot.members
        if one.member_id != holder.member_id and not held.isdisjoint(_places(one.target or {}))
    ]


def _held_by_away(snapshot: GroupSnapshot) -> list[GroupFinding]:
    """Static members that left for a while keep their partitions, which nobody reads."""
    away = [member for member in snapshot.members if member.phase == "away" and member.owned and member.instance_id]
    if not away:
        return []
    return [
        GroupFinding(
            "static_member_away",
            GroupSeverity.NOTE,
            f"{listed(map(named, away))} left for a while and {either(len(away), 'keeps', 'keep')} "
            f"{either(len(away), 'its', 'their')} partitions, which nobody reads meanwhile.",
            few(
                f"{member.member_id}: {listed(_texts(member.owned or {}))} until {clock(member.session_ends_ms)} "
                f"(in {format_duration(max(member.session_ends_ms - snapshot.now_ms, 0))})"
                for member in away
            ),
            "A static member returns with the same group.instance.id, or loses its partitions when its session ends.",
        )
    ]


def _awaiting_successors(snapshot: GroupSnapshot) -> list[GroupFinding]:
    """Partitions of members that left, which wait for new ones with their client ids (tidegate.rollout.grace.ms)."""
    left = [member for member in snapshot.members if member.phase == "away" and member.revoke_by_ms is not None]
    if not left:
        return []
    return [
        GroupFinding(
            "awaiting_successors",
            GroupSeverity.NOTE,
            f"{listed(map(named, left))} left; the partitions wait for "
            f"{either(len(left), 'a new member', 'new members')} with the same client id; nobody reads them meanwhile.",
            few(
                f"{member.member_id}: {listed(_texts(member.owned or {}))} until {clock(member.revoke_by_ms or 0)} "
                f"(in {format_duration(max((member.revoke_by_ms or 0) - snapshot.now_ms, 0))})"
                for member in left
            ),
            "If no successor is to come, evict them, or lower tidegate.rollout.grace.ms for the next time.",
        )
    ]


def _behind(snapshot: GroupSnapshot) -> list[GroupFinding]:
    """Members that have not sent a heartbeat since the target assignment was computed."""
    late = snapshot.now_ms - snapshot.state_since_ms >= SOON_MS
    behind = [member for member in snapshot.members if member.phase == "behind"]
    if not behind or not late or snapshot.generation != snapshot.target_epoch:
        return []
    return [
        GroupFinding(
            "members_behind",
            GroupSeverity.TROUBLE,
            f"{listed(map(named, behind))} {either(len(behind), 'has', 'have')} sent no heartbeat since the assignment "
            f"of epoch {snapshot.target_epoch} was computed.",
            few(
                f"{member.member_id}, member epoch {member.epoch}: {last_contact_text(snapshot, member)}, its session "
                f"ends at {clock(member.session_ends_ms)}"
                for member in behind
            ),
            "Each member learns of its assignment at its next heartbeat. One that stays silent is removed when its "
            "session ends.",
        )
    ]


def _fenced(snapshot: GroupSnapshot, events: Sequence[Event]) -> list[GroupFinding]:
    fenced = [
        event
        for event in events
        if event.kind == "member_expired"
        and event.cause == "revocation_timed_out"
        and snapshot.now_ms - event.time_ms <= _FENCED_SHOWN_MS
    ]
    if not fenced:
        return []
    return [
        GroupFinding(
            "members_fenced",
            GroupSeverity.TROUBLE,
            f"{counted(len(fenced), 'member')} {either(len(fenced), 'was', 'were')} fenced in the last "
            f"{format_duration(_FENCED_SHOWN_MS)}: "
            f"{either(len(fenced), 'it', 'they')} did not confirm a revocation in time.",
            few(f"{event.who} at {clock(event.time_ms)}" for event in reversed(fenced)),
            "The time is the member's max.poll.interval.ms. Take fewer records a poll (max.poll.records), or process "
            "them in another thread.",
        )
    ]


def _texts(partitions: Partitions) -> list[str]:
    return [f"{topic} {ranges(indexes)}" for topic, indexes in partitions.items()]


def _places(partitions: Mapping[str, Sequence[int]]) -> set[tuple[str, int]]:
    return {(topic, index) for topic, indexes in partitions.items() for index in indexes}
