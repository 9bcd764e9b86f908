"""What a ShareFetch offers to the script behind a window: batches, or single records with their key and time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Final

from tidegate.errors import CorruptMessage, InvalidRecord
from tidegate.groups.share.records import Reads, Run
from tidegate.records.batch import Batch
from tidegate.records.control import MarkerType, read_marker
from tidegate.records.record import Record, iter_records

DELIVER_AT: Final = "tidegate.deliver.at"
"""Header: the time in ms since 1970 before which a record is not delivered, as decimal text."""
_RUNS_MAX: Final = 2_000
_RUNS_MIN: Final = 64
"""Runs of one offer, twice as many as records are wanted, for some must wait; what is left is offered by the next."""
_INLINE_BYTES_MAX: Final = 1 << 15
"""Batches above this size together are opened in a thread."""
_KEY_BYTES: Final = 8
"""Two keys of one digest only wait for each other."""
_DIGITS_MAX: Final = 15


def offered_runs(batches: Sequence[Batch], aborted: Sequence[tuple[int, int]]) -> list[Run]:
    """The batches, and whether the records of each are of an aborted transaction.

    `aborted` has the producer id and the first offset of each aborted transaction; its marker ends it.
    """
    pending = sorted(aborted, key=lambda one: one[1])
    active: set[int] = set()
    offered: list[Run] = []
    for batch in batches:
        while pending and pending[0][1] < batch.next_offset:
            active.add(pending.pop(0)[0])
        if batch.is_control:
            marker = read_marker(batch.buffer)
            if marker is not None and marker.type is MarkerType.ABORT:
                active.discard(batch.producer_id)
        is_aborted = batch.is_transactional and not batch.is_control and batch.producer_id in active
        offered.append(Run(batch.base_offset, batch.next_offset - 1, is_aborted))
    return offered


def enough_runs(runs: Sequence[Run], start: int, wanted: int) -> Sequence[Run]:
    """The first runs that have so many records from an offset on: the script takes no more."""
    for place, run in enumerate(runs):
        if not run.is_aborted:
            wanted -= max(run.last + 1 - max(run.first, start), 0)
        if wanted <= 0:
            return runs[: place + 1]
    return runs


async def single_records(
    batches: Sequence[Batch], runs: Sequence[Run], start: int, wanted: int, reads: Reads
) -> list[Run]:
    """The runs from an offset on, with the records that have a key or a time by themselves, for so many records."""
    runs_max = min(max(2 * wanted, _RUNS_MIN), _RUNS_MAX)
    if sum(batch.size for batch in batches) <= _INLINE_BYTES_MAX:
        return list(islice(_opened(batches, runs, start, reads), runs_max))
    return await asyncio.to_thread(lambda: list(islice(_opened(batches, runs, start, reads), runs_max)))


def _opened(batches: Sequence[Batch], runs: Sequence[Run], start: int, reads: Reads) -> Iterator[Run]:
    for batch, run in zip(batches, runs, strict=True):
        if run.last < start:
            continue
        if run.is_aborted or batch.is_control:
            yield run
        else:
            yield from _of_batch(batch, run, start, reads)


def _of_batch(batch: Batch, run: Run, start: int, reads: Reads) -> Iterator[Run]:
    """Records without key and time stay together, with the offsets between them."""
    first = max(run.first, start)
    try:
        for record in iter_records(batch, start):
            key = ""
            if reads.by_key and record.key is not None:
                key = blake2b(record.key, digest_size=_KEY_BYTES).hexdigest()
            deliver_at_ms = _deliver_at(record) if reads.by_time else 0
            if not (key or deliver_at_ms):
                continue
            if first < record.offset:
                yield Run(first, record.offset - 1)
            yield Run(record.offset, record.offset, key=key, deliver_at_ms=deliver_at_ms)
            first = record.offset + 1
    except (CorruptMessage, InvalidRecord):
        pass  # the rest of its records have no order that anybody can read
    if first <= run.last:
        yield Run(first, run.last)


def _deliver_at(record: Record) -> int:
    """The time of its header; 0 without one, and if it is not a number."""
    value = next((value for name, value in reversed(record.headers) if name == DELIVER_AT), None)
    if value is None or not value.isdigit() or len(value) > _DIGITS_MAX:
        return 0
    return int(value)
