"""Requests of a transactional producer that a broker executes after the producer has continued at another one.

Both brokers are asked the same; the first one is held before it reads the record.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.support.transactions import NONE, Brokers, Producer, brokers_of
from tidegate.groups import staged_offsets
from tidegate.settings import Settings
from tidegate.store.redis_clock import time_ms
from tidegate.store.store import Store
from tidegate.transactions import records
from tidegate.transactions.model import State, Transaction

E = ErrorCode
NOT_AVAILABLE = E.coordinator_not_available
OLD = 3
"""A version of the protocol before KIP-890: the transactions of a producer have one epoch."""
FOREVER_S = 3_600.0
Overtaken = Callable[[asyncio.Future[Any]], Awaitable[Any]]


class Held:
    """Two brokers; the first one reads no record before `release`. `asked` goes there, all else to the second one."""

    def __init__(self, both: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
        self.first, self.second = Brokers(both.all[:1]), Brokers(both.all[1:])
        self.producer = Producer(self.second, "T")
        self._twin = Producer(self.first, "T")
        self._released = asyncio.Event()
        found = both.all[0].context.transactions.records
        self._read = found.read
        found.read = self._read_held  # type: ignore[method-assign]
        self._reading = asyncio.Event()
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(records, "LATE_S", FOREVER_S)

    async def _read_held(self, keys: Any) -> Transaction | None:
        self._reading.set()
        await self._released.wait()
        return await self._read(keys)

    async def ask(self, asked: Callable[[Producer], Awaitable[Any]]) -> asyncio.Future[Any]:
        """What the producer asks the first broker, which begins it."""
        self._twin.id, self._twin.epoch = self.producer.id, self.producer.epoch
        answer = asyncio.ensure_future(asked(self._twin))
        await self._reading.wait()
        return answer

    def leave(self) -> None:
        """The producer closes its connection to the first broker."""
        self.first.clients[0].client.closed = True

    async def release(self, asked: asyncio.Future[Any], *, late: bool) -> Any:
        """The first broker's answer; `late`: as if it had been held for long."""
        with self._monkeypatch.context() as patched:
            patched.setattr(records, "LATE_S", 0.0 if late else FOREVER_S)
            self._released.set()
            return await asked

    async def record(self) -> Transaction:
        found = self.second.all[0].context.transactions.records
        one = await found.read(found.keys("default", "T"))
        assert one is not None
        return one


@pytest.fixture
async def held(store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Held]:
    """Two brokers of the topic `t`."""
    async with brokers_of(settings, 2) as opened:
        await opened.create("t", 2)
        for broker in opened.all:
            broker.store.clock.observe(time_ms(await store.command("TIME")), 0.001)
        yield Held(opened, monkeypatch)


@pytest.fixture(params=["gone", "unnoticed"])
def overtaken(request: pytest.FixtureRequest, held: Held) -> Overtaken:
    """The first broker's answer after its producer has continued elsewhere: it closed, or its network was cut."""

    async def answer(asked: asyncio.Future[Any]) -> Any:
        if request.param == "gone":
            held.leave()
        return await held.release(asked, late=request.param == "unnoticed")

    return answer


async def test_late_init_producer_id_does_not_fence_the_producer(held: Held, overtaken: Overtaken) -> None:
    late = await held.ask(Producer.try_init)
    await held.producer.init()

    assert (await overtaken(late))[0] is NOT_AVAILABLE
    assert await held.producer.add(("t", 0)) == [NONE]


async def test_late_init_producer_id_does_not_abort_the_transaction(held: Held, overtaken: Overtaken) -> None:
    late = await held.ask(Producer.try_init)
    await held.producer.init()
    await held.producer.write("t", 3)

    assert (await overtaken(late))[0] is NOT_AVAILABLE
    await held.producer.end(True)
    assert (await held.second.fetch("t", committed=True, end=4)).offsets == [0, 1, 2]


async def test_late_partition_does_not_begin_a_transaction(held: Held, overtaken: Overtaken) -> None:
    """Nobody would end it: when its time-out has passed, the producer is fenced."""
    await held.producer.init()
    late = await held.ask(lambda one: one.add(("t", 0), version=OLD))
    assert await held.producer.add(("t", 0), version=OLD) == [NONE]
    await held.producer.end(True, version=OLD)

    assert await overtaken(late) == [NOT_AVAILABLE]
    assert (await held.record()).is_idle


async def test_late_group_does_not_begin_a_transaction(held: Held, overtaken: Overtaken) -> None:
    await held.producer.init()
    late = await held.ask(lambda one: one.add_offsets("g", OLD))
    assert await held.producer.add_offsets("g", OLD) is NONE
    await held.producer.end(True, version=OLD)

    assert await overtaken(late) is NOT_AVAILABLE
    assert (await held.record()).is_idle


@pytest.mark.parametrize("is_commit", [True, False])
async def test_late_end_does_not_end_the_next_transaction(held: Held, overtaken: Overtaken, is_commit: bool) -> None:
    await held.producer.init()
    assert await held.producer.add(("t", 0), version=OLD) == [NONE]
    late = await held.ask(lambda one: one.try_end(is_commit, version=OLD))
    await held.producer.end(is_commit, version=OLD)
    assert await held.producer.add(("t", 1), version=OLD) == [NONE]

    assert (await overtaken(late))[0] is NOT_AVAILABLE
    assert (await held.record()).state is State.ONGOING


@pytest.mark.parametrize("later", [None, 50])
async def test_late_offset_is_not_staged_in_a_later_transaction(
    held: Held, overtaken: Overtaken, later: int | None
) -> None:
    """It would take a committed offset back, or, as that of an aborted transaction, skip records."""
    await held.producer.init()
    assert await held.producer.add_offsets("g", OLD) is NONE
    late = await held.ask(lambda one: one.commit_offset("g", 100, version=OLD))
    await held.producer.end(False, version=OLD)
    assert await held.producer.add_offsets("g", OLD) is NONE
    assert await held.producer.commit_offset("g", 200, version=OLD) is NONE
    await held.producer.end(True, version=OLD)
    assert await held.producer.add_offsets("g", OLD) is NONE
    if later is not None:
        assert await held.producer.commit_offset("g", later, version=OLD) is NONE

    assert await overtaken(late) is NOT_AVAILABLE
    await held.producer.end(True, version=OLD)
    assert await held.second.committed("g", stable=True) == (NONE, later or 200)


async def test_offset_that_met_the_end_of_its_transaction_is_not_staged_in_the_next(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However young it is."""
    await held.producer.init()
    assert await held.producer.add_offsets("g", OLD) is NONE
    stage = staged_offsets.stage

    async def after_the_end(*args: Any) -> None:
        monkeypatch.setattr(staged_offsets, "stage", stage)
        await held.producer.end(True, version=OLD)
        assert await held.producer.add_offsets("g", OLD) is NONE
        await stage(*args)

    monkeypatch.setattr(staged_offsets, "stage", after_the_end)
    prompt = await held.ask(lambda one: one.commit_offset("g", 100, version=OLD))
    assert await held.release(prompt, late=False) is NOT_AVAILABLE
    await held.producer.end(True, version=OLD)
    assert await held.second.committed("g", stable=True) == (NONE, -1)


async def test_prompt_request_behind_others_is_executed(held: Held) -> None:
    """A producer may add a group and partitions at the same time."""
    await held.producer.init()
    prompt = await held.ask(lambda one: one.add(("t", 0), version=OLD))
    assert await held.producer.add(("t", 1), version=OLD) == [NONE]

    assert await held.release(prompt, late=False) == [NONE]
    assert {one.partition for one in (await held.record()).partitions} == {0, 1}


async def test_late_request_that_nothing_has_overtaken_is_executed(held: Held) -> None:
    """Its client still waits: Redis was slow."""
    await held.producer.init()
    await asyncio.sleep(0.01)  # more than the clocks differ
    late = await held.ask(lambda one: one.add(("t", 0), version=OLD))

    assert await held.release(late, late=True) == [NONE]
