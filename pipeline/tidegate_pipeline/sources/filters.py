"""Filters that Spark hands down: on topics and partitions fewer tasks, on offsets and times shorter ranges.

What is not kept to exactly is given back, and Spark evaluates it again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from tidegate_pipeline.sources.offsets import Place

_COMPARED: Final[dict[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    In: lambda value, wanted: value in wanted,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}
_PLACE: Final = {"topic": str, "partition": int}
"""Columns of a `Place`, in order, and what they hold."""
_OFFSET_COLUMN: Final = {"decoded": "offset", "raw": "last_offset"}
"""A raw batch belongs to the range that holds its last offset, so that is exact too."""
_TIME_COLUMN: Final = {"decoded": "timestamp", "raw": "max_timestamp"}
_OFFSET_MAX: Final = (1 << 63) - 1


@dataclass(slots=True)
class Pushed:
    """What filters leave of a query: places, offsets `start` to `end` (exclusive), and nothing before a time in ms."""

    start: int = 0
    end: int = _OFFSET_MAX
    from_ms: int | None = None
    _places: list[tuple[int, Callable[[Any, Any], bool], Any]] = field(default_factory=list)

    def holds(self, place: Place) -> bool:
        """Whether a partition can have rows."""
        return all(compare(place[at], wanted) for at, compare, wanted in self._places)

    def take(self, filters: Iterable[Filter], mode: str) -> Iterator[Filter]:
        """Use the filters, which all hold; yields those that Spark is to evaluate all the same."""
        for each in filters:
            if not self._take(each, mode):
                yield each

    def _take(self, each: Any, mode: str) -> bool:
        compare = _COMPARED.get(type(each))
        if compare is None or len(each.attribute) != 1:
            return False
        (column,) = each.attribute
        values = each.value if isinstance(each, In) else (each.value,)
        if column in _PLACE and all(type(value) is _PLACE[column] for value in values):
            self._places.append((list(_PLACE).index(column), compare, each.value))
            return True
        if column == _OFFSET_COLUMN.get(mode) and values and all(type(value) is int for value in values):
            return self._take_offset(each, values)
        if column == _TIME_COLUMN.get(mode):
            self._take_time(each, values)
        return False

    def _take_offset(self, each: Any, values: Sequence[int]) -> bool:
        low, high = min(values), max(values)
        if isinstance(each, EqualTo | EqualNullSafe | In | GreaterThan | GreaterThanOrEqual):
            self.start = max(self.start, low + isinstance(each, GreaterThan))
        if isinstance(each, EqualTo | EqualNullSafe | In | LessThan | LessThanOrEqual):
            self.end = min(self.end, high + (not isinstance(each, LessThan)))
        return not isinstance(each, In) or high - low == len(set(values)) - 1

    def _take_time(self, each: Any, values: Sequence[Any]) -> None:
        """Only a lower bound: batches have their largest timestamp only, so any batch may hold an earlier one."""
        if isinstance(each, LessThan | LessThanOrEqual):
            return
        times = [time for time in map(_milliseconds, values) if time is not None]
        if times and len(times) == len(values):
            self.from_ms = max(self.from_ms or 0, min(times))


def _milliseconds(value: Any) -> int | None:
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return int(aware.timestamp() * 1000 // 1)
    return value if type(value) is int else None
