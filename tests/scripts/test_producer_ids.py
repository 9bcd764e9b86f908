"""take_producer_ids, and the blocks that brokers make of it."""

from __future__ import annotations

import asyncio

from tests.support.clock import SteppedClock
from tidegate.settings import Settings
from tidegate.store.store import Store
from tidegate.transactions.producers import BLOCK_IDS, TAKE_PRODUCER_IDS, ProducerIds


async def take(store: Store) -> int:
    (first,) = await store.run(TAKE_PRODUCER_IDS, [store.cluster_keys.producer_ids], 10)
    return int(first)


async def test_blocks_follow_each_other(store: Store):
    first = await take(store)

    assert [await take(store), await take(store)] == [first + 10, first + 20]
    text = (await store.command("GET", store.cluster_keys.producer_ids)).decode()
    assert text.startswith(f"{first + 30} ")


async def test_two_brokers_never_give_the_same_id(store: Store, settings: Settings):
    brokers = [ProducerIds(store, settings), ProducerIds(store, settings)]

    taken = await asyncio.gather(*(brokers[i % 2].take() for i in range(2 * BLOCK_IDS + 200)))

    assert len(set(taken)) == len(taken)
    assert min(taken) >= 0


async def test_server_with_another_history_leaps_over_what_it_may_have_forgotten(store: Store):
    given = await take(store)
    await store.command("SET", store.cluster_keys.producer_ids, f"{given + 10} {'f' * 40}")

    assert await take(store) >= given + 1_000_000


async def test_emptied_server_begins_at_the_clock(clock: SteppedClock, clock_store: Store):
    before = await take(clock_store)
    await clock_store.command("DEL", clock_store.cluster_keys.producer_ids)
    await clock.advance(60_000)

    assert await take(clock_store) == before + 60_000
