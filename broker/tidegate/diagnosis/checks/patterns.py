"""Findings that show only over time: recurring events of a group."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tidegate.diagnosis.checks.finding import GroupFinding, GroupSeverity
from tidegate.diagnosis.formatting import COMMAND, clock, counted, format_duration, listed
from tidegate.diagnosis.group_events import Event, Rebalance, since
from tidegate.diagnosis.group_snapshot import GroupSnapshot

WINDOW_MS: Final = 30 * 60_000
"""Period that is analysed: several times the usual max.poll.interval.ms."""
AGAIN: Final = 3
"""Occurrences from which events are a pattern."""
SHORT_MEMBERSHIP_MS: Final = 5 * 60_000
"""A member that leaves so soon after it joined was not just scaled down."""
SECOND_HALF_MS: Final = 10_000
"""A cooperative member rejoins at its next poll after the assignment, hardly later."""
LOOP: Final = 5
"""This many rebalances of the same members are a loop, whatever started them."""

_DIES: Final = (
    "The process ends and is started again: read its own log. Where it is killed without leaving, a static "
    "group.instance.id spares the others the rebalances of a quick restart."
)
_LEAVES: Final = (
    "Either the process ends and is started again, or its client left because it was not polled within "
    "max.poll.interval.ms: all but Java's do that without a word. Its own log has the reason."
)
_POLL: Final = ("poll timeout", "max.poll.interval", "maximum poll interval")


def patterns(snapshot: GroupSnapshot, events: Sequence[Event], rounds: Sequence[Rebalance]) -> list[GroupFinding]:
    """Events that recurred in the last half hour."""
    begin = snapshot.now_ms - WINDOW_MS
    recent = since(events, begin)
    late = [round_ for round_ in _first_halves(rounds) if round_.started.time_ms >= begin]
    found = [
        *_never_syncs(snapshot, recent, rounds),
        *_long_processing(snapshot, recent),
        *_crash_loops(snapshot, recent),
        *_flapping(snapshot, recent),
        *_restless(snapshot, late),
    ]
    return [*found, *(() if found else _loop(snapshot, recent, late))]


def _first_halves(rounds: Sequence[Rebalance]) -> list[Rebalance]:
    """Without rebalances that only complete the previous one: cooperative members revoke partitions, then rejoin."""
    found: list[Rebalance] = []
    second = True
    for round_ in rounds:
        started = round_.started
        second = not second and started.cause == "subscription_changed" and started.duration_ms < SECOND_HALF_MS
        if not second:
            found.append(round_)
    return found


def _by_member(events: Iterable[Event], matches: Callable[[Event], bool]) -> list[list[Event]]:
    """Recurring events, by member."""
    found: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in events:
        if matches(event):
            found[event.key].append(event)
    return [of_one for of_one in found.values() if len(of_one) >= AGAIN]


def _times(events: Sequence[Event]) -> str:
    """`4 times in 3 min 2 s, last at 12:03:10 UTC`."""
    first, last = events[0].time_ms, events[-1].time_ms
    return f"{len(events)} times in {format_duration(last - first)}, last at {clock(last)}"


def _severity(snapshot: GroupSnapshot, last: Event) -> GroupSeverity:
    """A pattern that ended is only a note."""
    return GroupSeverity.TROUBLE if snapshot.now_ms - last.time_ms < WINDOW_MS / 3 else GroupSeverity.NOTE


def _never_syncs(snapshot: GroupSnapshot, recent: Sequence[Event], rounds: Sequence[Rebalance]) -> list[GroupFinding]:
    found = []
    leaders = {round_.leader for round_ in rounds if round_.leader}
    for late in _by_member(recent, lambda event: event.cause == "did_not_sync" and event.kind == "member_expired"):
        led = sum(event.member_id in leaders for event in late)
        what = (
            "leads and never submits an assignment" if led == len(late) else "joins and never asks for its assignment"
        )
        found.append(
            GroupFinding(
                "leader_never_syncs" if led == len(late) else "never_syncs",
                _severity(snapshot, late[-1]),
                f"{late[-1].who} {what}: it was removed for that {_times(late)}.",
                (f"everybody waited for it up to {format_duration(_longest_wait(snapshot, late))} each time",),
                "Its client stops between JoinGroup and SyncGroup: an assignor that fails or hangs, a rebalance "
                "listener that blocks, or a program that speaks the protocol by itself. Stop that process.",
            )
        )
    return found


def _longest_wait(snapshot: GroupSnapshot, late: Sequence[Event]) -> int:
    """How long a rebalance waits for members: the longest rebalance timeout, or the observed time if they are gone."""
    longest = max((member.rebalance_timeout_ms for member in snapshot.members), default=0)
    return longest or max(event.duration_ms for event in late)


def _long_processing(snapshot: GroupSnapshot, recent: Sequence[Event]) -> list[GroupFinding]:
    def overstays(event: Event) -> bool:
        if event.kind == "member_expired":
            return event.cause == "did_not_rejoin"
        return event.kind == "member_left" and any(words in event.reason.lower() for words in _POLL)

    found = []
    for late in _by_member(recent, overstays):
        left = sum(event.kind == "member_left" for event in late)
        evidence = []
        if left:
            evidence.append(f'it left by itself {counted(left, "time")}, saying "{late[-1].reason}"')
        if left < len(late):
            evidence.append(f"it did not rejoin before the barrier ended {counted(len(late) - left, 'time')}")
        found.append(
            GroupFinding(
                "long_processing",
                _severity(snapshot, late[-1]),
                f"{late[-1].who} takes longer between two polls than its max.poll.interval.ms: "
                f"it lost its place {_times(late)}.",
                tuple(evidence),
                "What it was processing is given to another member and processed again. Take fewer records a poll "
                "(max.poll.records), process them in another thread, or raise max.poll.interval.ms.",
            )
        )
    return found


def _crash_loops(snapshot: GroupSnapshot, recent: Sequence[Event]) -> list[GroupFinding]:
    found = []
    gone = ("member_expired", "member_left")
    # our own reset command joins and leaves as a guard
    theirs = [event for event in recent if not event.client_id.startswith(f"{COMMAND}@")]
    for ends in _by_member(theirs, lambda event: event.kind in gone and event.duration_ms < SHORT_MEMBERSHIP_MS):
        key = ends[-1].key
        joined = [event for event in recent if event.kind == "member_joined" and event.key == key]
        poll = any(words in event.reason.lower() for words in _POLL for event in ends)
        if len(joined) < AGAIN or poll or all(event.cause in ("did_not_sync", "did_not_rejoin") for event in ends):
            continue
        durations = sorted(event.duration_ms for event in ends)
        left = sum(event.kind == "member_left" for event in ends)
        how = ", then leaves" if left == len(ends) else ", session timeout included" if not left else ""
        silent = left == len(ends) and not any(event.client_reason for event in ends)
        evidence = [f"it is a member for {format_duration(durations[len(durations) // 2])} (median){how}"]
        evidence += [
            f'it said "{words}" when it left'
            for words in {event.client_reason for event in ends if event.client_reason}
        ]
        if (size := _size(snapshot, ends)) > 1:
            evidence.append(f"each time the whole group of {counted(size, 'member')} rebalances twice")
        found.append(
            GroupFinding(
                "crash_loop",
                _severity(snapshot, ends[-1]),
                f"{ends[-1].who} comes and goes: it joined {_times(joined)}, and was gone again each time.",
                tuple(evidence),
                _LEAVES if silent else _DIES,
            )
        )
    return found


def _size(snapshot: GroupSnapshot, ends: Sequence[Event]) -> int:
    """Number of members that a rebalance concerns."""
    return max(len(snapshot.members), *(event.members + 1 for event in ends))


def _flapping(snapshot: GroupSnapshot, recent: Sequence[Event]) -> list[GroupFinding]:
    found = []
    for swaps in _by_member(recent, lambda event: event.kind == "member_replaced"):
        places = Counter((event.client_id, event.host) for event in swaps)
        fenced = [event for event in recent if event.kind == "member_fenced" and event.key == swaps[-1].key]
        several = len(places) > 1 or bool(fenced)
        sentence = "Several processes take turns as" if several else "A process restarts again and again as"
        evidence = [
            f"{client_id or '(no name)'} at {host.removeprefix('/')}: {counted(times, 'time')}"
            for (client_id, host), times in places.items()
        ]
        if fenced:
            evidence.append(
                f"who was fenced asked again {counted(len(fenced), 'time')}, last at {clock(fenced[-1].time_ms)}"
            )
        found.append(
            GroupFinding(
                "static_flapping",
                _severity(snapshot, swaps[-1]),
                f"{sentence} static member {swaps[-1].instance_id}: the instance changed hands {_times(swaps)}.",
                tuple(evidence),
                "Give every process a group.instance.id of its own (a stateful set's pod name, not the deployment's): "
                "each takeover fences the other one, which fails and is restarted."
                if several
                else "The process dies and is started again: read its own log.",
            )
        )
    return found


def _restless(snapshot: GroupSnapshot, rounds: Sequence[Rebalance]) -> list[GroupFinding]:
    """Members that stay in the group and request one rebalance after the other."""
    found = []
    asked = [round_.started for round_ in rounds if round_.started.cause in ("leader_rejoined", "subscription_changed")]
    for again in _by_member(asked, lambda _: True):
        causes = Counter(event.cause for event in again)
        client_reason = {event.client_reason for event in again if event.client_reason}
        why = "as leader" if causes["leader_rejoined"] * 2 > len(again) else "with a changed subscription"
        found.append(
            GroupFinding(
                "rebalance_loop",
                _severity(snapshot, again[-1]),
                f"The generation rises with the same members: {again[-1].who} rejoined {why} {_times(again)}.",
                (
                    f"generation {again[0].generation} to {snapshot.generation}",
                    *(f'it said "{words}"' for words in sorted(client_reason)[:3]),
                ),
                "Leaders rejoin when the partitions of a subscribed topic change, or when their assignor finds the "
                "assignment wanting; others when what they subscribe to changes. Look for topics that are created or "
                "grown all the time under a pattern, for brokers with different metadata, or for code that calls "
                "subscribe() or enforceRebalance() again and again.",
            )
        )
    return found


def _loop(snapshot: GroupSnapshot, recent: Sequence[Event], rounds: Sequence[Rebalance]) -> list[GroupFinding]:
    """Many rebalances, one member behind several of them, and in the end the same members as before.

    A group that grows, shrinks or restarts member by member ends with other members, or has one or two rebalances for
    each.
    """
    present = {
        ("instance", member.instance_id) if member.instance_id else (member.client_id, "/" + member.client_host)
        for member in snapshot.members
    }
    moved = {event.key for event in recent if event.kind in ("member_joined", "member_left", "member_expired")}
    started = [round_.started for round_ in rounds]
    blamed = Counter(event.key for event in started).most_common(1)
    if len(started) < LOOP or not moved <= present or blamed[0][1] < AGAIN:
        return []
    if snapshot.now_ms - started[-1].time_ms > SHORT_MEMBERSHIP_MS:
        return []
    causes = Counter(event.cause.replace("_", " ") for event in started).most_common()
    return [
        GroupFinding(
            "rebalance_loop",
            GroupSeverity.TROUBLE,
            f"The generation rises with the same members: {_times(started)} a rebalance began.",
            (
                f"generation {started[0].generation} to {snapshot.generation}",
                f"causes: {listed([f'{cause} ({times})' for cause, times in causes])}",
            ),
            "`tidegate group history` names each cause: begin with the one that comes first.",
        )
    ]
