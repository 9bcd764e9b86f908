"""What is learned of a member's heartbeats, and how long their answers may be kept back."""

from __future__ import annotations

import pytest

from tidegate.groups.heartbeat_interval import HeartbeatIntervalEstimator


class Member:
    """A client whose timer runs from the send or from the answer; answers are held for as long as its pace says."""

    def __init__(self, interval_s: float, *, session_s: float | None = 45.0, from_answer: bool = False) -> None:
        self.interval_estimator = HeartbeatIntervalEstimator(delay_s_max=3.0)
        self.interval_estimator.session_s = session_s
        self.interval_s = interval_s
        self.from_answer = from_answer
        self.now_s = 1_000.0

    def heartbeat(self, late_s: float = 0.0) -> float:
        """One heartbeat; how long its answer was held."""
        self.now_s += late_s
        self.interval_estimator.arrived(self.now_s)
        held_s = self.interval_estimator.delay_s()
        self.interval_estimator.answered(self.now_s + held_s)
        self.now_s += self.interval_s + (held_s if self.from_answer else 0.0)
        return held_s

    def heartbeats(self, count: int) -> list[float]:
        return [self.heartbeat() for _ in range(count)]


def test_heartbeat_interval_a_gap_a_probe_then_long_delays() -> None:
    assert Member(3.0).heartbeats(5) == [0, 0.5, 2.85, 2.85, 2.85]


def test_wrong_gap_is_found_out_by_the_next() -> None:
    member = Member(3.0)
    assert [member.heartbeat(late_s) for late_s in (0, 1.5, 0, 0, 0)] == [0, 0.5, 0, 0.5, 2.85]


def test_timer_that_runs_from_the_answer_is_given_three_probes_in_a_hundred_heartbeats() -> None:
    held = Member(3.0, from_answer=True).heartbeats(500)
    assert max(held) == 0.5
    assert 3 <= sum(hold > 0 for hold in held[:100]) <= 4
    assert sum(hold > 0 for hold in held) <= 15


def test_first_gap_that_was_too_short_is_measured_again() -> None:
    member = Member(3.0)
    held = [member.heartbeat(late_s) for late_s in (0, -0.6, 0, 0, 0, 0, 0)]
    assert held == [0, pytest.approx(0.5), 0, 0.5, 2.85, 2.85, 2.85]


def test_heartbeat_interval_unknown_session_is_not_delayed() -> None:
    assert not any(Member(3.0, session_s=None).heartbeats(10))


@pytest.mark.parametrize(
    ("interval_s", "session_s", "delay_s"),
    [
        (3.0, 45.0, 2.85),  # the interval less the margin
        (3.0, 6.0, 2.0),  # two thirds of what the session leaves
        (10.0, 60.0, 3.0),  # the setting
        (0.1, 45.0, 0.0),  # not worth it
        (3.0, 3.1, 0.0),  # the session leaves nothing
    ],
)
def test_heartbeat_interval_estimates(interval_s: float, session_s: float, delay_s: float) -> None:
    assert Member(interval_s, session_s=session_s).heartbeats(8)[-1] == pytest.approx(delay_s)


def test_member_that_starts_to_count_from_the_answer_is_trusted_no_more() -> None:
    member = Member(3.0)
    assert member.heartbeats(6)[-1] == pytest.approx(2.85)
    member.from_answer = True
    assert sum(hold > 0.5 for hold in member.heartbeats(50)) == 1  # the one that showed it


def test_after_a_stall_all_is_learned_anew() -> None:
    member = Member(3.0)
    member.heartbeats(6)
    assert member.heartbeat(late_s=4.0) == 0
    assert member.heartbeats(3) == pytest.approx([0.5, 2.85, 2.85])


def test_another_interval_is_measured_anew() -> None:
    member = Member(3.0)
    member.heartbeats(6)
    member.interval_s = 1.0
    member.heartbeat()
    assert member.heartbeat() == 0
    assert member.heartbeats(8)[-1] == pytest.approx(0.85)


def test_heartbeat_interval_ignores_gaps_with_a_rebalance() -> None:
    member = Member(3.0)
    member.heartbeats(6)
    member.interval_estimator.interrupted()
    assert member.heartbeat(late_s=40.0) == pytest.approx(2.85)
    assert member.heartbeat() == pytest.approx(2.85)


def test_heartbeat_interval_ignores_a_released_delay() -> None:
    member = Member(3.0, from_answer=True)
    member.heartbeats(2)
    for _ in range(10):  # commits end each hold after 50 ms
        member.interval_estimator.arrived(member.now_s)
        assert member.interval_estimator.delay_s() <= 0.5
        member.interval_estimator.answered(member.now_s + 0.05)
        member.now_s += 3.05
