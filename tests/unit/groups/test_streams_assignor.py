"""The assignor `sticky`: every task once, balanced, where it was."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.support.python_calls import counted_calls
from tests.support.walked_assignor import assign_by_walks
from tidegate.groups.streams.assignor import TaskRunner, assign_sticky
from tidegate.groups.streams.model import NO_TASKS, Tasks


def run(
    runners: list[tuple[str, str]], tasks: dict[str, int], before: dict[str, Tasks] | None = None, standby: int = 0
) -> dict[str, Tasks]:
    given = [TaskRunner(member, process, (before or {}).get(member, NO_TASKS)) for member, process in runners]
    return assign_sticky(given, tasks, ["1"] if "1" in tasks else [], standby)


def sizes(targets: dict[str, Tasks]) -> list[int]:
    return sorted(len(one.active) for one in targets.values())


@pytest.mark.parametrize("seed", range(30))
def test_assign_gives_every_task_once_and_balanced(seed: int) -> None:
    draw = random.Random(seed)
    tasks = {"0": draw.randint(1, 9), "1": draw.randint(1, 9)}
    everything = {(name, index) for name, count in tasks.items() for index in range(count)}
    targets: dict[str, Tasks] = {}
    for _ in range(6):
        runners = [(f"m{n}", f"p{draw.randint(0, 3)}") for n in range(draw.randint(1, 6))]
        targets = run(runners, tasks, targets, standby=draw.randint(0, 2))
        given = [task for one in targets.values() for task in one.active]
        assert sorted(given) == sorted(everything)
        assert sizes(targets)[-1] - sizes(targets)[0] <= 1
        process_of = dict(runners)
        roles = Counter(
            (process_of[name], task) for name, one in targets.items() for task in [*one.active, *one.standby]
        )
        assert max(roles.values()) == 1, "a process has a task twice"


def test_assign_same_members_moves_nothing() -> None:
    runners = [("a", "p"), ("b", "q"), ("c", "q")]
    first = run(runners, {"0": 7, "1": 5}, standby=1)

    assert run(runners, {"0": 7, "1": 5}, first, standby=1) == first


def test_assign_newcomer_takes_only_its_part() -> None:
    first = run([("a", "p")], {"0": 4})

    second = run([("a", "p"), ("b", "q")], {"0": 4}, first)

    assert second["a"].active == {("0", 0), ("0", 1)}
    assert second["b"].active == {("0", 2), ("0", 3)}


def test_assign_failed_member_is_followed_by_its_standby() -> None:
    runners = [("a", "p"), ("b", "q"), ("c", "r")]
    first = run(runners, {"1": 3}, standby=1)
    (lost,) = first["a"].active
    (follower,) = (name for name, one in first.items() if lost in one.standby)

    second = run(runners[1:], {"1": 3}, {name: one for name, one in first.items() if name != "a"}, standby=1)

    assert lost in second[follower].active


def test_assign_standby_is_on_another_process_only() -> None:
    two = run([("a", "p"), ("b", "q")], {"1": 2}, standby=1)
    assert two["a"].active == two["b"].standby
    assert two["b"].active == two["a"].standby

    one = run([("a", "p"), ("b", "p")], {"1": 2}, standby=1)
    assert not one["a"].standby | one["b"].standby


def test_assign_stateless_subtopology_has_no_standby() -> None:
    targets = run([("a", "p"), ("b", "q")], {"0": 2, "1": 2}, standby=1)

    assert {task[0] for one in targets.values() for task in one.standby} == {"1"}


def test_assign_spreads_each_subtopology() -> None:
    targets = run([("a", "p"), ("b", "q")], {"0": 2, "1": 2})

    assert all({task[0] for task in one.active} == {"0", "1"} for one in targets.values())


@pytest.mark.parametrize("seed", range(100))
def test_assign_equals_a_walk_over_all_members(seed: int) -> None:
    draw = random.Random(seed)
    subtopologies = [str(number) for number in range(draw.randint(1, 6))]
    before: dict[str, Tasks] = {}
    for _ in range(6):
        members = draw.sample(range(16), draw.randint(1, 14))
        runners = [TaskRunner(f"m{n}", f"p{draw.randint(0, 5)}", before.get(f"m{n}", NO_TASKS)) for n in members]
        tasks = {name: draw.randint(0, 12) for name in subtopologies}
        stateful = draw.sample(subtopologies, draw.randint(0, len(subtopologies)))
        replicas = draw.randint(0, 3)

        targets = assign_sticky(runners, tasks, stateful, replicas)

        assert targets == assign_by_walks(runners, tasks, stateful, replicas)
        before = {
            member: Tasks(frozenset(task for task in sorted(one.active) if draw.random() < 0.9), one.standby)
            for member, one in targets.items()
        }


@pytest.mark.parametrize("processes", [1, 20, 200])
@pytest.mark.parametrize(("subtopologies", "partitions"), [(2, 250), (500, 1)])
def test_assign_compares_few_members_for_each_task(processes: int, subtopologies: int, partitions: int) -> None:
    runners = [TaskRunner(f"m{n}", f"p{n % processes}") for n in range(200)]
    tasks = {str(number): partitions for number in range(subtopologies)}

    with counted_calls() as calls:
        targets = assign_sticky(runners, tasks, [], 0)

    assert sizes(targets) == [2] * 100 + [3] * 100
    assert calls.total() <= 40 * (500 + 200)
