"""Batches on their way from one topic to another: without producer, cut to a range, spread by key.

Codec, timestamps and headers stay; a batch is opened only to be cut or spread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tidegate.errors import KafkaError
from tidegate.records.batch import Batch
from tidegate.records.batch_header import (
    ATTRIBUTES_AT,
    INT16,
    LENGTH_OVERHEAD,
    PLACE,
    PRODUCER,
    PRODUCER_AT,
    TIMESTAMP_TYPE,
    TRANSACTIONAL,
)
from tidegate.records.build import NewRecord, build_batch, seal
from tidegate.records.record import Record, read_records
from tidegate_pipeline.errors import CorruptLimit
from tidegate_pipeline.replay.partitioner import partition_of

ENTRY_BYTES_MAX: Final = 1 << 20
"""As brokers' `tidegate.log.append.ENTRY_BYTES_MAX`: an entry is larger only where one batch is."""
ENTRY_BATCHES_MAX: Final = 1_000
"""What a script can hand on in one command."""


class TargetBatch(NamedTuple):
    """A batch for the target, and the source offsets that it is from, `first` to `last`.

    `start` is the source offset after what went to that target partition before. An empty batch only says that it
    gets nothing of the offsets up to `last`.
    """

    start: int
    first: int
    last: int
    batch: bytes
    records: int


def convert_batch(
    stored: bytes, base: int, partition: int, first: int, end: int, spread: int
) -> Iterator[tuple[int, TargetBatch]]:
    """(target partition, batch for it) of one stored batch: its records with first <= offset < end.

    `spread` is how many partitions keys are spread over, 0: every record stays in its partition. Markers give none.
    Raises CorruptLimit.
    """
    try:
        batch = Batch.parse(stored)
        batch.verify_crc()
        if batch.is_control:
            return
        batch.base_offset = base
        last = base + batch.last_offset_delta
        if not spread and first <= base and last < end:
            yield partition, TargetBatch(base, base, last, without_producer(batch), batch.record_count)
            return
        records = [record for record in read_records(batch) if first <= record.offset < end]
    except KafkaError as error:
        raise CorruptLimit(f"the batch at offset {base} of partition {partition} is corrupt: {error}") from error
    if not spread:
        yield from ((partition, target_batch) for target_batch in _rebuilt(batch, records))
        return
    by_target: defaultdict[int, list[Record]] = defaultdict(list)
    for record in records:
        by_target[partition % spread if record.key is None else partition_of(record.key, spread)].append(record)
    for target, chosen in by_target.items():
        yield from ((target, target_batch) for target_batch in _rebuilt(batch, chosen))


def without_producer(batch: Batch) -> bytes:
    """A copy that no producer and no transaction knows of; where it had neither, all but its place stays."""
    changed = bytearray(batch.buffer)
    PLACE.pack_into(changed, 0, 0, batch.size - LENGTH_OVERHEAD, -1)
    if batch.producer_id < 0 and batch.producer_epoch < 0 and batch.base_sequence < 0 and not batch.is_transactional:
        return bytes(changed)
    INT16.pack_into(changed, ATTRIBUTES_AT, batch.attributes & ~TRANSACTIONAL)
    PRODUCER.pack_into(changed, PRODUCER_AT, -1, -1, -1)
    return bytes(seal(changed))


def entries_of(target_batches: Sequence[TargetBatch], records_max: int) -> Iterator[list[TargetBatch]]:
    """Group batches into entries, within the limits of an entry and of the rate limiter."""
    entry: list[TargetBatch] = []
    size = records = 0
    for target_batch in target_batches:
        size, records = size + len(target_batch.batch), records + target_batch.records
        if entry and (size > ENTRY_BYTES_MAX or records > records_max or len(entry) == ENTRY_BATCHES_MAX):
            yield entry
            entry, size, records = [], len(target_batch.batch), target_batch.records
        entry.append(target_batch)
    if entry:
        yield entry


def _rebuilt(batch: Batch, records: Sequence[Record]) -> Iterator[TargetBatch]:
    """One new batch of some of a batch's records, in order; none of none."""
    if not records:
        return
    new = [NewRecord(record.value, record.key, record.timestamp, record.headers) for record in records]
    built = build_batch(new, codec=batch.codec, attributes=batch.attributes & TIMESTAMP_TYPE)
    yield TargetBatch(records[0].offset, records[0].offset, records[-1].offset, built, len(new))
