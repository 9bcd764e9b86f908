"""The plan of a compaction round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.support.logs import batch_bytes
from tidegate.log.compaction import _Plan
from tidegate.records.batch import Batch
from tidegate.records.batch_header import TRANSACTIONAL
from tidegate.records.build import NewRecord, build_batch

PRODUCER_ID = 7


class CountedList(list[tuple[int, int]]):
    """A list that counts the items read."""

    items_read = 0

    def __getitem__(self, index: Any) -> Any:
        self.items_read += 1
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return (self[i] for i in range(len(self)))


def plan_of(aborted: list[tuple[int, int]]) -> _Plan:
    return _Plan(0, 0, 1 << 40, now_ms=0, markers_before_ms=0, aborted={PRODUCER_ID: aborted})


def transactional_batch(producer_id: int = PRODUCER_ID) -> Batch:
    records = [NewRecord(b"v", b"k")]
    return Batch.parse(
        build_batch(records, attributes=TRANSACTIONAL, producer_id=producer_id, producer_epoch=0, base_sequence=0)
    )


def test_is_aborted_within_the_offsets_of_an_aborted_transaction() -> None:
    plan, batch = plan_of([(10, 14), (20, 24), (25, 29)]), transactional_batch()

    aborted = [offset for offset in range(32) if plan.is_aborted(batch, offset)]

    assert aborted == [*range(10, 14), *range(20, 24), *range(25, 29)]
    assert not plan.is_aborted(transactional_batch(producer_id=8), 10)
    assert not plan.is_aborted(Batch.parse(batch_bytes(1, PRODUCER_ID, 0, 0)), 10)


def test_is_aborted_with_many_aborted_transactions_reads_few() -> None:
    ranges = CountedList((offset, offset + 5) for offset in range(0, 1_000_000, 10))
    plan, batch = plan_of(ranges), transactional_batch()

    aborted = [offset for offset in range(999_900, 1_000_000) if plan.is_aborted(batch, offset)]

    assert aborted == [offset for offset in range(999_900, 1_000_000) if offset % 10 < 5]
    assert ranges.items_read <= 20 * 100
