"""The order of a run of many tests: those that mostly wait are spread over those that compute."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import groupby
from typing import TypeVar

Item = TypeVar("Item")


def spread(items: Sequence[Item], file_of: Callable[[Item], Hashable], waits: Callable[[Item], bool]) -> list[Item]:
    """The items by file, those of either kind evenly over the whole.

    Workers take equal parts of a run; the tests that wait, side by side at its end, would leave the processors idle.
    """
    files = [list(group) for _, group in groupby(items, file_of)]
    totals = {kind: sum(waits(item) is kind for item in items) for kind in (False, True)}
    before = {False: 0, True: 0}
    placed: list[tuple[float, list[Item]]] = []
    for file in files:
        kind = waits(file[0])
        placed.append((before[kind] / totals[kind], file))
        before[kind] += len(file)
    return [item for _, file in sorted(placed, key=lambda one: one[0]) for item in file]
