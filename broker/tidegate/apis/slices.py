"""Long work of requests on the event loop, in slices with other work between them.

However many requests have such work: between two rounds of input and output only one of their slices is run.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from tidegate.protocol.versions import Fields

SLICE: Final = 500
"""Elements of a request that are processed without a pause: a few ms."""

PARTITIONS: Final = 1_000
"""Partitions per script of a request that is stored or read in parts."""

T = TypeVar("T")
R = TypeVar("R")


class _Slices:
    """The slices of one event loop that wait for their round, in order."""

    __slots__ = ("_running", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = False

    def add(self, loop: asyncio.AbstractEventLoop, run: Callable[[], None]) -> None:
        self._waiting.append(run)
        if not self._running:
            self._running = True
            loop.call_soon(self._run_one, loop)

    def _run_one(self, loop: asyncio.AbstractEventLoop) -> None:
        run = self._waiting.popleft()
        if self._waiting:
            loop.call_soon(self._run_one, loop)
        else:
            self._running = False
        run()


_slices: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Slices] = weakref.WeakKeyDictionary()


def run_slice(run: Callable[[], None]) -> None:
    """Run a slice once the event loop has run other work, and one slice of each other request that waits here."""
    loop = asyncio.get_running_loop()
    found = _slices.get(loop)
    if found is None:
        found = _slices[loop] = _Slices()
    found.add(loop, run)


async def pause() -> None:
    """End a slice; returns when `run_slice` would run the next one."""
    next_slice = asyncio.get_running_loop().create_future()
    run_slice(lambda: None if next_slice.done() else next_slice.set_result(None))
    await next_slice


async def in_slices(items: Iterable[T], size: int = SLICE) -> AsyncIterator[T]:
    """Each item; the event loop runs other work after every `size` of them."""
    count = 0
    for item in items:
        yield item
        count += 1
        if count == size:
            count = 0
            await pause()


class Slices:
    """The slices of a request whose elements are in several arrays: a topic counts as a partition does.

    With slices of their own, thousands of topics with few partitions or none would be processed without a pause.
    """

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    async def of(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Each item; the event loop runs other work after the last one of a slice."""
        for item in items:
            yield item
            self._count += 1
            if self._count >= SLICE:
                self._count = 0
                await pause()


def parts_of(topics: Iterable[Any], field: str) -> Iterator[Any]:
    """The topics of a request, each with at most `PARTITIONS` of its partitions; `field` names their attribute."""
    for topic in topics:
        partitions = getattr(topic, field)
        for first in range(0, len(partitions), PARTITIONS):
            yield Fields(topic, **{field: partitions[first : first + PARTITIONS]})
        if not partitions:
            yield topic


def batches_of(topics: Iterable[Any], field: str) -> Iterator[list[Any]]:
    """The same in batches of `PARTITIONS` partitions together; a topic counts as one more."""
    batch: list[Any] = []
    count = 0
    for topic in parts_of(topics, field):
        size = 1 + len(getattr(topic, field))
        if batch and count + size > PARTITIONS + 1:
            yield batch
            batch, count = [], 0
        batch.append(topic)
        count += size
    if batch:
        yield batch


def join_topics(results: Iterable[tuple[T, list[R]]]) -> list[tuple[T, list[R]]]:
    """Merge the results of topics in parts into results of whole topics."""
    joined: list[tuple[T, list[R]]] = []
    for label, partitions in results:
        if joined and joined[-1][0] == label:
            joined[-1][1].extend(partitions)
        else:
            joined.append((label, list(partitions)))
    return joined


async def each(items: Iterable[T], work: Callable[[T], Awaitable[R]], at_once: int) -> list[R]:
    """The results of work on every item in order, `at_once` of them concurrently."""
    results: list[R] = []
    part: list[T] = []
    for item in items:
        part.append(item)
        if len(part) == at_once:
            results += await asyncio.gather(*map(work, part))
            part.clear()
            await pause()
    if part:
        results += await asyncio.gather(*map(work, part))
    return results
