"""Background work on many things: other work of the event loop goes on in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from heapq import merge
from typing import TypeVar

T = TypeVar("T")


class Pauses:
    """Pauses between elements of several collections: other work of the event loop runs after each `size` of them."""

    __slots__ = ("_count", "_size")

    def __init__(self, size: int) -> None:
        self._size, self._count = size, 0

    async def after(self, count: int = 1) -> None:
        """Some elements were handled."""
        self._count += count
        if self._count >= self._size:
            self._count = 0
            await asyncio.sleep(0)


async def slices(items: Iterable[T], size: int) -> AsyncIterator[list[T]]:
    """The items of now, in lists of at most `size` between which the event loop runs other work."""
    left = list(items)
    for first in range(0, len(left), size):
        if first:
            await asyncio.sleep(0)
        yield left[first : first + size]


async def in_order(items: Iterable[bytes], size: int) -> AsyncIterator[bytes]:
    """The items of now, sorted; the event loop runs other work after every `size` that are sorted, or yielded."""
    parts = [sorted(part) async for part in slices(items, size)]
    for number, item in enumerate(merge(*parts), 1):
        yield item
        if not number % size:
            await asyncio.sleep(0)
