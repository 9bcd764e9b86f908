"""Readers who come at once share a look."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

import pytest

from tidegate.admin import shared as shared_module
from tidegate.admin.shared import Shared
from tidegate.errors import StoreUnavailable


class Kept(Shared):
    """Keeps for a minute what it found."""

    async def get(self, key: Hashable, look: Callable[[], Awaitable[Any]], fresh_s: float = 60.0) -> Any:
        return await super().get(key, look, fresh_s)


class Looking:
    """Counts looks; waits where it is told to."""

    def __init__(self) -> None:
        self.looks = 0
        self.fails = False

    async def __call__(self) -> int:
        self.looks += 1
        number = self.looks
        await asyncio.sleep(0)
        if self.fails:
            raise StoreUnavailable("away")
        return number


async def test_readers_of_one_moment_share_a_look() -> None:
    shared, look = Kept(), Looking()

    assert await asyncio.gather(*(shared.get("a", look) for _ in range(5))) == [1] * 5
    assert await shared.get("a", look) == 1
    assert await shared.get("b", look) == 2


async def test_what_is_old_is_looked_at_again() -> None:
    shared, look = Shared(), Looking()

    assert [await shared.get("a", look), await shared.get("a", look)] == [1, 2]


async def test_after_a_change_everybody_looks_again() -> None:
    shared, look = Kept(), Looking()
    await shared.get("a", look)
    shared.forget()

    assert await shared.get("a", look) == 2


async def test_a_failure_is_told_and_not_kept() -> None:
    shared, look = Kept(), Looking()
    look.fails = True
    with pytest.raises(StoreUnavailable):
        await shared.get("a", look)
    look.fails = False

    assert await shared.get("a", look) == 2


async def test_a_reader_who_goes_does_not_end_the_look_of_the_others() -> None:
    shared, look = Kept(), Looking()
    gone = asyncio.ensure_future(shared.get("a", look))
    await asyncio.sleep(0)
    stays = asyncio.ensure_future(shared.get("a", look))
    gone.cancel()

    assert await stays == 1


async def test_a_look_that_began_before_a_change_is_not_kept() -> None:
    shared, look = Kept(), Looking()
    before = asyncio.ensure_future(shared.get("a", look))
    while not look.looks:
        await asyncio.sleep(0)
    shared.forget()

    assert await shared.get("a", look) == 2
    assert await before == 1
    assert await shared.get("a", look) == 2


async def test_no_more_looks_are_under_way_than_that() -> None:
    shared, gate = Kept(at_once=2), asyncio.Event()
    under_way: list[int] = []

    async def look() -> int:
        under_way.append(1)
        await gate.wait()
        return under_way.pop()

    asked = [asyncio.ensure_future(shared.get(key, look)) for key in range(5)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(under_way) == 2
    gate.set()

    assert await asyncio.gather(*asked) == [1] * 5


async def test_what_took_long_is_told_for_as_long_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, looks = [100.0], [0]
    monkeypatch.setattr(shared_module, "monotonic", lambda: now_s[0])
    shared = Shared()

    async def slow() -> int:
        looks[0] += 1
        now_s[0] += 3
        return looks[0]

    assert await shared.get("a", slow) == 1
    now_s[0] += 2.9
    assert await shared.get("a", slow) == 1
    now_s[0] += 0.2
    assert await shared.get("a", slow) == 2
