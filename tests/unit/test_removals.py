"""Times of removals on the clock of histories, where Redis's clock was stepped."""

from __future__ import annotations

import pytest

from tests.kit.checker import Rule, check
from tests.kit.history import Assigned, History, Operation, Removed
from tests.kit.removals import TAKES_EFFECT_NS, ClockStep, removals

SECOND = 1_000_000_000
BOOT_NS = -1_700_000_000 * SECOND
"""From the true time of a day to the clock of histories."""
STEPS = (ClockStep(100 * SECOND, 30 * SECOND), ClockStep(200 * SECOND, -120 * SECOND))


def event(kind: str, member: str, true_s: int, offset_s: int = 0) -> dict[str, str]:
    return {
        "time": str((true_s + offset_s + 1_700_000_000) * 1_000),
        "group": "default/g",
        "kind": kind,
        "member": member,
    }


def assigned(at_s: int, process: str, generation: int) -> Assigned:
    return Assigned(process, at_s * SECOND, "g", process, generation, ("t-0",))


def broken(*operations: Operation) -> set[Rule]:
    return {violation.rule for violation in check(History(list(operations)))}


def test_removals_members_that_left_are_none() -> None:
    assert list(removals([event("member_left", "a", 50)], BOOT_NS)) == []


@pytest.mark.parametrize(
    ("true_s", "offset_s"), [(50, 0), (101, 0), (102, 30), (150, 30), (201, 30), (202, -90), (900, -90)]
)
def test_removals_of_a_stepped_clock_have_true_times(true_s: int, offset_s: int) -> None:
    events = [event("member_joined", "a", true_s - 1), event("member_expired", "a", true_s, offset_s)]

    assert list(removals(events[1:], BOOT_NS, STEPS)) == [Removed(true_s * SECOND, "g", "a")]


def test_removals_of_a_time_shown_twice_follow_the_event_before() -> None:
    events = [event("member_joined", "b", 210, -90), event("member_expired", "a", 215, -90)]

    assert list(removals(events, BOOT_NS, STEPS)) == [Removed(215 * SECOND, "g", "a")]


def test_removals_two_owners_of_a_run_with_stepped_clocks_are_reported() -> None:
    """Both members leave in the end, as in each run; the first one is removed long after the second one owns."""
    events = [event("rebalance_started", "", 195, 30), event("member_joined", "b", 249, -90)]
    events += [event("member_left", "b", 300, -90), event("member_expired", "a", 310, -90)]
    noted = removals(events, BOOT_NS, STEPS)

    assert broken(assigned(10, "a", 1), assigned(250, "b", 2), *noted) == {Rule.TWO_OWNERS}


def test_removals_before_another_owns_excuse_two_owners() -> None:
    noted = removals([event("member_expired", "a", 240, -90)], BOOT_NS, STEPS)

    assert broken(assigned(10, "a", 1), assigned(250, "b", 2), *noted) == set()


def test_removals_of_the_second_after_a_step_may_have_either_time() -> None:
    late = 100 + TAKES_EFFECT_NS // SECOND

    assert [one.at // SECOND for one in removals([event("member_expired", "a", late)], BOOT_NS, STEPS)] == [late]
