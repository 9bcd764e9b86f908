"""Background work on many things: other work of the event loop goes on in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

T = TypeVar("T")


async def slices(items: Iterable[T], size: int) -> AsyncIterator[list[T]]:
    """The items of now, in lists of at most `size` between which the event loop runs other work."""
    left = list(items)
    for first in range(0, len(left), size):
        if first:
            await asyncio.sleep(0)
        yield left[first : first + size]
