"""Diagnosis of a group: pure analysis of its snapshot, its partitions and its events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate.diagnosis.checks.assigned import reconciling
from tidegate.diagnosis.checks.barriers import open_barrier
from tidegate.diagnosis.checks.finding import GroupFinding, GroupSeverity
from tidegate.diagnosis.checks.patterns import patterns
from tidegate.diagnosis.checks.progress import Partition, commits_without_members, progress
from tidegate.diagnosis.checks.shares import SHARE, shares
from tidegate.diagnosis.commit_progress import Progress
from tidegate.diagnosis.formatting import clock, counted, format_duration, format_timestamp
from tidegate.diagnosis.group_events import Event, Rebalance, rebalances
from tidegate.diagnosis.group_snapshot import GroupSnapshot

_TYPES: Final = {SHARE: "Share group"}
_VERDICTS: Final = {
    GroupSeverity.STUCK: "It is stuck",
    GroupSeverity.TROUBLE: "It has trouble",
    GroupSeverity.NOTE: "Nothing is wrong",
}

__all__ = ["GroupFinding", "GroupSeverity", "Partition", "commits_without_members", "explain", "summary"]


def explain(
    snapshot: GroupSnapshot,
    partitions: Sequence[Partition],
    events: Sequence[Event],
    topics: frozenset[str],
    commits: Progress | None = None,
) -> list[GroupFinding]:
    """All findings about a group, worst first.

    `topics` are the existing topics; `commits` is the progress by lag samples, where `commits_without_members`.
    """
    rounds = rebalances(events)
    found = [
        *open_barrier(snapshot, events),
        *reconciling(snapshot, events),
        *shares(snapshot),
        *patterns(snapshot, events, rounds if snapshot.target_epoch is None else ()),
        *progress(snapshot, partitions, events, topics, commits),
        *_last_rebalance(snapshot, rounds),
    ]
    return sorted(found, key=lambda finding: -finding.severity)


def summary(snapshot: GroupSnapshot, findings: Sequence[GroupFinding], partitions: Sequence[Partition]) -> str:
    """The first line: the state, its age, and whether it is healthy."""
    worst = max((finding.severity for finding in findings), default=GroupSeverity.NOTE)
    verdict = _VERDICTS[worst]
    lag = sum(partition.lag or 0 for partition in partitions)
    return (
        f"{_TYPES.get(snapshot.type, 'Group')} {snapshot.group_id} is {snapshot.state} since "
        f"{format_timestamp(snapshot.state_since_ms)} "
        f"({format_duration(snapshot.now_ms - snapshot.state_since_ms)}), {_epoch(snapshot)}, "
        f"{counted(len(snapshot.members), 'member')}, {counted(lag, 'record')} behind. {verdict}."
    )


def _epoch(snapshot: GroupSnapshot) -> str:
    if snapshot.target_epoch is None:
        return f"generation {snapshot.generation}"
    return f"group epoch {snapshot.generation}"


def _last_rebalance(snapshot: GroupSnapshot, rounds: Sequence[Rebalance]) -> list[GroupFinding]:
    if not rounds:
        return []
    last = rounds[-1]
    started = last.started
    assigned = "but not every member asked for its part" if snapshot.target_epoch is None else "and members move to it"
    took = {
        "stable": f"it was over {format_duration(last.stable_ms or 0)} later, in generation {last.generation}",
        "assigned": f"generation {last.generation} was assigned, {assigned}",
        "syncing": f"generation {last.generation} opened, and its leader has yet to assign",
        "joining": "members are still joining",
        "emptied": "it left the group empty",
        "interrupted": "another rebalance interrupted it",
    }[last.outcome]
    evidence = (
        [f"before it the group was stable for {format_duration(started.duration_ms)}"] if started.generation else []
    )
    evidence += [f"{event.who} was removed meanwhile ({event.cause.replace('_', ' ')})" for event in last.lost]
    return [
        GroupFinding(
            "last_rebalance",
            GroupSeverity.NOTE,
            f"The last rebalance began at {clock(started.time_ms)}, "
            f"{format_duration(snapshot.now_ms - started.time_ms)} ago: {last.cause}; {took}.",
            tuple(evidence),
        )
    ]
