"""Items of one event-loop tick, gathered by group and shard."""

from __future__ import annotations

import asyncio

from tidegate.groups.tick_batch import Gathered, TickBatch
from tidegate.store.keys import GroupKeys

A, B = (GroupKeys.of("t", 50, "acme", name) for name in ("a", "b"))


def named(groups: Gathered[int]) -> list[tuple[str, list[int]]]:
    return [(keys.group_id, items) for keys, items in groups]


async def test_tick_batch_gathers_items_of_a_tick_by_group() -> None:
    flushed: list[list[tuple[str, list[int]]]] = []
    batch: TickBatch[int] = TickBatch(lambda groups: flushed.append(named(groups)), all_shards=True)

    for keys, item in ((A, 1), (B, 2), (A, 3)):
        batch.add(keys, item)
    assert flushed == []
    await asyncio.sleep(0)
    batch.add(A, 4)
    await asyncio.sleep(0)

    assert flushed == [[("a", [1, 3]), ("b", [2])], [("a", [4])]]


async def test_tick_batch_flushes_once_for_each_shard() -> None:
    flushed: list[list[tuple[str, list[int]]]] = []
    batch: TickBatch[int] = TickBatch(lambda groups: flushed.append(named(groups)))

    for keys, item in ((A, 1), (B, 2), (A, 3)):
        batch.add(keys, item)
    await asyncio.sleep(0)

    assert A.shard_keys.shard != B.shard_keys.shard
    assert flushed == [[("a", [1, 3])], [("b", [2])]]
