"""Filters on topics: what is used, and what Spark evaluates again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from tidegate_pipeline.sources.filters import Pushed

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp()) * 1000
PLACES = [("a", 0), ("a", 1), ("b", 0), ("c", 2)]
END = (1 << 63) - 1


def used(*filters: Filter, mode: str = "decoded") -> tuple[Pushed, list[Filter]]:
    pushed = Pushed()
    return pushed, list(pushed.take(filters, mode))


@pytest.mark.parametrize(
    ("one", "left"),
    [
        (EqualTo(("topic",), "a"), [("a", 0), ("a", 1)]),
        (EqualNullSafe(("topic",), "b"), [("b", 0)]),
        (In(("topic",), ("a", "c")), [("a", 0), ("a", 1), ("c", 2)]),
        (GreaterThan(("topic",), "a"), [("b", 0), ("c", 2)]),
        (LessThanOrEqual(("topic",), "b"), [("a", 0), ("a", 1), ("b", 0)]),
        (EqualTo(("partition",), 0), [("a", 0), ("b", 0)]),
        (GreaterThanOrEqual(("partition",), 1), [("a", 1), ("c", 2)]),
        (LessThan(("partition",), 1), [("a", 0), ("b", 0)]),
        (In(("partition",), (1, 2, 9)), [("a", 1), ("c", 2)]),
    ],
)
@pytest.mark.parametrize("mode", ["decoded", "raw"])
def test_topics_and_partitions_are_fewer_tasks(one: Filter, left: list[Any], mode: str) -> None:
    pushed, returned = used(one, mode=mode)

    assert returned == []
    assert [place for place in PLACES if pushed.holds(place)] == left


@pytest.mark.parametrize(
    ("one", "bounds", "exact"),
    [
        (EqualTo(("offset",), 5), (5, 6), True),
        (GreaterThan(("offset",), 5), (6, END), True),
        (GreaterThanOrEqual(("offset",), 5), (5, END), True),
        (LessThan(("offset",), 5), (0, 5), True),
        (LessThanOrEqual(("offset",), 5), (0, 6), True),
        (In(("offset",), (5, 7, 6)), (5, 8), True),
        (In(("offset",), (5, 9)), (5, 10), False),
        (GreaterThan(("offset",), 5.5), (0, END), False),
        (EqualTo(("offset",), None), (0, END), False),
    ],
)
def test_offsets_are_ranges(one: Filter, bounds: tuple[int, int], exact: bool) -> None:
    pushed, returned = used(one)

    assert (pushed.start, pushed.end) == bounds
    assert returned == ([] if exact else [one])


def test_ranges_of_offsets_meet() -> None:
    pushed, returned = used(
        GreaterThanOrEqual(("offset",), 5),
        LessThan(("offset",), 50),
        GreaterThan(("offset",), 2),
        LessThan(("offset",), 20),
    )

    assert (pushed.start, pushed.end, returned) == (5, 20, [])


@pytest.mark.parametrize(
    ("one", "from_ms"),
    [
        (GreaterThanOrEqual(("timestamp",), NOON), NOON_MS),
        (GreaterThan(("timestamp",), NOON.replace(microsecond=1500)), NOON_MS + 1),
        (EqualTo(("timestamp",), NOON), NOON_MS),
        (In(("timestamp",), (NOON.replace(hour=13), NOON)), NOON_MS),
        (LessThan(("timestamp",), NOON), None),
    ],
)
def test_times_are_a_beginning_and_evaluated_again(one: Filter, from_ms: int | None) -> None:
    pushed, returned = used(one)

    assert pushed.from_ms == from_ms
    assert returned == [one]


def test_raw_batches_are_found_by_their_last_offset_and_largest_time() -> None:
    last, base = GreaterThan(("last_offset",), 5), GreaterThan(("base_offset",), 9)
    late = GreaterThanOrEqual(("max_timestamp",), 77)

    pushed, returned = used(last, base, late, mode="raw")

    assert (pushed.start, pushed.from_ms, returned) == (6, 77, [base, late])


@pytest.mark.parametrize(
    "one",
    [
        Not(EqualTo(("topic",), "a")),
        IsNotNull(("topic",)),
        StringStartsWith(("topic",), "a"),
        EqualTo(("headers", "key"), "a"),
        EqualTo(("value",), b"a"),
        EqualTo(("partition",), True),
        In(("topic",), ("a", None)),
    ],
)
def test_rest_is_given_back(one: Filter) -> None:
    pushed, returned = used(one)

    assert returned == [one]
    assert all(map(pushed.holds, PLACES))
