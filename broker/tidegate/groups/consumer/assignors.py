"""The server-side assignors `uniform` and `range` (KIP-848). Both are deterministic; racks are not considered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Final

from tidegate.groups.consumer.model import NO_PARTITIONS, Partition, Partitions

UNIFORM: Final = "uniform"
RANGE: Final = "range"


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member as an assignor sees it: the ids of its subscribed topics, and its previous target."""

    member_id: str
    instance_id: str | None
    topic_ids: frozenset[str]
    previous: Partitions = NO_PARTITIONS


Assignor = Callable[[Sequence[Subscriber], Mapping[str, int]], dict[str, Partitions]]
"""(subscribers, partition count by topic id) -> target of each subscriber."""


def assign_range(subscribers: Sequence[Subscriber], topics: Mapping[str, int]) -> dict[str, Partitions]:
    """Give each topic in consecutive runs to its subscribers: static ones by instance id, then dynamic ones by id."""
    ordered = sorted(subscribers, key=lambda one: (one.instance_id is None, one.instance_id or one.member_id))
    targets: dict[str, set[Partition]] = {one.member_id: set() for one in subscribers}
    for topic_id, count in topics.items():
        takers = [one.member_id for one in ordered if topic_id in one.topic_ids]
        if not takers:
            continue
        size, extra = divmod(count, len(takers))
        first = 0
        for place, member_id in enumerate(takers):
            end = first + size + (place < extra)
            targets[member_id].update((topic_id, index) for index in range(first, end))
            first = end
    return {member_id: frozenset(target) for member_id, target in targets.items()}


def assign_uniform(subscribers: Sequence[Subscriber], topics: Mapping[str, int]) -> dict[str, Partitions]:
    """Balance the number of partitions; a partition stays where it was unless the balance or a subscription forbids."""
    ordered = sorted(subscribers, key=lambda one: one.member_id)
    if len({one.topic_ids for one in ordered}) <= 1:
        targets = _assign_equal(ordered, topics)
    else:
        targets = _assign_different(ordered, topics)
    return {member_id: frozenset(target) for member_id, target in targets.items()}


def _retainable(one: Subscriber, topics: Mapping[str, int], taken: set[Partition]) -> list[Partition]:
    """What a subscriber can keep of its previous target, in order."""
    return sorted(
        partition
        for partition in one.previous
        if partition[0] in one.topic_ids and 0 <= partition[1] < topics.get(partition[0], 0) and partition not in taken
    )


def _assign_equal(ordered: Sequence[Subscriber], topics: Mapping[str, int]) -> dict[str, set[Partition]]:
    """All subscribers have the same topics: each gets the quotient, and as many as remain get one more."""
    targets: dict[str, set[Partition]] = {one.member_id: set() for one in ordered}
    if not ordered:
        return targets
    everything = [(topic, index) for topic in sorted(ordered[0].topic_ids) for index in range(topics.get(topic, 0))]
    size, larger = divmod(len(everything), len(ordered))
    taken: set[Partition] = set()
    surplus: list[tuple[str, Partition]] = []
    for one in ordered:
        retained = _retainable(one, topics, taken)
        targets[one.member_id].update(retained[:size])
        taken.update(retained[:size])
        if len(retained) > size:
            surplus.append((one.member_id, retained[size]))
    for member_id, partition in surplus:  # who has one more than the quotient keeps it while that is allowed
        if larger and partition not in taken:
            targets[member_id].add(partition)
            taken.add(partition)
            larger -= 1
    _fill(ordered, targets, [partition for partition in everything if partition not in taken], size)
    return targets


def _fill(
    ordered: Sequence[Subscriber], targets: Mapping[str, set[Partition]], free: list[Partition], size: int
) -> None:
    """Give the free partitions to those who miss some of the quotient, then one each to those who have just that."""
    for one in ordered:
        missing = max(size - len(targets[one.member_id]), 0)
        targets[one.member_id].update(free[:missing])
        del free[:missing]
    smallest = [one.member_id for one in ordered if len(targets[one.member_id]) == size]
    for member_id, partition in zip(smallest, free, strict=False):
        targets[member_id].add(partition)


def _assign_different(ordered: Sequence[Subscriber], topics: Mapping[str, int]) -> dict[str, set[Partition]]:
    """Subscriptions differ: keep, give the rest to the least loaded subscriber, then move while that balances."""
    targets: dict[str, set[Partition]] = {one.member_id: set() for one in ordered}
    taken: set[Partition] = set()
    for one in ordered:
        retained = _retainable(one, topics, taken)
        targets[one.member_id].update(retained)
        taken.update(retained)
    subscribers: dict[str, list[str]] = defaultdict(list)
    for one in ordered:
        for topic_id in one.topic_ids:
            if topic_id in topics:
                subscribers[topic_id].append(one.member_id)
    by_choice = sorted(subscribers, key=lambda topic_id: (len(subscribers[topic_id]), topic_id))
    for topic_id in by_choice:
        loads = [(len(targets[member_id]), member_id) for member_id in subscribers[topic_id]]
        heapify(loads)
        for index in range(topics[topic_id]):
            if (topic_id, index) not in taken:
                load, least = loads[0]
                targets[least].add((topic_id, index))
                heapreplace(loads, (load + 1, least))
    previous = {one.member_id: one.previous for one in ordered}
    while True:
        moves = [_balance_topic(topic_id, subscribers[topic_id], targets, previous) for topic_id in by_choice]
        if not any(moves):
            return targets


def _balance_topic(
    topic_id: str,
    subscribers: Sequence[str],
    targets: Mapping[str, set[Partition]],
    previous: Mapping[str, Partitions],
) -> bool:
    """Move single partitions of a topic between subscribers whose loads differ by two or more.

    Each move lowers the sum of the squared loads, so the moves come to an end. Returns whether anything moved.
    """
    moved = False
    owned = {
        member_id: sorted(
            (partition for partition in targets[member_id] if partition[0] == topic_id),
            key=lambda partition, member_id=member_id: (partition not in previous[member_id], partition),  # type: ignore[misc]
        )
        for member_id in subscribers
    }
    while True:
        givers = [member_id for member_id in subscribers if owned[member_id]]
        if not givers:
            return moved
        giver = max(givers, key=lambda member_id: (len(targets[member_id]), member_id))
        taker = min(subscribers, key=lambda member_id: (len(targets[member_id]), member_id))
        if len(targets[giver]) - len(targets[taker]) < 2:
            return moved
        partition = owned[giver].pop()  # last: one that it did not have before
        targets[giver].discard(partition)
        targets[taker].add(partition)
        owned[taker].append(partition)
        moved = True


ASSIGNORS: Final[Mapping[str, Assignor]] = {UNIFORM: assign_uniform, RANGE: assign_range}
"""By name; the first one is the default."""
