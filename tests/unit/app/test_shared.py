"""Readers who come at once share a look."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

import pytest

from tidegate.admin import single_flight as shared_module
from tidegate.admin.single_flight import SingleFlightCache
from tidegate.errors import StoreUnavailable


class Kept(SingleFlightCache):
    """Keeps for a minute what it found."""

    async def get(self, key: Hashable, observe: Callable[[], Awaitable[Any]], fresh_s: float = 60.0) -> Any:
        return await super().get(key, observe, fresh_s)


class Looking:
    """Counts looks; waits where it is told to."""

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


async def test_readers_of_one_moment_share_a_look() -> None:
    single_flight, observe = Kept(), Looking()

    assert await asyncio.gather(*(single_flight.get("a", observe) for _ in range(5))) == [1] * 5
    assert await single_flight.get("a", observe) == 1
    assert await single_flight.get("b", observe) == 2


async def test_what_is_old_is_looked_at_again() -> None:
    single_flight, observe = SingleFlightCache(), Looking()

    assert [await single_flight.get("a", observe), await single_flight.get("a", observe)] == [1, 2]


async def test_after_a_change_everybody_looks_again() -> None:
    single_flight, observe = Kept(), Looking()
    await single_flight.get("a", observe)
    single_flight.forget()

    assert await single_flight.get("a", observe) == 2


async def test_a_failure_is_told_and_not_kept() -> None:
    single_flight, observe = Kept(), Looking()
    observe.fails = True
    with pytest.raises(StoreUnavailable):
        await single_flight.get("a", observe)
    observe.fails = False

    assert await single_flight.get("a", observe) == 2


async def test_a_reader_who_goes_does_not_end_the_look_of_the_others() -> None:
    single_flight, observe = Kept(), Looking()
    gone = asyncio.ensure_future(single_flight.get("a", observe))
    await asyncio.sleep(0)
    stays = asyncio.ensure_future(single_flight.get("a", observe))
    gone.cancel()

    assert await stays == 1


async def test_a_look_that_began_before_a_change_is_not_kept() -> None:
    single_flight, observe = Kept(), Looking()
    before = asyncio.ensure_future(single_flight.get("a", observe))
    while not observe.observations:
        await asyncio.sleep(0)
    single_flight.forget()

    assert await single_flight.get("a", observe) == 2
    assert await before == 1
    assert await single_flight.get("a", observe) == 2


async def test_no_more_looks_are_under_way_than_that() -> None:
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


async def test_what_took_long_is_told_for_as_long_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
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
