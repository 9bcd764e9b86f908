"""Long work of one request on the event loop, in slices: others have their turn between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Final, TypeVar

SLICE: Final = 500
"""Elements of a request that are worked on in one go: some ms."""

T = TypeVar("T")
R = TypeVar("R")


async def in_slices(items: Iterable[T], size: int = SLICE) -> AsyncIterator[T]:
    """Each item; the event loop has its turn after every `size` of them."""
    count = 0
    for item in items:
        yield item
        count += 1
        if count == size:
            count = 0
            await asyncio.sleep(0)


async def each(items: Iterable[T], work: Callable[[T], Awaitable[R]], at_once: int) -> list[R]:
    """The results of work on every item in order, `at_once` of them at one time."""
    results: list[R] = []
    part: list[T] = []
    for item in items:
        part.append(item)
        if len(part) == at_once:
            results += await asyncio.gather(*map(work, part))
            part.clear()
            await asyncio.sleep(0)
    if part:
        results += await asyncio.gather(*map(work, part))
    return results
