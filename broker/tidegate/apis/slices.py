"""Long work of one request on the event loop, in slices with other work between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from tidegate.protocol.versions import Fields

SLICE: Final = 500
"""Elements of a request that are processed without a pause: a few ms."""

PARTITIONS: Final = 1_000
"""Partitions per script of a request that is stored or read in parts."""

T = TypeVar("T")
R = TypeVar("R")


async def in_slices(items: Iterable[T], size: int = SLICE) -> AsyncIterator[T]:
    """Each item; the event loop runs other work after every `size` of them."""
    count = 0
    for item in items:
        yield item
        count += 1
        if count == size:
            count = 0
            await asyncio.sleep(0)


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
            await asyncio.sleep(0)
    if part:
        results += await asyncio.gather(*map(work, part))
    return results
