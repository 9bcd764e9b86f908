"""Answers for the elements of a request that is short and may ask for much: by repetition, or of much that is stored.

What is asked for repeatedly is read once, and its answers share one object. Beyond a number of bytes the elements that
are left get a retriable error: clients ask for those again, without the ones that were answered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final, TypeVar

from tidegate.apis.slices import each, in_slices
from tidegate.errors import CoordinatorLoadInProgress, InvalidRequest, KafkaError
from tidegate.log.offload import ENCODED
from tidegate.protocol.versions import Fields

ANSWER_BYTES_MAX: Final = 16 << 20
"""Bytes of one answer to several elements; the first one is answered whatever it has."""
BEYOND: Final = "the answer is full: ask for this one again"
_AT_ONCE: Final = 4
"""Distinct elements of one request that are read at the same time: their bytes are known only then."""
_FIELD_BYTES: Final = 8

T = TypeVar("T")
R = TypeVar("R")


async def each_once(
    asked: Sequence[T],
    read: Callable[[T], Awaitable[R]],
    refuse: Callable[[T, KafkaError], R],
    key: Callable[[T], Hashable] = lambda one: one,
    beyond: type[KafkaError] = CoordinatorLoadInProgress,
) -> list[R]:
    """The answer of every element in order, from `read`, or from `refuse` if that raises KafkaError.

    Elements of equal `key` have one answer. Those beyond the bytes of an answer are refused with `beyond`.
    """
    read_bytes = 0

    async def sized(one: T) -> tuple[R, int]:
        nonlocal read_bytes
        if read_bytes > ANSWER_BYTES_MAX:
            return refuse(one, beyond(BEYOND)), 0
        try:
            answer = await read(one)
        except KafkaError as error:
            answer = refuse(one, error)
        size = len(answer) if isinstance(answer, bytes) else await ENCODED.run(answer_bytes, answer)
        read_bytes += size
        return answer, size

    keys = [key(one) async for one in in_slices(asked)]
    distinct = dict(zip(keys, asked, strict=True))
    found = dict(zip(distinct, await each(distinct.values(), sized, _AT_ONCE), strict=True))
    answers: list[R] = []
    total = 0
    async for one, its_key in in_slices(zip(asked, keys, strict=True)):
        answer, size = found[its_key]
        if total and total + size > ANSWER_BYTES_MAX:
            answer = refuse(one, beyond(BEYOND))
        else:
            total += size
        answers.append(answer)
    return answers


async def refuse_repeated(topics: Iterable[tuple[Hashable, Iterable[int]]]) -> None:
    """Raise InvalidRequest if a partition is named twice: a short request would get its answer many times."""
    named: dict[Hashable, set[int]] = {}
    for label, indexes in topics:
        of_topic = named.setdefault(label, set())
        async for index in in_slices(indexes):
            if index in of_topic:
                raise InvalidRequest(f"partition {index} of {label} is named twice among many")
            of_topic.add(index)


def answer_bytes(value: Any) -> int:
    """About the bytes of a part of an answer."""
    if isinstance(value, str | bytes):
        return _FIELD_BYTES + len(value)
    if isinstance(value, tuple):
        return _FIELD_BYTES + sum(map(answer_bytes, value))
    if isinstance(value, Fields):
        return sum(map(answer_bytes, vars(value).values()))
    if is_dataclass(value):
        return sum(answer_bytes(getattr(value, one.name)) for one in fields(value))
    return _FIELD_BYTES
