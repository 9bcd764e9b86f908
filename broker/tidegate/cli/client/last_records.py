"""Finds the last records of a partition, whose offsets may have gaps: format record, compaction, transactions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

_READ_BYTES_MAX: Final = 1 << 20
_FACTOR: Final = 4


class FetchedOffsets(NamedTuple):
    """The offsets of the records that one Fetch returned, the offset after them, and their bytes."""

    offsets: Sequence[int]
    end_offset: int
    size: int


ReadPage = Callable[[int], Awaitable[FetchedOffsets]]
"""Fetches from an offset on; a page without records ends at that offset."""


async def offset_of_last(count: int, log_start: int, end: int, read: ReadPage) -> int:
    """The offset of the `count`th last record below `end`; `log_start` if there are fewer.

    Reads ranges of offsets backwards, each four times as wide as the one before. Where one has too many bytes, the rest
    of it is halved.
    """
    missing, stop, width = count, end, count
    dense_until = end
    while stop > log_start:
        start = max(stop - width, log_start)
        found, reached = await _read_between(start, stop, read)
        if reached < stop:
            dense_until = reached
        elif len(found) >= missing:
            return found[-missing]
        else:
            missing -= len(found)
            stop = start
        width = max((stop - dense_until) // 2, 1) if dense_until < stop else width * _FACTOR
    return log_start


async def _read_between(start: int, stop: int, read: ReadPage) -> tuple[list[int], int]:
    """Offsets of records, and where the read ended: below `stop` after about 1 MiB, never for one offset."""
    found: list[int] = []
    size, at = 0, start
    while at < stop and size < _READ_BYTES_MAX:
        page = await read(at)
        if page.end_offset <= at:
            return found, stop
        found += (offset for offset in page.offsets if offset < stop)
        size += page.size
        at = page.end_offset
    return found, at
