"""Topologies of streams groups: tasks, internal topics, and what contradicts."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest

from tests.support.streams import Topics, word_count
from tidegate.groups.streams.errors import StreamsInvalidTopology
from tidegate.groups.streams.stored import dump_topology, load_topology
from tidegate.groups.streams.topology import InternalTopic, StatusCode, Subtopology, Topology, check, configure


def joined(*groups: frozenset[str], repartition: int = 0) -> Topology:
    """A subtopology that joins two topics with a repartition topic, which another one writes."""
    return Topology(
        0,
        (
            Subtopology("0", ("c",), repartition_sinks=("r",)),
            Subtopology("1", ("a", "b"), (InternalTopic("r", repartition),), copartition_groups=groups),
        ),
    )


def test_configure_word_count_sizes_internal_topics_by_source() -> None:
    configured = configure(word_count(), Topics({"lines": 4}))

    assert configured.status == (
        StatusCode.MISSING_INTERNAL_TOPICS,
        "Internal topics are missing: app-counts-changelog, app-words-repartition",
    )
    assert configured.tasks == {"0": 4, "1": 4}
    assert configured.missing == (
        InternalTopic("app-counts-changelog", 4, (("cleanup.policy", "compact"),)),
        InternalTopic("app-words-repartition", 4, (("cleanup.policy", "delete"),)),
    )


def test_configure_with_all_topics_is_ready() -> None:
    topics = Topics({"lines": 4, "app-words-repartition": 4, "app-counts-changelog": 4})

    assert configure(word_count(), topics).status is None


def test_configure_missing_source_names_it() -> None:
    assert configure(word_count(), Topics({})).status == (
        StatusCode.MISSING_SOURCE_TOPICS,
        "Source topics lines are missing.",
    )


@pytest.mark.parametrize("grown", ["app-words-repartition", "app-counts-changelog"])
def test_configure_other_count_of_existing_internal_topic(grown: str) -> None:
    counts = {"lines": 4, "app-words-repartition": 4, "app-counts-changelog": 4, grown: 3}

    status = configure(word_count(), Topics(counts)).status

    assert status is not None
    assert status[0] is StatusCode.INCORRECTLY_PARTITIONED_TOPICS
    assert f"{grown} has another number of partitions: expected 4, found 3" in status[1]


@pytest.mark.parametrize(
    ("repartition", "counts", "expected"),
    [
        (0, {"a": 3, "b": 3, "c": 8}, 3),
        (3, {"a": 3, "b": 3, "c": 8}, 3),
        (0, {"a": 3, "b": 2, "c": 8}, None),
        (5, {"a": 3, "b": 3, "c": 8}, None),
    ],
)
def test_configure_copartitioned_topics_have_one_count(
    repartition: int, counts: Mapping[str, int], expected: int | None
) -> None:
    configured = configure(joined(frozenset({"a", "b", "r"}), repartition=repartition), Topics(dict(counts)))

    if expected is None:
        assert configured.status is not None
        assert configured.status[0] is StatusCode.INCORRECTLY_PARTITIONED_TOPICS
    else:
        assert configured.missing == (InternalTopic("r", expected),)


def test_configure_without_copartition_uses_count_of_writer() -> None:
    assert configure(joined(), Topics({"a": 3, "b": 2, "c": 8})).missing == (InternalTopic("r", 8),)


@pytest.mark.parametrize(
    "subtopologies",
    [
        pytest.param((Subtopology("0", ("a",), changelogs=(InternalTopic("x", 3),)),), id="changelog with a count"),
        pytest.param((Subtopology("0", ("a",), (InternalTopic("r"),)),), id="repartition topic that nobody writes"),
        pytest.param((Subtopology("0"),), id="no source"),
        pytest.param((Subtopology("0", ("a",)), Subtopology("1", ("a",))), id="source of two subtopologies"),
        pytest.param(
            (
                Subtopology("0", (), (InternalTopic("r"),), ("s",)),
                Subtopology("1", (), (InternalTopic("s"),), ("r",)),
            ),
            id="loop",
        ),
    ],
)
def test_check_refuses_contradiction(subtopologies: tuple[Subtopology, ...]) -> None:
    with pytest.raises(StreamsInvalidTopology):
        check(Topology(0, subtopologies))


def test_check_fixed_repartition_topic_without_writer() -> None:
    check(Topology(0, (Subtopology("0", ("a",), (InternalTopic("r", 3),)),)))


class CountedName(str):
    """A name that counts its look-ups."""

    __slots__ = ()
    lookups = 0

    def __hash__(self) -> int:
        CountedName.lookups += 1
        return super().__hash__()


def reversed_chain(length: int) -> Topology:
    """Each subtopology reads what the one after it writes; only the last one reads a topic that exists."""
    names = [CountedName(f"r{i}") for i in range(length + 1)]
    chain = (Subtopology(str(i), (), (InternalTopic(names[i + 1]),), (names[i],)) for i in range(length))
    return Topology(0, (*chain, Subtopology("last", ("t",), (), (names[length],))))


def many_groups(length: int) -> Topology:
    """One subtopology with a copartition group for each of its repartition topics."""
    names = [CountedName(f"r{i}") for i in range(length)]
    internal = tuple(InternalTopic(name) for name in names)
    groups = tuple(frozenset({name}) for name in names)
    return Topology(0, (Subtopology("0", ("t",), (), tuple(names)), Subtopology("1", (), internal, (), (), groups)))


@pytest.mark.parametrize("topology_of", [reversed_chain, many_groups])
def test_configure_takes_steps_in_proportion_to_names(topology_of: Callable[[int], Topology]) -> None:
    for length in (100, 800):
        topology = topology_of(length)
        CountedName.lookups = 0
        check(topology)
        assert len(configure(topology, Topics({"t": 3})).missing) >= length
        assert CountedName.lookups < 50 * length


def counts_by_passes(topology: Topology, external: Mapping[str, int]) -> dict[str, int]:
    """The partitions of the repartition topics, with passes over all subtopologies until nothing changes."""
    counts = {t.name: t.partition_count for one in topology.subtopologies for t in one.repartition_sources}
    counts = {name: count for name, count in counts.items() if count}
    before = -1
    while len(counts) > before:
        before = len(counts)
        for one in topology.subtopologies:
            known = [external[name] for name in one.source_topics]
            for name in one.repartition_sinks:
                own = known + [counts[topic.name] for topic in one.repartition_sources if topic.name in counts]
                if own:
                    counts.setdefault(name, max(own))
    return counts


@pytest.mark.parametrize("seed", range(100))
def test_configure_sizes_repartition_topics_in_the_order_of_subtopologies(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.randint(1, 6)
    read: list[list[InternalTopic]] = [[] for _ in range(size)]
    written: list[list[str]] = [[] for _ in range(size)]
    for i in range(rng.randint(1, 8)):
        read[rng.randrange(size)].append(InternalTopic(f"r{i}", rng.choice([0, 0, 0, 2])))
        for _ in range(rng.randint(1, 2)):
            written[rng.randrange(size)].append(f"r{i}")
    external = {f"t{i}": rng.randint(1, 9) for i in range(size)}
    sources = [(f"t{i}",) if rng.random() < 0.4 or not read[i] else () for i in range(size)]
    topology = Topology(
        0, tuple(Subtopology(str(i), sources[i], tuple(read[i]), tuple(written[i])) for i in range(size))
    )
    counts = counts_by_passes(topology, external)

    unsized = sorted(name for one in topology.subtopologies for name in one.repartition_sinks if name not in counts)
    if unsized:
        with pytest.raises(StreamsInvalidTopology, match=", ".join(unsized[:3])):
            check(topology)
    else:
        check(topology)
        missing = configure(topology, Topics(external)).missing
        assert {topic.name: topic.partition_count for topic in missing} == counts


@pytest.mark.parametrize("topology", [word_count(), joined(frozenset({"a", "b"}), repartition=2)])
def test_stored_topology_equals_sent_one(topology: Topology) -> None:
    check(topology)

    assert load_topology(dump_topology(topology).encode()) == topology
