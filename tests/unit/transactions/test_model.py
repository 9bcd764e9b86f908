"""The fields of large transactions."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.transactions.model import Transaction, TransactionPartition, fields_of, parse


class Compared(TransactionPartition):
    """Counts comparisons."""

    count = 0

    def __lt__(self, other: Any) -> bool:
        Compared.count += 1
        return super().__lt__(other)


@pytest.mark.parametrize(("partition_count", "is_sorted"), [(2_000, True), (50_000, False)])
def test_few_partitions_are_sorted_and_many_take_no_comparison(partition_count: int, is_sorted: bool) -> None:
    Compared.count = 0
    partitions = frozenset(Compared("t", number, "ab") for number in range(partition_count))

    found = fields_of(Transaction(9, 0, 60_000, partitions=partitions))

    fields = dict(zip(found[::2], found[1::2], strict=True))
    words = str(fields["partitions"]).split()
    assert (Compared.count > 0) is is_sorted
    if is_sorted:
        assert words == sorted(words, key=lambda word: int(word.split(":")[1]))
    times = {"start_ms": -1, "update_ms": -1, "ended_ms": -1, "version": ""}
    read = parse({str(name).encode(): str(value).encode() for name, value in {**fields, **times}.items()})
    assert read is not None and read.partitions == partitions
