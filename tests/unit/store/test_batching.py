"""Work that callers share."""

from __future__ import annotations

import asyncio

import pytest

from tidegate.store.batching import Coalescer, SingleFlight


async def test_coalescer_callers_of_a_tick_share_a_run() -> None:
    runs: list[None] = []
    coalescer = Coalescer[str](lambda: runs.append(None))
    results: list[str] = []
    coalescer.add(results.append)
    coalescer.add(results.append)
    assert not runs

    await asyncio.sleep(0)
    coalescer.finish("first")

    assert len(runs) == 1
    assert results == ["first", "first"]


async def test_coalescer_caller_during_a_run_gets_the_next_one() -> None:
    runs: list[None] = []
    coalescer = Coalescer[str](lambda: runs.append(None))
    waiting = [asyncio.create_task(coalescer.wait())]
    await asyncio.sleep(0.001)
    waiting.append(asyncio.create_task(coalescer.wait()))
    await asyncio.sleep(0.001)
    assert len(runs) == 1

    coalescer.finish("first")
    await asyncio.sleep(0.001)
    assert len(runs) == 2
    coalescer.finish("second")

    assert await asyncio.gather(*waiting) == ["first", "second"]


async def test_coalescer_cancelled_caller_harms_no_other() -> None:
    coalescer = Coalescer[int](lambda: None)
    leaving, staying = asyncio.create_task(coalescer.wait()), asyncio.create_task(coalescer.wait())
    await asyncio.sleep(0.001)
    leaving.cancel()

    coalescer.finish(7)

    assert await staying == 7


async def test_coalescer_reply_gets_each_callback() -> None:
    replies: list[int] = []
    coalescer = Coalescer[int](lambda: None, lambda callback, result: callback(result + 1))
    coalescer.add(replies.append)
    await asyncio.sleep(0)
    coalescer.finish(1)
    assert replies == [2]


async def test_coalescer_callback_that_raises_ends_no_other() -> None:
    coalescer = Coalescer[int](lambda: None)
    results: list[int] = []

    def fail(_: int) -> None:
        raise MemoryError

    for on_result in (results.append, fail, results.append):
        coalescer.add(on_result)
    await asyncio.sleep(0)
    coalescer.finish(1)

    assert results == [1, 1]


async def test_single_flight_callers_share_a_call_and_the_next_begins_anew() -> None:
    flight, calls, gate = SingleFlight[str](), [], asyncio.Event()

    async def call() -> int:
        calls.append(None)
        await gate.wait()
        return len(calls)

    first, second = (asyncio.create_task(flight.do("key", call)) for _ in range(2))
    await asyncio.sleep(0.001)
    first.cancel()
    gate.set()

    assert await second == 1
    assert await flight.do("key", call) == 2


async def test_single_flight_failure_reaches_every_caller_and_is_not_cached() -> None:
    flight = SingleFlight[str]()

    async def fail() -> None:
        raise ValueError("no")

    async def succeed() -> str:
        return "yes"

    failures = await asyncio.gather(*(flight.do("key", fail) for _ in range(2)), return_exceptions=True)
    assert [type(one) for one in failures] == [ValueError, ValueError]
    assert await flight.do("key", succeed) == "yes"


async def test_single_flight_forget_begins_anew() -> None:
    flight, gate = SingleFlight[str](), asyncio.Event()

    async def slow() -> str:
        await gate.wait()
        return "old"

    async def quick() -> str:
        return "new"

    old = asyncio.create_task(flight.do("key", slow))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    flight.forget()

    assert await flight.do("key", quick) == "new"
    gate.set()
    assert await old == "old"


async def test_single_flight_close_cancels() -> None:
    flight = SingleFlight[str]()
    waiting = asyncio.create_task(flight.do("key", asyncio.Event().wait))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    await flight.close()

    with pytest.raises(asyncio.CancelledError):
        await waiting
