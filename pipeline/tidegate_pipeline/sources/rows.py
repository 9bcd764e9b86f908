"""Stored batches of one range as Arrow rows: records (decoded) or the batches themselves (raw)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any, Final, Protocol

import pyarrow as pa

from tidegate.errors import KafkaError
from tidegate.records.batch import Batch, Buffer, place
from tidegate.records.batch_header import (
    ATTRIBUTES_LOW_AT,
    CONTROL,
    HEADER_BYTES,
    INT64,
    MAGIC,
    MAGIC_AT,
    PRODUCER_AT,
    TRANSACTIONAL,
)
from tidegate_pipeline.decode.decoder import CorruptBatch, Decoder, StoredBatch
from tidegate_pipeline.decode.schema import RAW_ARROW, RAW_RANGE_ARROW
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.redis_access import retry_while_unavailable
from tidegate_pipeline.sources.access import Access
from tidegate_pipeline.sources.committed import Transactions, reading_transactions
from tidegate_pipeline.sources.options import TopicOptions
from tidegate_pipeline.sources.planning import PlannedRange, keys_of_range
from tidegate_pipeline.sources.walking import parse_epochs

_TRANSACTION_BITS: Final = TRANSACTIONAL | CONTROL
"""Both bits: a marker."""
_EMPTY: Final = (0, -1, -1, 0, -1, -1, -1, 0, ())


class Rows(Protocol):
    """Makes rows of a range's batches."""

    corrupt: list[CorruptBatch]
    """Batches that gave no rows, and why."""

    def make(self, batches: Iterable[StoredBatch]) -> Iterator[pa.RecordBatch]:
        """All rows, in groups of about `groupBytes`."""


class DecodedRows:
    """One row a record. Control batches have none."""

    def __init__(self, range_: PlannedRange, options: TopicOptions) -> None:
        self.corrupt: list[CorruptBatch] = []
        self._range = range_
        self._group_size = options.group_size
        self._decoder = Decoder(
            engine=options.decoder,
            include_headers=options.include_headers,
            decoded_batch_max=options.decoded_batch_max,
        )

    def make(self, batches: Iterable[StoredBatch]) -> Iterator[pa.RecordBatch]:
        """All rows, in groups of about `groupBytes`."""
        wanted = self._range
        for rows, corrupt in self._decoder.groups(
            wanted.topic, wanted.partition, batches, wanted.start, wanted.end, self._group_size
        ):
            self.corrupt += corrupt
            yield rows


class RawRows:
    """One row a batch, as a broker serves it.

    With `includeRange` rows leave no hole: see `RAW_RANGE_ARROW`; then markers of transactions are rows too.
    A batch belongs to the range that holds its last offset.
    """

    def __init__(self, range_: PlannedRange, options: TopicOptions, epochs: bytes) -> None:
        self.corrupt: list[CorruptBatch] = []
        self._range = range_
        self._next = range_.start
        self._epochs = parse_epochs(epochs)
        self._include_range = options.include_range
        self._group_size = options.group_size

    def make(self, batches: Iterable[StoredBatch]) -> Iterator[pa.RecordBatch]:
        """All rows, in groups of about `groupBytes`."""
        group: list[tuple[Any, ...]] = []
        size = 0
        for stored in batches:
            group += self._row(stored)
            size += len(stored.buffer)
            if size >= self._group_size:
                yield self._record_batch(group)
                group, size = [], 0
        if self._include_range and self._next < self._range.end:
            group.append(self._hole(self._range.end - 1))
        yield self._record_batch(group)

    def _row(self, stored: StoredBatch) -> Iterator[tuple[Any, ...]]:
        batch, reason = check(stored)
        last = stored.base_offset + (batch.last_offset_delta if batch else 0)
        if batch is None or reason:  # what follows says where it ends: its own header may be what is wrong
            last = max(last, stored.base_offset)
            if self._next <= last and stored.base_offset < self._range.end:
                self.corrupt.append(CorruptBatch(stored.base_offset, last, reason, bytes(stored.buffer)))
            return
        if last >= self._range.end:  # its first part is a hole of its own
            if self._include_range and self._next < stored.base_offset < self._range.end:
                yield self._hole(stored.base_offset - 1)
            return
        if last < self._next:
            return
        if self._include_range and self.corrupt and self._next <= self.corrupt[-1].base_offset < stored.base_offset:
            yield self._hole(stored.base_offset - 1)
        if batch.is_control and not self._include_range:
            return
        epoch = self._epoch_at(stored.base_offset)
        placed = (stored.buffer,) if epoch is None else place(stored.buffer, stored.base_offset, epoch)
        yield self._ranged(
            (
                stored.base_offset, last, batch.record_count, batch.base_timestamp, batch.max_timestamp,
                batch.attributes, batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.crc, placed,
            ),
            last,
        )  # fmt: skip

    def _hole(self, last: int) -> tuple[Any, ...]:
        return self._ranged((self._next, last, *_EMPTY), last)

    def _ranged(self, row: tuple[Any, ...], last: int) -> tuple[Any, ...]:
        from_offset, self._next = self._next, last + 1
        return (*row, self._range.topic_id, from_offset)

    def _epoch_at(self, offset: int) -> int | None:
        """The leader epoch of an offset; None where batches carry theirs already."""
        at = bisect_right(self._epochs, offset, key=itemgetter(1)) - 1
        return self._epochs[max(at, 0)][0] if self._epochs else None

    def _record_batch(self, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
        schema = RAW_RANGE_ARROW if self._include_range else RAW_ARROW
        columns: list[Any] = list(zip(*rows, strict=True)) or [()] * (len(RAW_RANGE_ARROW) - 2)
        topic, partition = [self._range.topic] * len(rows), [self._range.partition] * len(rows)
        values = (topic, partition, *columns)[: len(schema)]
        return pa.RecordBatch.from_arrays(
            [
                _end_to_end(column) if field.name == "batch" else pa.array(column, field.type)
                for column, field in zip(values, schema, strict=True)
            ],
            schema=schema,
        )


def _end_to_end(parts: Sequence[Sequence[Buffer]]) -> pa.Array:
    """A binary column of values that are in parts: each byte is copied once, into a buffer of the right size."""
    ends = accumulate((sum(map(len, value)) for value in parts), initial=0)
    offsets = pa.array(ends, pa.int32()).buffers()[1]
    data = b"".join(chain.from_iterable(parts))
    return pa.Array.from_buffers(pa.binary(), len(parts), [None, offsets, pa.py_buffer(data)], null_count=0)


def check(stored: StoredBatch) -> tuple[Batch | None, str]:
    """A batch's header, where it can be read, and what is wrong with the batch, where something is."""
    buffer = memoryview(stored.buffer)
    if len(buffer) < HEADER_BYTES:
        return None, f"{len(buffer)} bytes, less than a header"
    batch = Batch(buffer)
    try:
        if buffer[MAGIC_AT] != MAGIC:
            return batch, f"magic {buffer[MAGIC_AT]}"
        if Batch.parse(buffer).size != len(buffer):
            return batch, "longer than its header says"
        batch.verify_crc()
    except KafkaError as error:
        return batch, str(error)
    return batch, ""


def without_aborted(access: Access, range_: PlannedRange, batches: Iterable[StoredBatch]) -> Iterator[StoredBatch]:
    """Without those of aborted transactions, for isolation=read_committed; the range ends below the first open one.

    Raises UsageError for a transaction whose outcome is not kept.
    """
    transactions: Transactions | None = None
    for stored in batches:
        header = stored.buffer[:HEADER_BYTES]
        if len(header) == HEADER_BYTES and header[ATTRIBUTES_LOW_AT] & _TRANSACTION_BITS == TRANSACTIONAL:
            if transactions is None:
                [transactions] = access.plan([reading_transactions(keys_of_range(access, range_))])
            if stored.base_offset < transactions.log_start:
                raise UsageError(
                    f"topic {range_.topic} partition {range_.partition}: offset {stored.base_offset} is "
                    f"of a transaction below the log start {transactions.log_start}, whose outcome is not kept: "
                    "begin there, or read it with isolation=read_uncommitted"
                )
            (producer_id,) = INT64.unpack_from(header, PRODUCER_AT)
            if transactions.is_aborted(producer_id, stored.base_offset):
                continue
        yield stored


def rows_of(access: Access, range_: PlannedRange) -> Rows:
    """The converter of a range's batches to rows, by the options."""
    options = access.options
    if options.mode == "decoded":
        return DecodedRows(range_, options)
    keys = keys_of_range(access, range_)
    epochs = retry_while_unavailable(lambda: access.client.hget(keys.meta, "epochs"), options.retry_s)
    return RawRows(range_, options, epochs or b"")
