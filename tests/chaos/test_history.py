"""Short seeded runs of real clients over real processes; `python -m tests.chaos.run` makes many and longer ones.

TIDEGATE_SEED repeats one, as far as real processes allow.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from bench.clients import newest_java_program
from bench.jars import PeerUnavailable
from tests.chaos.run import ENDS_AFTER_S, run_alone
from tests.chaos.runs import Plan
from tests.kit.checker import Rule

pytestmark = pytest.mark.timeout(ENDS_AFTER_S + 100)  # half a minute on a quiet machine; its own waits add up to more

RUNS = {
    "every fault": Plan(0, 15, replicated=False, stepped_clocks=False),
    "every fault, replicated": Plan(0, 10, replicated=True, stepped_clocks=False),
    "every fault, on a Redis Cluster": Plan(0, 10, replicated=False, stepped_clocks=False, sharded=True),
    "stalls of Redis, six producers": Plan(
        0, 20, replicated=False, stepped_clocks=False, only=("redis stalled",), writers=5
    ),
}


def judge(plan: Plan, rng: random.Random) -> None:
    """One run, which must break no rule and do something."""
    seed = rng.randrange(1 << 30)
    report = run_alone(replace(plan, seed=seed), keep=None)
    print(report.line(), report.details(), sep="\n")
    assert not report.violations, report.details()
    assert report.faults
    assert report.operations["acknowledged"] > 200, "hardly any load"


def test_history_without_faults_is_input_of_every_rule() -> None:
    report = run_alone(Plan(0, 0, replicated=False, stepped_clocks=False), keep=None)

    assert not report.violations, report.details()
    assert [rule for rule in Rule if report.judged[rule] == 0] == []


@pytest.mark.parametrize("plan", RUNS.values(), ids=RUNS)
def test_history_under_faults_breaks_no_rule(plan: Plan, rng: random.Random) -> None:
    judge(plan, rng)


@pytest.mark.peer
def test_history_with_java_under_faults_breaks_no_rule(rng: random.Random) -> None:
    try:
        java = tuple(newest_java_program("GroupJournal")())
    except PeerUnavailable as unavailable:
        pytest.skip(str(unavailable))
    judge(Plan(0, 10, replicated=False, stepped_clocks=False, java=java), rng)


def test_history_under_stepped_clocks_breaks_no_rule(rng: random.Random) -> None:
    judge(Plan(0, 8, replicated=False, stepped_clocks=True), rng)
