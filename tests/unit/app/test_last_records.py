"""The last records of a partition, whatever gaps its offsets have."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.cli.client.last_records import FetchedOffsets, offset_of_last

SIZE = 1_000
PAGE_RECORDS = 100


class Log:
    """Records at these offsets, read a page at a time."""

    def __init__(self, offsets: Sequence[int], size: int = SIZE) -> None:
        self._offsets, self._size = sorted(offsets), size
        self.reads = 0

    async def read(self, offset: int) -> FetchedOffsets:
        self.reads += 1
        first = bisect_left(self._offsets, offset)
        found = self._offsets[first : first + PAGE_RECORDS]
        return FetchedOffsets(found, found[-1] + 1 if found else offset, len(found) * self._size)

    async def last(self, count: int) -> int:
        end = self._offsets[-1] + 1 if self._offsets else 0
        return await offset_of_last(count, self._offsets[0] if self._offsets else 0, end, self.read)


async def test_last_records_without_gaps_take_one_read() -> None:
    log = Log(range(1_000))

    assert (await log.last(10), log.reads) == (990, 1)


async def test_last_records_that_are_days_apart_take_few_reads() -> None:
    day = 86_400_000 << 10
    log = Log([day * number for number in range(20_000, 20_030)])

    assert await log.last(10) == day * 20_020
    assert log.reads < 40


async def test_last_records_before_a_gap_are_found_where_they_are_dense() -> None:
    """A minute of 100,000 records, a day of none, and three records: 100 MB are not read for ten."""
    dense = range(1_000_000, 1_100_000)
    log = Log([*dense, 10**11, 10**11 + 5_000, 10**11 + 90_000])

    assert await log.last(10) == dense[-7]
    assert log.reads < 100


async def test_record_above_the_limit_of_bytes_is_read() -> None:
    log = Log([5, 6, 7, 8], size=8 << 20)

    assert await log.last(3) == 6


@pytest.mark.parametrize(("offsets", "expected"), [([], 0), ([7], 7), ([7, 9], 7)])
async def test_fewer_records_than_wanted_are_all(offsets: list[int], expected: int) -> None:
    assert await Log(offsets).last(3) == expected


@given(
    st.lists(st.integers(1, 1 << 45), min_size=1, max_size=40),
    st.integers(1, 50),
    st.sampled_from([1, SIZE, 1 << 20, 5 << 20]),
)
async def test_offset_of_last_is_that_of_the_nth_last_record(steps: list[int], count: int, size: int) -> None:
    offsets = [sum(steps[: at + 1]) for at in range(len(steps))]

    assert await Log(offsets, size).last(count) == offsets[-min(count, len(offsets))]
