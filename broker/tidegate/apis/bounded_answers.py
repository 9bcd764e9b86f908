"""Answers for the elements of a request that is short and may ask for much: by repetition, or of much that is stored.

What is asked for repeatedly is read once, and its answers share one object. Beyond a number of bytes the elements that
are left get a retriable error: clients ask for those again, without the ones that were answered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Final, TypeVar

from tidegate.apis.slices import each, in_slices

ANSWER_BYTES_MAX: Final = 16 << 20
"""Bytes of one answer to several elements; the first one is answered whatever it has."""
_AT_ONCE: Final = 20
"""Distinct elements of one request that are read at the same time."""

T = TypeVar("T")
R = TypeVar("R")


async def each_once(
    asked: Sequence[T],
    work: Callable[[T], Awaitable[tuple[R, int]]],
    refuse: Callable[[T], R],
    key: Callable[[T], Hashable] = lambda one: one,
) -> list[R]:
    """The answer of every element in order, from `work`, which also returns its bytes, or from `refuse`.

    Elements of equal `key` have one answer.
    """
    read_bytes = 0

    async def read(one: T) -> tuple[R, int]:
        nonlocal read_bytes
        if read_bytes > ANSWER_BYTES_MAX:
            return refuse(one), 0
        found = await work(one)
        read_bytes += found[1]
        return found

    keys = [key(one) async for one in in_slices(asked)]
    distinct = dict(zip(keys, asked, strict=True))
    found = dict(zip(distinct, await each(distinct.values(), read, _AT_ONCE), strict=True))
    answers: list[R] = []
    total = 0
    async for one, its_key in in_slices(zip(asked, keys, strict=True)):
        answer, size = found[its_key]
        if total and total + size > ANSWER_BYTES_MAX:
            answer = refuse(one)
        else:
            total += size
        answers.append(answer)
    return answers
