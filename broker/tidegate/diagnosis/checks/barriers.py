"""Findings about an open barrier: the missing members, since when, and how it ends."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.diagnosis.checks.finding import (
    SOON_MS,
    GroupFinding,
    GroupSeverity,
    evicting,
    few,
    last_contact_text,
    named,
    named_pending,
    poll_limit,
    severity_by_age,
)
from tidegate.diagnosis.formatting import clock, counted, either, format_duration, listed
from tidegate.diagnosis.group_events import Event, since
from tidegate.diagnosis.group_snapshot import GroupSnapshot, MemberSnapshot
from tidegate.groups.model import GroupState


def open_barrier(snapshot: GroupSnapshot, events: Sequence[Event]) -> list[GroupFinding]:
    """The barrier that the group waits at, if there is one."""
    if snapshot.state == GroupState.PREPARING:
        if snapshot.prev_state == GroupState.EMPTY:
            return [_initial_delay(snapshot), *_pending(snapshot)]
        return [*_join_barrier(snapshot, events), *_pending(snapshot)]
    if snapshot.state == GroupState.COMPLETING:
        return [_sync_barrier(snapshot)]
    return _unsynced(snapshot)


def _initial_delay(snapshot: GroupSnapshot) -> GroupFinding:
    return GroupFinding(
        "initial_delay",
        GroupSeverity.NOTE,
        f"The group was empty and waits for more members until {clock(snapshot.join_deadline_ms)} "
        f"(in {format_duration(snapshot.join_deadline_ms - snapshot.now_ms)}) before it opens its next generation.",
        (f"{counted(len(snapshot.members), 'member')} joined so far",),
        "This is group_initial_rebalance_delay_ms: it saves a rebalance for each member that starts with the others.",
    )


# -- the join barrier


def _join_barrier(snapshot: GroupSnapshot, events: Sequence[Event]) -> list[GroupFinding]:
    missing = [member for member in snapshot.members if member.phase == "missing"]
    if not missing:
        return []
    reported = [member for member in missing if _was_notified(snapshot, member)]
    open_ms = snapshot.now_ms - snapshot.state_since_ms
    findings = [
        GroupFinding(
            "join_barrier_open",
            severity_by_age(snapshot),
            f"The join barrier is open for {format_duration(open_ms)}: {len(missing)} of "
            f"{counted(len(snapshot.members), 'member')} "
            f"{either(len(missing), 'has', 'have')} not rejoined: {listed(map(named, missing))}.",
            (*few(_absence(snapshot, member, events) for member in missing), _end_of_joining(snapshot, missing)),
            f"Look at {either(len(missing), 'that process', 'those processes')}. {evicting(snapshot, missing)} "
            "and the others continue.",
        )
    ]
    if reported and open_ms >= SOON_MS:
        findings.append(_busy(snapshot, reported))
    return findings


def _was_notified(snapshot: GroupSnapshot, member: MemberSnapshot) -> bool:
    """Whether the member has sent a heartbeat since the barrier opened; the answer was REBALANCE_IN_PROGRESS."""
    return member.last_contact_ms is not None and member.last_contact_ms > snapshot.state_since_ms


def _absence(snapshot: GroupSnapshot, member: MemberSnapshot, events: Sequence[Event]) -> str:
    last_contact = last_contact_text(snapshot, member)
    if any(
        event.kind == "lease_lost"
        for event in since(events, snapshot.state_since_ms)
        if event.member_id == member.member_id
    ):
        why = "it had rejoined through a broker that is gone now, and has to ask another before its session ends at "
        why += clock(member.session_ends_ms)
    elif _was_notified(snapshot, member):
        why = "alive; its heartbeats are answered REBALANCE_IN_PROGRESS"
    elif member.last_contact_ms is None:
        why = f"its session ends at {clock(member.session_ends_ms)}"
    else:
        why = f"silent since the barrier opened; its session ends at {clock(member.session_ends_ms)}"
    return f"{member.member_id} of {named(member)}: {last_contact}, {why}"


def _end_of_joining(snapshot: GroupSnapshot, missing: list[MemberSnapshot]) -> str:
    removed = [member for member in missing if not member.instance_id]
    ends = (
        f"the barrier ends at {clock(snapshot.join_deadline_ms)} "
        f"(in {format_duration(snapshot.join_deadline_ms - snapshot.now_ms)})"
    )
    if not removed:
        return f"{ends}: the others continue, and static members keep their place until their sessions end"
    kept = "; static members keep their place until their sessions end" if len(removed) < len(missing) else ""
    return f"{ends}: who is missing then is removed, and the others continue{kept}"


def _busy(snapshot: GroupSnapshot, reported: list[MemberSnapshot]) -> GroupFinding:
    timeout = max(member.rebalance_timeout_ms for member in reported)
    return GroupFinding(
        "long_processing",
        GroupSeverity.STUCK,
        f"{listed(map(named, reported))} {either(len(reported), 'heartbeats', 'heartbeat')} but "
        f"{either(len(reported), 'does', 'do')} not poll: a client rejoins only in its next poll(), "
        "and what it does between two polls takes long.",
        (f"clients give themselves max.poll.interval.ms for that: {poll_limit(timeout)}",),
        "Take fewer records a poll (max.poll.records) or process them in another thread; a lower max.poll.interval.ms "
        "ends such a wait sooner.",
    )


def _pending(snapshot: GroupSnapshot) -> list[GroupFinding]:
    if not snapshot.pending:
        return []
    until = max(pending.ends_ms for pending in snapshot.pending)
    alone = all(member.phase == "joined" for member in snapshot.members)
    return [
        GroupFinding(
            "ids_not_used",
            severity_by_age(snapshot) if alone else GroupSeverity.NOTE,
            f"{counted(len(snapshot.pending), 'client')} asked for a member id and did not come back with it: "
            f"{listed(map(named_pending, snapshot.pending))}. The join barrier waits for them too, "
            f"until {clock(until)} at the latest.",
            few(f"{pending.member_id}: until {clock(pending.ends_ms)}" for pending in snapshot.pending),
            "Such a client ended, or lost its connection, between the two requests of its first join.",
        )
    ]


# -- the sync barrier


def _sync_barrier(snapshot: GroupSnapshot) -> GroupFinding:
    open_ms = snapshot.now_ms - snapshot.state_since_ms
    leader = next((member for member in snapshot.members if member.leads), None)
    waiting = [member for member in snapshot.members if member.phase == "waiting"]
    missing = [member for member in snapshot.members if member.phase == "unsynced" and not member.leads]
    name = named(leader) if leader else "its leader, which is gone,"
    evidence = [f"{len(waiting)} of {counted(len(snapshot.members), 'member')} wait for their assignment"]
    if leader is not None and leader.last_contact_ms is not None:
        evidence.insert(0, f"{leader.member_id}: {last_contact_text(snapshot, leader)}")
    if missing:
        evidence.append(f"{listed(map(named, missing))} did not ask for an assignment either")
    left = format_duration(snapshot.sync_deadline_ms - snapshot.now_ms)
    evidence.append(
        f"if none comes until {clock(snapshot.sync_deadline_ms)} (in {left}), "
        "all who have not synced are removed and the group rebalances again"
    )
    return GroupFinding(
        "sync_barrier_open",
        severity_by_age(snapshot),
        f"The sync barrier is open for {format_duration(open_ms)}: {name} leads generation {snapshot.generation} "
        "and has not submitted its assignment.",
        tuple(evidence),
        "The leader computes the assignment inside its client: look there for a slow or failing assignor, a metadata "
        f"request that hangs, or a process that stands still. {evicting(snapshot, [leader] if leader else [])} "
        "and another one leads.",
    )


def _unsynced(snapshot: GroupSnapshot) -> list[GroupFinding]:
    missing = [member for member in snapshot.members if member.phase == "unsynced"]
    late = snapshot.now_ms - snapshot.state_since_ms >= SOON_MS
    if not missing or not late:
        return []
    return [
        GroupFinding(
            "not_synced",
            GroupSeverity.TROUBLE,
            f"Generation {snapshot.generation} is assigned, but {listed(map(named, missing))} did not ask for "
            f"{either(len(missing), 'its', 'their')} part: nobody consumes those partitions.",
            (
                *few(f"{member.member_id}: session ends at {clock(member.session_ends_ms)}" for member in missing),
                f"at {clock(snapshot.sync_deadline_ms)} who has not asked is removed, and the group rebalances",
            ),
            "The process stopped, or lost its connection, between its JoinGroup and its SyncGroup.",
        )
    ]
