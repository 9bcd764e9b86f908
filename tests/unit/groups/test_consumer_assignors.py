"""The server-side assignors: scenarios 40-43 of the specification, and what holds for every input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.groups.consumer.assignors import ASSIGNORS, Subscriber, assign_range, assign_uniform
from tidegate.groups.consumer.model import Partitions


def subscriber(
    member_id: str, *topics: str, previous: Partitions = frozenset(), static: str | None = None
) -> Subscriber:
    """A member subscribed to topics."""
    return Subscriber(member_id, static, frozenset(topics), previous)


def again(targets: Mapping[str, Partitions], *topics: str, without: str = "", also: str = "") -> list[Subscriber]:
    """The members with their targets as previous ones; one left, one joined."""
    stayed = [subscriber(name, *topics, previous=target) for name, target in targets.items() if name != without]
    return [*stayed, subscriber(also, *topics)] if also else stayed


def sizes(targets: Mapping[str, Partitions]) -> list[int]:
    """Numbers of partitions, largest first."""
    return sorted(map(len, targets.values()), reverse=True)


def indexes(target: Partitions, topic: str) -> list[int]:
    return sorted(index for name, index in target if name == topic)


def test_uniform_scenario_40_is_balanced_and_sticky() -> None:
    topics = {"t": 12}
    first = assign_uniform([subscriber(name, "t") for name in "abcde"], topics)
    assert sizes(first) == [3, 3, 2, 2, 2]

    without = assign_uniform(again(first, "t", without="e"), topics)
    assert sizes(without) == [3, 3, 3, 3]
    assert all(first[name] <= without[name] for name in "abcd")

    with_f = assign_uniform(again(without, "t", also="f"), topics)
    assert sizes(with_f) == [3, 3, 2, 2, 2]
    assert all(with_f[name] <= without[name] for name in "abcd")


def test_uniform_scenario_41_subscriptions_differ() -> None:
    members = [subscriber("a", "t4", "t2"), subscriber("b", "t4"), subscriber("c", "t2", "t6")]

    targets = assign_uniform(members, {"t4": 4, "t2": 2, "t6": 6})

    assert [len(targets[name]) for name in "abc"] == [3, 3, 6]


def test_range_scenario_42_runs_of_two_topics() -> None:
    targets = assign_range([subscriber(f"m{n}", "t", "u") for n in range(3)], {"t": 4, "u": 4})

    for topic in ("t", "u"):
        assert [indexes(targets[f"m{n}"], topic) for n in range(3)] == [[0, 1], [2], [3]]


def test_range_scenario_43_static_members_are_first() -> None:
    members = [
        subscriber("a0", "t"),
        subscriber("a1", "t"),
        subscriber("z", "t", static="i8"),
        subscriber("b", "t", static="i9"),
    ]

    targets = assign_range(members, {"t": 4})

    assert [indexes(targets[name], "t") for name in ("z", "b", "a0", "a1")] == [[0], [1], [2], [3]]


def test_range_scenario_43_each_topic_among_its_own_subscribers() -> None:
    targets = assign_range([subscriber("a", "t4", "t2"), subscriber("b", "t4")], {"t4": 4, "t2": 2})

    assert (indexes(targets["a"], "t4"), indexes(targets["a"], "t2")) == ([0, 1], [0, 1])
    assert indexes(targets["b"], "t4") == [2, 3]


TOPICS = st.dictionaries(st.sampled_from("tuvw"), st.integers(0, 9))
NAMES = [f"m{n}" for n in range(7)]


@st.composite
def groups(draw: st.DrawFn, same: bool = False) -> tuple[list[Subscriber], dict[str, int]]:
    """Members with any subscriptions and any previous targets that do not overlap."""
    topics = draw(TOPICS)
    names = draw(st.lists(st.sampled_from(NAMES), unique=True))
    common = draw(st.frozensets(st.sampled_from("tuvwx")))
    chosen = [common if same else draw(st.frozensets(st.sampled_from("tuvwx"))) for _ in names]
    previous: list[set[tuple[str, int]]] = [set() for _ in names]
    if names:
        for partition in draw(st.frozensets(st.tuples(st.sampled_from("tuvwx"), st.integers(0, 12)))):
            previous[draw(st.integers(0, len(names) - 1))].add(partition)
    found = zip(names, chosen, previous, strict=True)
    return [Subscriber(name, None, subscribed, frozenset(had)) for name, subscribed, had in found], topics


def check_complete(members: Sequence[Subscriber], topics: Mapping[str, int], targets: Mapping[str, Partitions]) -> None:
    """Every partition with a subscriber exactly once, at a subscriber."""
    assigned = [partition for target in targets.values() for partition in target]
    wanted = {topic for one in members for topic in one.topic_ids}
    assert sorted(assigned) == sorted((topic, n) for topic in wanted & topics.keys() for n in range(topics[topic]))
    for one in members:
        assert {topic for topic, _ in targets[one.member_id]} <= one.topic_ids


@given(groups())
def test_assignors_give_every_partition_once(group: tuple[list[Subscriber], dict[str, int]]) -> None:
    members, topics = group
    for assign in ASSIGNORS.values():
        check_complete(members, topics, assign(members, topics))


@given(groups())
def test_uniform_leaves_no_move_that_balances(group: tuple[list[Subscriber], dict[str, int]]) -> None:
    members, topics = group
    targets = assign_uniform(members, topics)

    for giver in members:
        for taker in members:
            if len(targets[giver.member_id]) - len(targets[taker.member_id]) >= 2:
                assert not any(topic in taker.topic_ids for topic, _ in targets[giver.member_id])


@given(groups(same=True))
@settings(max_examples=300)
def test_uniform_moves_as_few_partitions_as_the_balance_allows(
    group: tuple[list[Subscriber], dict[str, int]],
) -> None:
    members, topics = group
    if not members:
        return
    targets = assign_uniform(members, topics)

    valid = {one.member_id: {p for p in one.previous if p in set().union(*targets.values())} for one in members}
    size, larger = divmod(sum(map(len, targets.values())), len(members))
    assert sizes(targets) == [size + 1] * larger + [size] * (len(members) - larger)
    over = sum(len(had) > size for had in valid.values())
    most = sum(min(len(had), size) for had in valid.values()) + min(over, larger)
    assert sum(len(targets[name] & had) for name, had in valid.items()) == most


@given(groups())
def test_uniform_again_moves_nothing(group: tuple[list[Subscriber], dict[str, int]]) -> None:
    members, topics = group
    targets = assign_uniform(members, topics)
    assigned = [Subscriber(one.member_id, None, one.topic_ids, targets[one.member_id]) for one in members]

    assert assign_uniform(assigned, topics) == targets
