"""Rebalances are read from events: how each began, what it opened, how it ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate.diagnosis.formatting import format_duration, format_member, listed, ranges
from tidegate.diagnosis.group_events import Event, describe_event, event_of, rebalances

A = Event(0, 0, "", member_id="a-1", client_id="a", host="/10.0.0.1")


def reported(kind: str, time_ms: int, **changes: object) -> Event:
    return replace(A, kind=kind, time_ms=time_ms, **changes)  # type: ignore[arg-type]


def a_round(start: int, generation: int, cause: str = "member_joined") -> list[Event]:
    return [
        reported("rebalance_started", start, generation=generation - 1, cause=cause),
        reported("barrier_joined", start + 400, generation=generation, members=3, duration_ms=400, detail="range"),
        reported("assignment_stored", start + 500, generation=generation, duration_ms=100),
        reported("stable", start + 600, generation=generation),
    ]


def test_whole_round() -> None:
    (one,) = rebalances([reported("member_joined", 0), *a_round(0, 1)])

    assert (one.generation, one.members, one.leader, one.protocol) == (1, 3, "a-1", "range")
    assert (one.joining_ms, one.syncing_ms, one.stable_ms, one.outcome) == (400, 100, 600, "stable")
    assert one.cause == "a at 10.0.0.1 joined"


@pytest.mark.parametrize(("steps", "outcome"), [(1, "joining"), (2, "syncing"), (3, "assigned"), (4, "stable")])
def test_round_that_is_under_way(steps: int, outcome: str) -> None:
    (one,) = rebalances(a_round(0, 1)[:steps])

    assert one.outcome == outcome


def test_round_interrupted_by_another() -> None:
    first, second = rebalances([*a_round(0, 1)[:2], *a_round(1_000, 2, "session_timed_out")])

    assert (first.outcome, second.outcome) == ("interrupted", "stable")
    assert second.cause == "a at 10.0.0.1 sent no heartbeat for its session timeout"


def test_round_that_leaves_the_group_empty() -> None:
    (one,) = rebalances(
        [
            reported("member_left", 0, reason="closing"),
            reported("rebalance_started", 0, cause="member_left", reason="closing"),
            reported("emptied", 0, generation=4),
        ]
    )

    assert (one.outcome, one.generation, one.members) == ("emptied", 4, 0)
    assert one.cause == 'a at 10.0.0.1 left by itself, saying "closing"'


def test_removal_is_the_cause_of_a_round() -> None:
    (one,) = rebalances(
        [
            reported("member_removed", 0, detail="/10.0.0.9 ops tool"),
            reported("rebalance_started", 0, cause="member_removed"),
        ]
    )

    assert one.cause == "a at 10.0.0.1 was removed by ops tool at 10.0.0.9"


def test_member_removed_meanwhile_belongs_to_the_round() -> None:
    late = reported("member_expired", 300, cause="did_not_rejoin", member_id="b-1")
    (one,) = rebalances([a_round(0, 1)[0], late, *a_round(0, 1)[1:]])

    assert one.lost == (late,)


def test_events_that_begin_within_a_round() -> None:
    assert [one.generation for one in rebalances([*a_round(0, 1)[2:], *a_round(1_000, 2)])] == [2]


def test_javas_habit_is_no_reason() -> None:
    event = reported("member_joined", 0, reason="need to re-join with the given member-id: a-1")

    assert describe_event(event) == "a at 10.0.0.1 joined"


def test_events_of_older_brokers_have_fewer_fields() -> None:
    event = event_of({"time": "5", "generation": "1", "kind": "stable", "duration_ms": "0"})

    assert (event.time_ms, event.cause, event.members) == (5, "", 0)


def test_every_kind_has_a_sentence() -> None:
    kinds = ["created", "member_left", "member_evicted", "lease_lost", "emptied", "offsets_expired", "deleted"]

    assert all(describe_event(reported(kind, 0)) != kind.replace("_", " ") for kind in kinds)
    assert (
        describe_event(reported("member_expired", 0, cause="did_not_sync"))
        == "a at 10.0.0.1 did not sync in time and was removed"
    )


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (-5, "0 ms"),
        (850, "850 ms"),
        (4_240, "4.2 s"),
        (59_900, "59 s"),
        (60_000, "1 min"),
        (200_000, "3 min 20 s"),
        (7_500_000, "2 h 5 min"),
        (187_200_000, "2 d 4 h"),
    ],
)
def test_durations_in_words(ms: int, words: str) -> None:
    assert format_duration(ms) == words


def test_names_in_words() -> None:
    assert format_member("a", "/10.0.0.1", "i-1") == "static member i-1 (a at 10.0.0.1)"
    assert format_member("", "") == "a client without a name at an unknown host"
    assert [listed("abcdefg"[:n]) for n in (0, 1, 2, 3, 7)] == [
        "nobody",
        "a",
        "a and b",
        "a, b and c",
        "a, b, c, d and 3 more",
    ]


@pytest.mark.parametrize(
    ("numbers", "short"), [([], ""), ([3], "3"), ([2, 0, 1, 7], "0-2,7"), ([0, 2, 4, 5], "0,2,4-5")]
)
def test_partitions_in_short(numbers: list[int], short: str) -> None:
    assert ranges(numbers) == short
