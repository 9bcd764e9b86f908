"""When a storm opens and closes, and who is to blame: scripted events, in any batches, late ones, restarts."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from tidegate_pipeline.history.group_events import GroupEvent
from tidegate_pipeline.history.storms import Storms

WINDOW_MS = 600_000
MINUTE_MS = 60_000


def began(minute: float, who: str = "app", cause: str = "session_timed_out", **more: Any) -> GroupEvent:
    """A generation."""
    at = int(minute * MINUTE_MS)
    return GroupEvent(at, "rebalance_started", cause=cause, client_id=who, host="h", id=f"{at}-0", **more)


def observed(events: Iterable[GroupEvent], threshold: int = 3) -> tuple[Storms, list[dict[str, Any]]]:
    storms = Storms(WINDOW_MS, threshold)
    return storms, reported(storms.see(events))


def reported(rows: Iterable[tuple[Any, ...]]) -> list[dict[str, Any]]:
    names = (
        "incident", "change", "opened_ms", "closed_ms", "first_ms", "last_ms", "generations", "most_in_window",
        "patterns", "culprits",
    )  # fmt: skip
    return [dict(zip(names, row, strict=True)) for row in rows]


def test_threshold_opens_once_and_a_quiet_window_closes() -> None:
    storms, rows = observed([began(minute) for minute in (0, 4, 8, 9, 9.5)])

    (opened,) = rows
    assert (opened["change"], opened["opened_ms"], opened["generations"]) == ("opened", 8 * MINUTE_MS, 3)
    assert opened["first_ms"] == 0 and opened["closed_ms"] is None
    assert storms.due_ms == 19.5 * MINUTE_MS
    assert not list(storms.pass_time(storms.due_ms - 1))
    (closed,) = reported(storms.pass_time(storms.due_ms))
    assert (closed["change"], closed["incident"]) == ("closed", opened["incident"])
    assert (closed["closed_ms"], closed["last_ms"]) == (19.5 * MINUTE_MS, 9.5 * MINUTE_MS)
    assert (closed["generations"], closed["most_in_window"]) == (5, 5)
    assert storms.text() is None and storms.due_ms is None


def test_slow_generations_are_no_storm() -> None:
    storms, rows = observed([began(minute) for minute in range(0, 100, 5)])

    assert rows == []
    assert not list(storms.pass_time(1_000 * MINUTE_MS)) and storms.text() is None


def test_next_event_closes_as_the_timer_would() -> None:
    events = [began(minute) for minute in (0, 1, 2)]
    by_timer, rows = observed(events)
    rows += reported(by_timer.pass_time(50 * MINUTE_MS))
    rows += reported(by_timer.see([began(60)]))

    by_event, others = observed([*events, began(60)])
    assert rows == others and [row["change"] for row in rows] == ["opened", "closed"]
    assert by_timer.text() == by_event.text()


def test_late_event_counts_where_it_belongs() -> None:
    storms, rows = observed([began(3), began(12)])
    assert rows == []

    (opened,) = reported(storms.see([began(10)]))
    assert (opened["opened_ms"], opened["first_ms"], opened["last_ms"]) == (720_000, 180_000, 720_000)
    assert not reported(storms.see([began(2)])) and storms.due_ms == 22 * MINUTE_MS


def test_storm_disturbance_without_a_generation_opens_nothing_and_is_blamed() -> None:
    fenced = [GroupEvent(at * 1_000, "member_replaced", instance="shard-1", id=f"{at}-0") for at in range(20)]
    assert observed(fenced)[1] == []

    _, (opened,) = observed([*fenced, *[began(minute, cause="leader_rejoined") for minute in (1, 2, 3)]])
    assert opened["patterns"] == {"static_flapping": 20, "leader_rejoined": 3}


@pytest.mark.parametrize(
    ("event", "pattern"),
    [
        (began(0, cause="session_timed_out"), "session_timeout"),
        (began(0, cause="member_left", reason="consumer poll timeout has expired."), "slow_poll"),
        (began(0, cause="member_left", reason="the consumer is being closed"), "member_left"),
        (began(0, cause="static_member_restarted", instance="shard-1"), "static_flapping"),
        (began(0, cause="did_not_sync"), "never_syncs"),
        (began(0, cause=""), "unknown"),
        (GroupEvent(0, "member_expired", cause="did_not_rejoin", client_id="app", host="h"), "slow_poll"),
    ],
)
def test_patterns(event: GroupEvent, pattern: str) -> None:
    _, (opened,) = observed([event, began(1), began(2), began(3)])

    assert pattern in opened["patterns"]


def test_culprits_are_the_fewest_that_began_half_of_it() -> None:
    flapping = [
        began(minute, cause=cause, instance="shard-1")
        for minute in range(4)
        for cause in ("member_joined", "session_timed_out")
    ]
    storms, _ = observed([began(0, "steady", "member_joined"), *flapping, began(5, "other", "member_joined")])

    (closed,) = reported(storms.pass_time(60 * MINUTE_MS))
    assert closed["culprits"] == [("instance shard-1", "session_timeout", 8, 8)]
    assert closed["generations"] == 10


@pytest.mark.parametrize("seed", range(20))
def test_batches_and_restarts_change_nothing(seed: int) -> None:
    chance = random.Random(seed)
    minute, events = 0.0, []
    for _ in range(200):
        minute += chance.choice([0.1, 0.5, 1, 3, 12])
        kind = chance.choice(["rebalance_started"] * 3 + ["member_replaced", "member_expired"])
        at = int(minute * MINUTE_MS)
        events.append(GroupEvent(at, kind, cause="session_timed_out", instance=chance.choice("abc"), id=f"{at}-0"))
    _, whole = observed(events)

    rows, text, start = [], None, 0
    while start < len(events):
        end = start + chance.randint(1, 30)
        storms = Storms(WINDOW_MS, 3, text)
        rows += reported(storms.see(events[start:end]))
        if chance.random() < 0.5 and storms.due_ms is not None:
            rows += reported(storms.pass_time(events[min(end, len(events)) - 1].time_ms - 1))
        text, start = storms.text(), end
    assert rows == whole and len(whole) > 2
