"""An acknowledgement of a share group is answered when it is as durable as `durability` says, as a commit is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.support.log_broker import LogBroker
from tests.support.shares import ACCEPT, Member, ShareWorld
from tidegate.settings import Settings
from tidegate.store.node import Node

STORAGE = "KAFKA_STORAGE_ERROR"
OnProved = Callable[[bool], None]


class Prover:
    """Collects what is to be proved by the first broker of a world."""

    def __init__(self, shares: ShareWorld) -> None:
        self.asked: asyncio.Queue[tuple[Node, OnProved]] = asyncio.Queue()
        shares.brokers[0].context.shares.records.prove = lambda node, on_proved: self.asked.put_nowait(
            (node, on_proved)
        )

    async def answer(self, held: bool) -> None:
        _, on_proved = await asyncio.wait_for(self.asked.get(), 40)
        on_proved(held)


async def acquired(shares: ShareWorld) -> Member:
    """A member that has acquired the records 0 to 5."""
    member = shares.member("a")
    await shares.joined(member)
    await shares.produce(6)
    assert await member.fetch(0) == "0-5x1"
    return member


async def test_acknowledgement_is_answered_once_it_is_proved(shares: ShareWorld) -> None:
    a = await acquired(shares)
    prover = Prover(shares)

    acknowledging = asyncio.ensure_future(a.ack(0, 1))
    await asyncio.sleep(0.1)
    assert not acknowledging.done()
    await prover.answer(True)
    assert await acknowledging == "NONE"

    fetching = asyncio.ensure_future(a.fetch(acks={0: [(2, 3, (ACCEPT,))]}))
    await asyncio.sleep(0.1)
    assert not fetching.done()
    await prover.answer(True)
    assert await fetching == ""

    closing = asyncio.ensure_future(a.ack(4, 4, epoch=-1))
    await prover.answer(True)
    assert await closing == "NONE"
    assert prover.asked.empty()


async def test_acknowledgement_that_is_not_proved_is_a_storage_error(shares: ShareWorld) -> None:
    a = await acquired(shares)
    prover = Prover(shares)

    acknowledging = asyncio.ensure_future(a.ack(0, 1))
    await prover.answer(False)
    assert await acknowledging == STORAGE

    fetching = asyncio.ensure_future(a.fetch(acks={0: [(2, 3, (ACCEPT,))]}))
    await prover.answer(False)
    assert await fetching == f" / {STORAGE}"


async def test_acknowledgement_with_a_connection_lost_before_the_proof_is_a_storage_error(
    shares: ShareWorld,
) -> None:
    """The proof may be another server's: after a fail-over the same address is another primary."""
    a = await acquired(shares)
    prover = Prover(shares)

    acknowledging = asyncio.ensure_future(a.ack(0, 1))
    node, on_proved = await asyncio.wait_for(prover.asked.get(), 40)
    node.control.reconnect("for the test")
    await node.control.wait_up(30)
    on_proved(True)

    assert await acknowledging == STORAGE


async def test_refused_acknowledgements_acquisitions_and_releases_need_no_proof(shares: ShareWorld) -> None:
    a = await acquired(shares)
    prover = Prover(shares)

    assert await a.ack(6, 6) == "INVALID_REQUEST"
    await shares.produce(2)
    assert await a.fetch() == "6-7x1"
    assert await a.fetch(-1) == ""
    assert prover.asked.empty()


async def test_acknowledgements_follow_the_setting(settings: Settings) -> None:
    for durability in ("memory", "replicated:1", "fsynced"):
        broker = await LogBroker.start(settings.model_copy(update={"durability": durability}))
        try:
            prove = broker.context.shares.records.prove
            assert prove == (None if durability == "memory" else broker.logs.durability.prove)
        finally:
            await broker.close()
