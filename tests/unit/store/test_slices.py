"""Background work on many things runs in slices."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.logs import FakeTopic
from tests.support.rounds import Rounds, counted_rounds
from tidegate.groups.offsets import entry_json
from tidegate.monitoring.internal_topics import groups
from tidegate.monitoring.internal_topics.groups import GroupRecords
from tidegate.monitoring.lag_reading import LagReader
from tidegate.store.slices import Pauses, in_order

SIZE = 1_000
COMPARISONS_MAX = 15 * SIZE
"""Of a slice that is sorted, or merged with the other ones."""


def names(count: int, rounds: Rounds) -> list[Any]:
    """Names in any order, whose comparisons are counted."""

    class Name(bytes):
        __lt__: Callable[..., bool] = rounds.counting(bytes.__lt__)

    found = [Name(b"t:%05d" % number) for number in range(count)]
    random.Random(7).shuffle(found)
    return found


async def test_items_are_sorted_in_slices() -> None:
    with counted_rounds() as rounds:
        items = names(8 * SIZE, rounds)
        found = [item async for item in in_order(items, SIZE)]

    assert found == [b"t:%05d" % number for number in range(8 * SIZE)]
    assert 0 < rounds.most <= COMPARISONS_MAX < rounds.total


async def test_pauses_count_over_several_collections() -> None:
    pauses = Pauses(10)
    with counted_rounds() as rounds:
        for _ in range(40):
            rounds.note()
            await pauses.after(4)

    assert rounds.most == 3


async def test_commits_of_a_group_are_sorted_in_slices() -> None:
    topic: Any = FakeTopic(name="t", partition_count=8 * SIZE)
    reader = LagReader(None, lambda org, name: topic, lambda _: None)  # type: ignore[arg-type]
    stored = (entry_json(5, -1, topic.topic_hex, "") + ',"commit_time":1}').encode()
    with counted_rounds() as rounds:
        offsets = dict.fromkeys(names(8 * SIZE, rounds), stored)
        commits = await reader._commits("default", offsets)

    assert list(commits) == [("t", index) for index in range(8 * SIZE)]
    assert 0 < rounds.most <= COMPARISONS_MAX < rounds.total


async def test_records_of_committed_offsets_are_made_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = (entry_json(5, -1, "", "") + ',"commit_time":1}').encode()
    offsets = {b"t:%d" % index: stored for index in range(4 * SIZE)}

    async def read_in_order(*_: Any) -> Any:
        return b"", offsets

    store: Any = type("Store", (), {"command": None})()
    keys: Any = type("Keys", (), {"group": "g", "offsets": "o", "group_id": "g"})()
    monkeypatch.setattr(groups, "read_in_order", read_in_order)
    monkeypatch.setattr(groups, "group_of", lambda *_: keys)
    with counted_rounds() as rounds:
        monkeypatch.setattr(groups, "_offset_value", rounds.counting(groups._offset_value))
        values = await GroupRecords(store).values_of("default/g")

    assert (len(values), rounds.total) == (len(offsets), len(offsets))
    assert rounds.most <= groups._OFFSETS_AT_ONCE
