"""Topologies of streams groups: tasks, internal topics, and what contradicts."""

from __future__ import annotations

from collections.abc import Mapping

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


@pytest.mark.parametrize("topology", [word_count(), joined(frozenset({"a", "b"}), repartition=2)])
def test_stored_topology_equals_sent_one(topology: Topology) -> None:
    check(topology)

    assert load_topology(dump_topology(topology).encode()) == topology
