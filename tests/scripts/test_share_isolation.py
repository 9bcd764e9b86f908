"""Scenarios 33, 34 and 52 of the specification's share groups: transactions, isolation, offsets without a record."""

from __future__ import annotations

from typing import Any

from tests.support.shares import GAP, ShareWorld
from tests.support.transactions import Producer


async def producer_of(world: ShareWorld) -> Producer:
    """A transactional producer of the first broker."""
    connection: Any = world.brokers[0].connect()
    return await Producer(connection, "tx").init()


async def test_scenario_33_an_open_transaction_waits_and_an_aborted_one_is_not_delivered(shares: ShareWorld) -> None:
    await shares.configure(share_isolation_level="read_committed")
    a = shares.member("a")
    await shares.joined(a)
    await shares.produce(2)
    producer = await producer_of(shares)
    await producer.write("t1", 3)

    assert await a.fetch() == "0-1x1"
    assert await a.fetch() == ""
    assert await a.ack(0, 1, 1) == "NONE"
    await producer.end(False)
    await shares.produce(1)

    assert await a.fetch() == "5-6x1"  # 5 is the marker: it is in the range, and finished by GAP
    assert await shares.start_offset() == 5
    assert await a.acknowledge({0: [(5, 5, (GAP,)), (6, 6, (1,))]}) == "NONE"
    assert await shares.start_offset() == 7


async def test_scenario_33_read_uncommitted_delivers_open_transactions(shares: ShareWorld) -> None:
    a = shares.member("a")
    await shares.joined(a)
    await shares.produce(2)
    producer = await producer_of(shares)
    await producer.write("t1", 3)

    assert await a.fetch() == "0-4x1"


async def test_scenario_34_a_changed_isolation_acts_on_the_next_fetch(shares: ShareWorld) -> None:
    await shares.configure(share_isolation_level="read_committed")
    a = shares.member("a")
    await shares.joined(a)
    producer = await producer_of(shares)
    await producer.write("t1", 2)
    assert await a.fetch() == ""

    await shares.configure(share_isolation_level="read_uncommitted")

    assert await a.fetch() == "0-1x1"


async def test_scenario_52_offsets_without_a_record_are_finished_by_gap(shares: ShareWorld) -> None:
    a = shares.member("a")
    await shares.joined(a)
    await shares.produce(4)
    assert await a.fetch() == "0-3x1"

    assert await a.acknowledge({0: [(0, 3, (1, GAP, GAP, 1))]}) == "NONE"

    assert await shares.start_offset() == 4
