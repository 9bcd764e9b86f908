"""The check of storms finds what it is there to find."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.support.storm_history import violations
from tests.support.storm_members import STRIDE, Observations, StormMember

NONE = ErrorCode.none


def observed(sent: float, kind: str, generation: int = 1, member: str = "m", **more: Any) -> Observations:
    return Observations(sent, sent + 0.1, kind, member, generation, more.pop("code", NONE), **more)


def event(at: float, kind: str, generation: int = 1, **more: str) -> dict[str, str]:
    return {"time": f"{at * 1000:.0f}", "kind": kind, "generation": str(generation), **more}


def check(
    *history: Observations, events: tuple[dict[str, str], ...] = (), unanswered: tuple[tuple[int, int], ...] = ()
) -> Any:
    member = StormMember("g", "m", [], seed=1, partitions=2)
    member.history += history
    member.unanswered += unanswered
    return violations([member], events)


def commits(sent: float, generation: int, number: int) -> Observations:
    return observed(sent, "commit", generation, offsets={0: generation * STRIDE + number})


def fetched(sent: float, generation: int, number: int) -> Observations:
    return observed(sent, "fetched", generation, offsets={0: generation * STRIDE + number})


GOOD = (observed(1, "join"), observed(2, "sync", assignment=(0, 1)), commits(3, 1, 1), fetched(4, 1, 1))


def test_good_history_is_good() -> None:
    assert check(*GOOD, events=(event(1, "stable"),)) == []


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(observed(5, "sync", assignment=(0,)), id="another assignment"),
        pytest.param(observed(5, "sync", member="n", assignment=(1,)), id="two owners"),
        pytest.param(observed(5, "join", generation=0), id="a generation falls"),
        pytest.param(fetched(5, 1, 0), id="a commit is lost"),
        pytest.param(fetched(5, 0, 9), id="an older generation's commit"),
    ],
)
def test_checker_reports_each_violation(wrong: Observations) -> None:
    assert len(check(*GOOD, wrong)) == 1


def test_commit_of_an_older_generation_is_wrong_once_the_next_has_opened() -> None:
    assert len(check(*GOOD, observed(5, "join", 2, member="n"), commits(6, 1, 2))) == 1
    assert (
        check(*GOOD, observed(5, "join", 2, member="n"), observed(6, "commit", code=ErrorCode.illegal_generation)) == []
    )


def test_unanswered_commit_may_arrive_late_in_its_own_generation_alone() -> None:
    assert check(*GOOD, commits(5, 1, 3), fetched(6, 1, 2), unanswered=((0, STRIDE + 2),)) == []
    assert len(check(*GOOD, fetched(6, 0, 2), unanswered=((0, 2),))) == 1


@pytest.mark.parametrize(
    ("cause", "at", "fine"),
    [
        ("session_timed_out", 6.9, False),
        ("session_timed_out", 7.1, True),
        ("did_not_rejoin", 7.9, False),
        ("did_not_rejoin", 8.1, True),
        ("did_not_sync", 13.1, False),  # it has synced
    ],
)
def test_removals_need_a_reason(cause: str, at: float, fine: bool) -> None:
    began = event(4, "rebalance_started"), event(9, "barrier_joined")
    removed = event(at, "member_expired", cause=cause, member="m")
    assert (check(*GOOD, events=(*began[: 1 if at < 9 else 2], removed)) == []) is fine
