"""The partitions of a commit: their codes, and which of their offsets are stored."""

from __future__ import annotations

from tests.support.handlers import topic
from tidegate.apis.queued_commits import CommittedTopic, accepted_of

NONE, UNKNOWN_PARTITION, TOO_LARGE, ILLEGAL_GENERATION = 0, 3, 12, 22


def committed(refused: dict[int, int]) -> CommittedTopic:
    """A commit of three partitions, one of which is named twice."""
    return CommittedTopic("t", topic("t"), [4, 0, 4], [40, 1, 41], refused)


def test_codes_without_refused_partitions_are_the_groups() -> None:
    assert committed({}).codes(ILLEGAL_GENERATION) == [(4, 22), (0, 22), (4, 22)]


def test_codes_of_refused_partitions_are_their_own() -> None:
    one = committed({0: TOO_LARGE})

    assert one.codes() == [(4, TOO_LARGE), (0, NONE), (4, NONE)]
    assert one.codes(ILLEGAL_GENERATION) == [(4, TOO_LARGE), (0, 22), (4, 22)]


def test_refuse_leaves_codes_of_refused_partitions() -> None:
    one = committed({1: TOO_LARGE})
    one.refuse(UNKNOWN_PARTITION)

    assert one.codes() == [(4, UNKNOWN_PARTITION), (0, TOO_LARGE), (4, UNKNOWN_PARTITION)]
    assert one.accepted() == ([], [])


def test_accepted_leaves_out_refused_partitions() -> None:
    assert committed({0: TOO_LARGE}).accepted() == ([0, 4], [1, 41])
    assert committed({}).accepted() == ([4, 0, 4], [40, 1, 41])


def test_accepted_of_topics_has_the_last_offset_of_a_partition() -> None:
    nowhere = CommittedTopic("nowhere", None, [0], [-1], {0: UNKNOWN_PARTITION})

    assert [offsets for _, offsets in accepted_of([nowhere, committed({})])] == [{4: 41, 0: 1}]
