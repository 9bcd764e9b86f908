"""One row a generation, from scripted events: times, members, what moved, what was cut short."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest

from tidegate.protocol.consumer_blobs import owners_text, write_assignment
from tidegate_pipeline.history.group_events import GroupEvent
from tidegate_pipeline.history.timeline import Timeline, moved, parse_owners

NAMES = (
    "generation", "outcome", "cause", "member", "reason", "started_ms", "first_join_ms", "joined_ms", "assigned_ms",
    "synced_ms", "duration_ms", "members_before", "members_after", "moved_partitions", "leader", "assignor",
)  # fmt: skip


def owners(**assigned: list[int]) -> str:
    """As a broker reports it: member id -> partitions of t."""
    return owners_text((member, write_assignment({"t": partitions})) for member, partitions in assigned.items())


def rebalance(at: int, generation: int, members: int, reported: str, member: str = "a") -> list[GroupEvent]:
    """A new member joins at `at`; it is over 400 ms later."""
    before = generation - 1
    return [
        GroupEvent(at, "member_joined", before, member=member, client_id=f"{member}-app", host="h", members=members),
        GroupEvent(at + 1, "rebalance_started", before, "member_joined", member, client_id=f"{member}-app", host="h"),
        GroupEvent(at + 300, "barrier_joined", generation, member="a", detail="range", members=members),
        GroupEvent(at + 350, "assignment_stored", generation, member="a", detail=reported),
        GroupEvent(at + 401, "stable", generation),
    ]


def rows(timeline: Timeline, events: Iterable[GroupEvent]) -> list[dict[str, Any]]:
    return [dict(zip(NAMES, row, strict=True)) for row in timeline.see(events)]


def test_generation_from_its_begin_to_the_last_sync() -> None:
    alone, shared = owners(a=[0, 1, 2, 3]), owners(a=[0, 1], b=[2, 3])
    first, second = rows(Timeline(), rebalance(1_000, 1, 1, alone) + rebalance(9_000, 2, 2, shared, "b"))

    assert first["moved_partitions"] is None and first["members_before"] is None, "nothing is known of before"
    assert second == {
        "generation": 2, "outcome": "stable", "cause": "member_joined", "member": "b-app at h", "reason": None,
        "started_ms": 9_001, "first_join_ms": 9_000, "joined_ms": 9_300, "assigned_ms": 9_350, "synced_ms": 9_401,
        "duration_ms": 400, "members_before": 1, "members_after": 2, "moved_partitions": 2, "leader": "a",
        "assignor": "range",
    }  # fmt: skip


def test_timeline_rebalance_interrupted_by_the_next() -> None:
    _, b, c = rebalance(0, 1, 1, owners(a=[0])), rebalance(1_000, 2, 2, "-", "b"), rebalance(2_000, 3, 3, "-", "c")

    found = rows(Timeline(), b[:3] + c[:4] + rebalance(3_000, 4, 4, "-", "d"))
    assert [(row["generation"], row["outcome"], row["duration_ms"]) for row in found] == [
        (2, "not_assigned", 1_000),
        (3, "not_synced", 1_000),
        (4, "stable", 400),
    ]


def test_timeline_last_member_leaves() -> None:
    timeline = Timeline()
    rows(timeline, rebalance(0, 1, 1, owners(a=[0, 1])))
    (emptied,) = rows(
        timeline,
        [
            GroupEvent(5_000, "rebalance_started", 1, "session_timed_out", "a", client_id="a-app", host="h"),
            GroupEvent(5_000, "emptied", 2),
        ],
    )
    (again,) = rows(timeline, rebalance(8_000, 3, 1, owners(b=[0, 1]), "b"))

    assert (emptied["outcome"], emptied["members_before"], emptied["members_after"]) == ("emptied", 1, 0)
    assert emptied["moved_partitions"] == 2 and emptied["first_join_ms"] is None
    assert (again["moved_partitions"], again["members_before"]) == (0, 0)


def test_replaced_static_member_keeps_its_partitions() -> None:
    timeline = Timeline()
    rows(timeline, rebalance(0, 1, 2, owners(a=[0, 1], b=[2])))
    replaced = GroupEvent(2_000, "member_replaced", 1, member="b2", instance="shard-1", detail="/10.0.0.1 b")
    found = rows(timeline, [replaced, *rebalance(3_000, 2, 3, owners(a=[0], b2=[2], c=[1]), "c")])

    assert [row["moved_partitions"] for row in found] == [1]


def test_group_that_is_deleted_is_forgotten() -> None:
    timeline = Timeline()
    rows(timeline, rebalance(0, 1, 1, "-"))
    assert timeline.text() is not None
    rows(timeline, [GroupEvent(1, "deleted", 1)])
    assert timeline.text() is None and timeline.due_ms is None


def test_group_that_is_silent_for_long_is_forgotten() -> None:
    timeline = Timeline()
    rows(timeline, rebalance(0, 1, 1, "-"))
    assert timeline.due_ms == 401

    assert not list(timeline.pass_time(400)) and timeline.text() is not None
    assert not list(timeline.pass_time(401)) and timeline.text() is None


def test_restart_between_any_two_events_changes_nothing() -> None:
    events = (
        rebalance(0, 1, 1, owners(a=[0, 1, 2]))
        + rebalance(1_000, 2, 2, owners(a=[0], b=[1]), "b")[:4]
        + rebalance(2_000, 3, 3, "", "c")
        + rebalance(3_000, 4, 4, owners(a=[0], b=[1], c=[2]), "d")
    )
    whole = rows(Timeline(), events)

    text, found = None, []
    for event in events:
        timeline = Timeline(text)
        found += rows(timeline, [event])
        text = timeline.text()
    assert found == whole and [row["generation"] for row in whole] == [1, 2, 3, 4]
    assert [row["moved_partitions"] for row in whole] == [None, 2, None, None]


@pytest.mark.parametrize("text", ["", "t", "t=abc", "=abcd", "t=abcd x"])
def test_timeline_unknown_values_are_not_counted(text: str) -> None:
    assert parse_owners(text) is None
    assert moved(parse_owners(text), {}) is None


def test_cooperative_moves_count_once() -> None:
    reported = [owners(a=[0, 1, 2]), owners(a=[0, 1], b=[]), owners(a=[0, 1], b=[2])]
    known = [parse_owners(text) for text in reported]

    assert [moved(before, after) for before, after in pairwise(known)] == [1, 0]
