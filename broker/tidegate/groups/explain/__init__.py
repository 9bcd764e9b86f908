"""Diagnosis of a group: pure analysis of its snapshot, its partitions and its events."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.groups.explain.barriers import open_barrier
from tidegate.groups.explain.finding import Finding, Severity
from tidegate.groups.explain.patterns import patterns
from tidegate.groups.explain.progress import Partition, progress
from tidegate.groups.formatting import clock, counted, moment, span
from tidegate.groups.group_events import Event, Rebalance, rebalances
from tidegate.groups.group_snapshot import GroupSnapshot

__all__ = ["Finding", "Partition", "Severity", "explain", "summary"]


def explain(
    snapshot: GroupSnapshot, partitions: Sequence[Partition], events: Sequence[Event], topics: frozenset[str]
) -> list[Finding]:
    """All findings about a group, worst first. `topics` are the existing topics."""
    rounds = rebalances(events)
    found = [
        *open_barrier(snapshot, events),
        *patterns(snapshot, events, rounds),
        *progress(snapshot, partitions, events, topics),
        *_last_rebalance(snapshot, rounds),
    ]
    return sorted(found, key=lambda finding: -finding.severity)


def summary(snapshot: GroupSnapshot, findings: Sequence[Finding], partitions: Sequence[Partition]) -> str:
    """The first line: the state, its age, and whether it is healthy."""
    worst = max((finding.severity for finding in findings), default=Severity.NOTE)
    verdict = {Severity.STUCK: "It is stuck", Severity.TROUBLE: "It has trouble", Severity.NOTE: "Nothing is wrong"}[
        worst
    ]
    lag = sum(partition.lag or 0 for partition in partitions)
    return (
        f"Group {snapshot.group_id} is {snapshot.state} since {moment(snapshot.state_since_ms)} "
        f"({span(snapshot.now_ms - snapshot.state_since_ms)}), generation {snapshot.generation}, "
        f"{counted(len(snapshot.members), 'member')}, {counted(lag, 'record')} behind. {verdict}."
    )


def _last_rebalance(snapshot: GroupSnapshot, rounds: Sequence[Rebalance]) -> list[Finding]:
    if not rounds:
        return []
    last = rounds[-1]
    started = last.started
    took = {
        "stable": f"it was over {span(last.stable_ms or 0)} later, in generation {last.generation}",
        "settling": f"generation {last.generation} was assigned, but not every member asked for its part",
        "syncing": f"generation {last.generation} opened, and its leader has yet to assign",
        "joining": "members are still joining",
        "emptied": "it left the group empty",
        "cut short": "another one cut it short",
    }[last.outcome]
    evidence = [f"before it the group was undisturbed for {span(started.duration_ms)}"] if started.generation else []
    evidence += [f"{event.who} was removed meanwhile ({event.cause.replace('_', ' ')})" for event in last.lost]
    return [
        Finding(
            "last_rebalance",
            Severity.NOTE,
            f"The last rebalance began at {clock(started.time_ms)}, {span(snapshot.now_ms - started.time_ms)} ago: "
            f"{last.cause}; {took}.",
            tuple(evidence),
        )
    ]
