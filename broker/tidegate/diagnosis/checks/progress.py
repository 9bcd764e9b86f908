"""Findings about progress: lag, commits, members without partitions, partitions without members."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.diagnosis.checks.finding import (
    SOON_MS,
    GroupFinding,
    GroupSeverity,
    few,
    last_contact_text,
    named,
    poll_limit,
)
from tidegate.diagnosis.commit_progress import Progress
from tidegate.diagnosis.formatting import clock, counted, either, format_duration, listed, ranges
from tidegate.diagnosis.group_events import Event, describe_event
from tidegate.diagnosis.group_snapshot import GroupSnapshot, MemberSnapshot
from tidegate.groups.model import GroupState

QUIET_MS: Final = 15_000
"""Clients commit every 5 s by default; without commits for 3 periods and its session timeout, a member is quiet."""

COMMITS_STOPPED_MS: Final = 300_000
"""A reader without membership is stopped if its last commit is older, and stalled if its commits did not advance for as
long while records wait; Flink commits at checkpoints, minutes apart."""
ABANDONED_MS: Final = 86_400_000
"""A group without readers for this long is abandoned."""

_LEFT: Final = " A client also leaves by itself while it is not polled within max.poll.interval.ms."
_LEAVE_EVENTS: Final = frozenset({"member_left", "member_removed", "member_expired", "member_evicted"})


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition that a group has committed for or subscribes to; None for unknown or missing values."""

    topic: str
    partition: int
    committed: int | None
    commit_ms: int | None
    metadata: str
    log_start: int | None
    log_end: int | None
    owner: str | None
    """Member id."""
    counted_lag: int | None = None
    """Format record, whose offsets have gaps, and share groups: the lag, counted."""
    is_record: bool = False
    """Whether the topic is of format record: its offsets do not give the lag."""

    @property
    def lag(self) -> int | None:
        """Records from the committed offset, otherwise from the log's start, to the log's end; None if unknown."""
        if self.counted_lag is not None or self.is_record:
            return self.counted_lag
        if self.log_end is None:
            return None
        begin = self.log_start if self.committed is None else max(self.committed, self.log_start or 0)
        return max(self.log_end - (begin or 0), 0)


def progress(
    snapshot: GroupSnapshot,
    partitions: Sequence[Partition],
    events: Sequence[Event],
    topics: frozenset[str],
    commits: Progress | None,
) -> list[GroupFinding]:
    """Reasons why records wait although no barrier is open. `commits`: where `commits_without_members`."""
    return [
        *_empty(snapshot, partitions, events, commits),
        *_missing_topics(snapshot, topics),
        *_quiet(snapshot, partitions),
        *_idle(snapshot, partitions),
        *_unowned(snapshot, partitions),
        *(_out_of_range(partitions) if not snapshot.shares else ()),
        *_offsets_lost(snapshot, events),
    ]


def _by_topic(partitions: Iterable[Partition]) -> dict[str, list[Partition]]:
    found: dict[str, list[Partition]] = defaultdict(list)
    for partition in partitions:
        found[partition.topic].append(partition)
    return found


def _named(partitions: Iterable[Partition]) -> list[str]:
    return [f"{topic} {ranges([one.partition for one in found])}" for topic, found in _by_topic(partitions).items()]


def _lag(partitions: Iterable[Partition]) -> int:
    return sum(partition.lag or 0 for partition in partitions)


def commits_without_members(snapshot: GroupSnapshot, partitions: Sequence[Partition]) -> bool:
    """Whether records wait for a group without members for which offsets are committed: do the offsets advance?"""
    waiting = _committed(partitions)
    last_commit_ms = _last_commit_ms(waiting)
    is_recent = snapshot.now_ms - last_commit_ms < COMMITS_STOPPED_MS
    return (
        snapshot.state == GroupState.EMPTY and is_recent and _is_simple(snapshot, last_commit_ms) and _lag(waiting) > 0
    )


def _committed(partitions: Sequence[Partition]) -> list[Partition]:
    return [partition for partition in partitions if partition.committed is not None]


def _last_commit_ms(partitions: Sequence[Partition]) -> int:
    return max((partition.commit_ms or 0 for partition in partitions), default=0)


def _is_simple(snapshot: GroupSnapshot, last_commit_ms: int) -> bool:
    """Whether readers that assign partitions themselves commit for an empty group."""
    return not snapshot.protocol_type or last_commit_ms > snapshot.state_since_ms


def _empty(
    snapshot: GroupSnapshot, partitions: Sequence[Partition], events: Sequence[Event], commits: Progress | None
) -> list[GroupFinding]:
    """Records wait for a group without members. It may have readers that assign partitions themselves."""
    waiting = _committed(partitions)
    if snapshot.state != GroupState.EMPTY or not _lag(waiting):
        return []
    evidence = tuple(
        f"{topic}: {counted(_lag(found), 'record')}" for topic, found in _by_topic(waiting).items() if _lag(found)
    )
    last_commit_ms = _last_commit_ms(waiting)
    if _is_simple(snapshot, last_commit_ms):
        if commits_without_members(snapshot, partitions):
            return [_committing(snapshot, last_commit_ms, _lag(waiting), evidence, commits)]
        return [_without_members(snapshot, last_commit_ms, _lag(waiting), evidence)]
    return [_abandoned(snapshot, [event for event in events if event.kind in _LEAVE_EVENTS], _lag(waiting), evidence)]


def _committing(
    snapshot: GroupSnapshot, last_commit_ms: int, lag: int, evidence: tuple[str, ...], commits: Progress | None
) -> GroupFinding:
    """Flink, Spark and other readers that only commit: judged by when their offsets last advanced."""
    committed = (
        "The group has no members, but offsets are committed for it: "
        f"the last {format_duration(snapshot.now_ms - last_commit_ms)} ago"
    )
    waits = f"{counted(lag, 'record')} {either(lag, 'waits', 'wait')}"
    stalled_ms = 0 if commits is None else snapshot.now_ms - commits.stalled_at_ms
    if commits is not None and stalled_ms >= COMMITS_STOPPED_MS:
        age = f"{'' if commits.is_begin else 'at least '}{format_duration(stalled_ms)}"
        return GroupFinding(
            "commits_stalled",
            GroupSeverity.TROUBLE,
            f"{committed}. They did not advance for {age}, while {waits}.",
            evidence,
            "The reader is at work and reads nothing (Flink and Spark commit at each checkpoint): look at its log, and "
            "whether its source reaches the brokers.",
        )
    is_known = commits is not None and commits.is_begin
    unknown = f" Whether they advance is not known: no lag samples of {format_duration(COMMITS_STOPPED_MS)}."
    return GroupFinding(
        "commits_without_members",
        GroupSeverity.NOTE,
        f"{committed}. {waits}.{'' if is_known else unknown}",
        evidence,
        "Readers that assign partitions themselves (assign(), Flink, Spark) commit without joining.",
    )


def _without_members(snapshot: GroupSnapshot, last_commit_ms: int, lag: int, evidence: tuple[str, ...]) -> GroupFinding:
    """Such readers that stopped: judged by the age of the last commit."""
    silent_ms = snapshot.now_ms - last_commit_ms
    waits = f"{counted(lag, 'record')} {either(lag, 'waits', 'wait')}"
    return GroupFinding(
        "empty_with_lag",
        GroupSeverity.TROUBLE if silent_ms < ABANDONED_MS else GroupSeverity.NOTE,
        f"The group has no members, the last commit for it was {format_duration(silent_ms)} ago, and {waits}.",
        evidence,
        "If a reader that assigns partitions itself should be at work, look at its log. "
        f"If nobody reads for this group any more: `tidegate group delete {shlex.quote(snapshot.group_id)}`.",
    )


def _abandoned(snapshot: GroupSnapshot, gone: Sequence[Event], lag: int, evidence: tuple[str, ...]) -> GroupFinding:
    """The members left. The last member's reason shows best whether by a deployment, an outage or for good."""
    empty_ms = snapshot.now_ms - snapshot.state_since_ms
    lost = bool(gone) and gone[-1].kind != "member_left" and SOON_MS <= empty_ms < ABANDONED_MS
    if gone:
        evidence = (*evidence, f"the last member that left: {describe_event(gone[-1])} at {clock(gone[-1].time_ms)}")
    return GroupFinding(
        "empty_with_lag",
        GroupSeverity.TROUBLE if lost else GroupSeverity.NOTE,
        f"The group has had no members for {format_duration(empty_ms)}, "
        f"and {counted(lag, 'record')} {either(lag, 'waits', 'wait')}.",
        evidence,
        "Start its consumers. If they run, compare their group.id, and the brokers they ask, with this group's."
        + (_LEFT if gone and gone[-1].kind == "member_left" else ""),
    )


def _missing_topics(snapshot: GroupSnapshot, topics: frozenset[str]) -> list[GroupFinding]:
    missing = sorted((snapshot.topics or frozenset()) - topics)
    if not missing:
        return []
    who = [named(member) for member in snapshot.members if member.topics and not member.topics.isdisjoint(missing)]
    only = not (snapshot.topics or frozenset()) & topics
    return [
        GroupFinding(
            "topic_missing",
            GroupSeverity.STUCK if only else GroupSeverity.TROUBLE,
            f"The group subscribes to {listed(missing)}, which {either(len(missing), 'does', 'do')} not exist.",
            (f"asked for by {listed(who)}",),
            "Create it, or correct the name: members of a topic that does not exist wait without an error.",
        )
    ]


def _quiet(snapshot: GroupSnapshot, partitions: Sequence[Partition]) -> list[GroupFinding]:
    """Members that are alive, own partitions with lag and commit nothing."""
    if snapshot.state != GroupState.STABLE:
        return []
    found = []
    for member in snapshot.members:
        owned = [partition for partition in partitions if partition.owner == member.member_id]
        last = max((partition.commit_ms or 0 for partition in owned), default=0)
        quiet_ms = snapshot.now_ms - max(last, snapshot.state_since_ms)
        if _lag(owned) and member.phase == "synced" and quiet_ms > max(QUIET_MS, member.session_timeout_ms):
            found.append(_is_silent(snapshot, member, owned, last, quiet_ms))
    return found


def _is_silent(
    snapshot: GroupSnapshot, member: MemberSnapshot, owned: Sequence[Partition], last: int, quiet_ms: int
) -> GroupFinding:
    last_contact = f"{member.member_id}: {last_contact_text(snapshot, member)}"
    committed = f"its last commit was at {clock(last)}" if last else "it never committed"
    return GroupFinding(
        "long_processing",
        GroupSeverity.TROUBLE,
        f"{named(member)} heartbeats, but committed nothing for {format_duration(quiet_ms)} while "
        f"{counted(_lag(owned), 'record')} of its partitions wait: it is busy with what it polled last, paused, or "
        "does not commit.",
        (
            last_contact,
            f"it owns {listed(_named(owned))}; {committed}",
            f"without a poll for max.poll.interval.ms its client leaves: {poll_limit(member.rebalance_timeout_ms)}",
        ),
        "Take a thread dump of that process. Take fewer records a poll (max.poll.records) or process them in another "
        "thread. A program that keeps its offsets elsewhere, never commits, or pauses on purpose looks the same from "
        "here.",
    )


def _is_resolved(snapshot: GroupSnapshot) -> bool:
    """Whether consumers own exactly what they are assigned; cooperative consumers rebalance twice in a row."""
    old = snapshot.now_ms - snapshot.state_since_ms >= SOON_MS
    return snapshot.state == GroupState.STABLE and old and snapshot.protocol_type == "consumer"


def _idle(snapshot: GroupSnapshot, partitions: Sequence[Partition]) -> list[GroupFinding]:
    idle = [member for member in snapshot.members if member.owned == {} and member.phase == "synced"]
    if not _is_resolved(snapshot) or not idle:
        return []
    wanted = [
        partition
        for partition in partitions
        if partition.topic in (snapshot.topics or ()) and partition.log_end is not None
    ]
    if not wanted:
        return []  # then a topic is missing
    enough = len(wanted) >= len(snapshot.members)
    return [
        GroupFinding(
            "idle_members",
            GroupSeverity.TROUBLE if enough else GroupSeverity.NOTE,
            f"{len(idle)} of {counted(len(snapshot.members), 'member')} "
            f"{either(len(idle), 'owns', 'own')} no partition: "
            f"the topics they share have {counted(len(wanted), 'partition')}.",
            few(f"{member.member_id} of {named(member)}" for member in idle),
            "There are partitions enough: members that subscribe to other topics, or an assignor that went wrong."
            if enough
            else "A partition has one owner at a time. Run fewer members, or give the topic more partitions.",
        )
    ]


def _unowned(snapshot: GroupSnapshot, partitions: Sequence[Partition]) -> list[GroupFinding]:
    readable = all(member.owned is not None for member in snapshot.members) and snapshot.topics is not None
    if not _is_resolved(snapshot) or not readable:
        return []
    left = [
        one
        for one in partitions
        if one.topic in (snapshot.topics or ()) and one.owner is None and one.log_end is not None
    ]
    if not left:
        return []
    return [
        GroupFinding(
            "unowned_partitions",
            GroupSeverity.TROUBLE if _lag(left) else GroupSeverity.NOTE,
            f"{counted(len(left), 'partition')} of the subscribed topics "
            f"{either(len(left), 'belongs', 'belong')} to no member, {counted(_lag(left), 'record')} "
            f"{either(_lag(left), 'waits', 'wait')} there.",
            tuple(_named(left)),
            "Topics that were made or grown lately are seen when the leader next refreshes its metadata "
            "(metadata.max.age.ms, 5 minutes). If that is past, the assignor leaves them out.",
        )
    ]


def _out_of_range(partitions: Sequence[Partition]) -> list[GroupFinding]:
    found = []
    early = [
        one
        for one in partitions
        if one.committed is not None and one.log_start is not None and one.committed < one.log_start
    ]
    late = [
        one
        for one in partitions
        if one.committed is not None and one.log_end is not None and one.committed > one.log_end
    ]
    if early:
        gone = sum((one.log_start or 0) - (one.committed or 0) for one in early)
        found.append(
            GroupFinding(
                "deleted_before_read",
                GroupSeverity.TROUBLE,
                f"{counted(gone, 'record')} {either(gone, 'was', 'were')} deleted before the group read them: "
                f"its offsets of {listed(_named(early))} are below the log's start.",
                few(
                    f"{one.topic} {one.partition}: committed {one.committed}, log start {one.log_start}"
                    for one in early
                ),
                "Retention was shorter than the group's absence. auto.offset.reset decides where consumers continue.",
            )
        )
    if late:
        found.append(
            GroupFinding(
                "beyond_end",
                GroupSeverity.TROUBLE,
                f"The group's offsets of {listed(_named(late))} are beyond the log's end.",
                few(f"{one.topic} {one.partition}: committed {one.committed}, log end {one.log_end}" for one in late),
                "The topic was created again, or lost its tail. auto.offset.reset decides where consumers continue.",
            )
        )
    return found


def _offsets_lost(snapshot: GroupSnapshot, events: Sequence[Event]) -> list[GroupFinding]:
    """Deleted offsets explain why a group reads everything again."""
    moved = [event for event in events if event.kind in ("offsets_reset", "offsets_deleted", "offsets_expired")]
    return [
        GroupFinding(
            event.kind,
            GroupSeverity.NOTE,
            f"At {clock(event.time_ms)}, {format_duration(snapshot.now_ms - event.time_ms)} ago, "
            f"{describe_event(event)}.",
        )
        for event in moved[-1:]
    ]
