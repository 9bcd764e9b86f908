"""Readers who come at once share a look."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

import pytest

from tidegate.errors import StoreUnavailable
from tidegate.http import single_flight as shared_module
from tidegate.http.single_flight import SingleFlightCache


class Kept(SingleFlightCache):
    """Keeps for a minute what it found."""

    async def get(self, key: Hashable, observe: Callable[[], Awaitable[Any]], fresh_s: float = 60.0) -> Any:
        return await super().get(key, observe, fresh_s)


class Reading:
    """Counts calls; waits where the test wants."""

    def __init__(self) -> None:
        self.observations = 0
        self.fails = False

    async def __call__(self) -> int:
        self.observations += 1
        number = self.observations
        await asyncio.sleep(0)
        if self.fails:
            raise StoreUnavailable("away")
        return number


async def test_single_flight_concurrent_readers_share_one_read() -> None:
    single_flight, observe = Kept(), Reading()

    assert await asyncio.gather(*(single_flight.get("a", observe) for _ in range(5))) == [1] * 5
    assert await single_flight.get("a", observe) == 1
    assert await single_flight.get("b", observe) == 2


async def test_single_flight_expired_value_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_module, "monotonic", lambda: 5.0)  # a load took no time, so nothing stays fresh
    single_flight, observe = SingleFlightCache(), Reading()

    assert [await single_flight.get("a", observe), await single_flight.get("a", observe)] == [1, 2]


async def test_single_flight_change_makes_every_reader_read_again() -> None:
    single_flight, observe = Kept(), Reading()
    await single_flight.get("a", observe)
    single_flight.forget()

    assert await single_flight.get("a", observe) == 2


async def test_single_flight_failure_is_raised_and_not_cached() -> None:
    single_flight, observe = Kept(), Reading()
    observe.fails = True
    with pytest.raises(StoreUnavailable):
        await single_flight.get("a", observe)
    observe.fails = False

    assert await single_flight.get("a", observe) == 2


async def test_single_flight_cancelled_reader_does_not_end_the_read_of_the_others() -> None:
    single_flight, observe = Kept(), Reading()
    gone = asyncio.ensure_future(single_flight.get("a", observe))
    await asyncio.sleep(0)
    stays = asyncio.ensure_future(single_flight.get("a", observe))
    gone.cancel()

    assert await stays == 1


async def test_single_flight_read_begun_before_a_change_is_not_cached() -> None:
    single_flight, observe = Kept(), Reading()
    before = asyncio.ensure_future(single_flight.get("a", observe))
    while not observe.observations:
        await asyncio.sleep(0)
    single_flight.forget()

    assert await single_flight.get("a", observe) == 2
    assert await before == 1
    assert await single_flight.get("a", observe) == 2


async def test_single_flight_reads_under_way_are_limited() -> None:
    single_flight, gate = Kept(at_once=2), asyncio.Event()
    under_way: list[int] = []

    async def observe() -> int:
        under_way.append(1)
        await gate.wait()
        return under_way.pop()

    asked = [asyncio.ensure_future(single_flight.get(key, observe)) for key in range(5)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(under_way) == 2
    gate.set()

    assert await asyncio.gather(*asked) == [1] * 5


async def test_single_flight_slow_value_is_cached_for_as_long_as_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, observations = [100.0], [0]
    monkeypatch.setattr(shared_module, "monotonic", lambda: now_s[0])
    single_flight = SingleFlightCache()

    async def slow() -> int:
        observations[0] += 1
        now_s[0] += 3
        return observations[0]

    assert await single_flight.get("a", slow) == 1
    now_s[0] += 2.9
    assert await single_flight.get("a", slow) == 1
    now_s[0] += 0.2
    assert await single_flight.get("a", slow) == 2


async def test_single_flight_load_within_a_load_is_an_error() -> None:
    single_flight, observe = Kept(), Reading()

    async def nested() -> int:
        found = await asyncio.gather(single_flight.get("inner", observe))
        return found[0]

    with pytest.raises(RuntimeError, match="inner is read within another load"):
        await single_flight.get("outer", nested)
    assert await single_flight.get("inner", observe) == 1
