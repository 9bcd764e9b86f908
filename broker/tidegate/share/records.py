"""The records of ShareFetch responses, and their acknowledgements."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tidegate.records.batch import iter_headers
from tidegate.records.record import iter_records


class Kind(enum.IntEnum):
    """How an offset is acknowledged."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


Place = tuple[UUID, int]
"""Topic id and partition."""


@dataclass(frozen=True, slots=True)
class ShareRecord:
    """A record that this consumer has acquired; `timestamp` in ms. Its first delivery has the count 1."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    delivery_count: int


def read(topic: str, partition: Any) -> tuple[list[ShareRecord], list[int]]:
    """The acquired records of a partition of a response, and the acquired offsets that have no record."""
    counts: dict[int, int] = {}
    for acquired in partition.acquired_records:
        counts.update(dict.fromkeys(range(acquired.first_offset, acquired.last_offset + 1), acquired.delivery_count))
    records, first, last = [], min(counts, default=0), max(counts, default=-1)
    for batch in iter_headers(memoryview(bytes(partition.records or b""))):
        if batch.is_control:
            continue
        for one in iter_records(batch, first):
            if one.offset > last:
                break
            count = counts.pop(one.offset, None)
            if count is not None:
                fields = (one.offset, one.timestamp, one.key, one.value, one.headers)
                records.append(ShareRecord(topic, partition.partition_index, *fields, count))
    return records, sorted(counts)


def batches(kinds: dict[int, Kind]) -> Iterator[tuple[int, int, list[int]]]:
    """Acknowledgement batches, (first, last, one kind): consecutive offsets of one kind together."""
    first = last = -1
    kind: Kind | None = None
    for offset in sorted(kinds):
        if kind is not None and offset == last + 1 and kinds[offset] is kind:
            last = offset
            continue
        if kind is not None:
            yield first, last, [int(kind)]
        first = last = offset
        kind = kinds[offset]
    if kind is not None:
        yield first, last, [int(kind)]


def by_topic(places: Iterable[Place]) -> dict[UUID, list[int]]:
    """Topic id -> partitions."""
    found: dict[UUID, list[int]] = {}
    for topic_id, index in sorted(places, key=lambda place: (place[0].bytes, place[1])):
        found.setdefault(topic_id, []).append(index)
    return found
