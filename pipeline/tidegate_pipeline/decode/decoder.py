"""Record batches to rows: groups of about a megabyte, one Arrow batch each.

The quick way finds the fields of a whole group at once (`fields` in numpy, `compiled` with numba) and lets Arrow
gather them (`columns`). It verifies the result; if that fails, the group is decoded again record by record
(`plain`), which either names the batch that is corrupt and why, or shows that all was well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final, Literal, Protocol

import numpy as np
import pyarrow as pa

from tidegate.errors import CorruptMessage, InvalidRecord
from tidegate.records.batch import Batch
from tidegate.records.record import OPENED_BYTES_MAX
from tidegate_pipeline.decode import columns, fields, plain
from tidegate_pipeline.decode.columns import PADDING_BYTES, constant
from tidegate_pipeline.decode.fields import Areas, Fields, HeaderFields, NeedsSlowPath, Positions
from tidegate_pipeline.decode.opening import TIMESTAMP_MS_MAX, CorruptBatch, OpenBatch, Opener, StoredBatch, corrupt
from tidegate_pipeline.decode.schema import HEADERS_ARROW, decoded_arrow
from tidegate_pipeline.errors import UsageError

__all__ = ["CorruptBatch", "Decoder", "EngineName", "StoredBatch"]

EngineName = Literal["auto", "numpy", "numba"]
Decoded = tuple[pa.RecordBatch, list[CorruptBatch]]

OFFSET_MAX: Final = 2**63 - 1
GROUP_BYTES: Final = 1 << 20
"""Larger groups decode slower: every temporary is fresh pages."""
_DATA_BYTES_MAX: Final = 2**31 - 1


class Engine(Protocol):
    """The module that finds the fields: the module `fields`, or `compiled`."""

    def read_fields(self, areas: Areas) -> Fields:
        """Raises NeedsSlowPath."""

    def read_headers(self, areas: Areas, fields: Fields) -> HeaderFields:
        """Raises NeedsSlowPath."""


class Decoder:
    """Decodes batches of any topic. Keeps a decompressor: one decoder for each thread."""

    def __init__(
        self, *, engine: EngineName = "auto", include_headers: bool = True, decoded_batch_max: int = OPENED_BYTES_MAX
    ) -> None:
        """`decoded_batch_max`: most bytes that a batch's records may have. Raises UsageError: numba does not import."""
        self._engine = find_engine(engine)
        self._include_headers = include_headers
        self._schema = decoded_arrow(include_headers)
        self._decoded_batch_max = decoded_batch_max
        self._opener = Opener(decoded_batch_max)

    def decode(
        self,
        topic: str,
        partition: int,
        batches: Iterable[StoredBatch],
        first_offset: int = 0,
        end_offset: int = OFFSET_MAX,
    ) -> Decoded:
        """The records of one group with `first_offset <= offset < end_offset`, and the batches that are corrupt.

        Control batches have no rows. The group is one Arrow batch, so it should be of about `GROUP_BYTES` and must
        stay below 2 GiB, decompressed: `groups` forms such.
        """
        opened, faults = [], []
        for stored in batches:
            try:
                opened.append(self._opener.open(stored))
            except (CorruptMessage, InvalidRecord) as error:
                faults.append(corrupt(stored, error))
        rows, more = self._group(topic, partition, opened, first_offset, end_offset)
        return rows, faults + more

    def groups(
        self,
        topic: str,
        partition: int,
        batches: Iterable[StoredBatch],
        first_offset: int = 0,
        end_offset: int = OFFSET_MAX,
        group_bytes: int = GROUP_BYTES,
    ) -> Iterator[Decoded]:
        """Any number of batches, as `decode`, in groups of `group_bytes` decompressed or one batch more."""
        opened: list[OpenBatch] = []
        faults: list[CorruptBatch] = []
        size = 0
        for stored in batches:
            try:
                opened.append(batch := self._opener.open(stored))
                size += len(batch.area)
            except (CorruptMessage, InvalidRecord) as error:
                faults.append(corrupt(stored, error))
                size += len(stored.buffer)
            if size >= group_bytes:
                rows, more = self._group(topic, partition, opened, first_offset, end_offset)
                yield rows, faults + more
                opened, faults, size = [], [], 0
        if opened or faults:
            rows, more = self._group(topic, partition, opened, first_offset, end_offset)
            yield rows, faults + more

    def _group(self, topic: str, partition: int, opened: Sequence[OpenBatch], first: int, end: int) -> Decoded:
        opened = [each for each in opened if each.area]
        faults: list[CorruptBatch] = []
        try:
            rows = self._quick(topic, partition, opened)
        except NeedsSlowPath:
            rows, faults = self._plain(topic, partition, opened)
        if any(each.batch.base_offset < first or each.batch.next_offset > end for each in opened):
            offsets = rows["offset"].to_numpy()
            rows = rows.filter(pa.array((first <= offsets) & (offsets < end)))
        return rows, faults

    def _quick(self, topic: str, partition: int, opened: Sequence[OpenBatch]) -> pa.RecordBatch:
        if not opened:
            return pa.RecordBatch.from_pylist([], self._schema)
        batches, areas = [each.batch for each in opened], _lay_out(opened)
        found = self._engine.read_fields(areas)
        count, data = len(found.end), columns.Bytes(areas.data)
        arrays = [
            data.column(found.key_at, found.key_length, pa.binary()),
            data.column(found.value_at, found.value_length, pa.binary()),
            constant(topic, pa.string()).of(count),
            constant(partition, pa.int32()).of(count),
            columns.fixed(_offsets(batches, found.offset_delta), pa.int64()),
            columns.fixed(_timestamps_us(batches, found.timestamp_delta), pa.timestamp("us", tz="UTC")),
            _timestamp_types(batches, count),
        ]
        if self._include_headers and found.header_count.any():
            arrays.append(columns.headers(data, found, self._engine.read_headers(areas, found)))
        elif self._include_headers:
            arrays.append(constant(None, HEADERS_ARROW).of(count))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _plain(self, topic: str, partition: int, opened: Sequence[OpenBatch]) -> Decoded:
        rows: list[plain.Row] = []
        faults: list[CorruptBatch] = []
        for each in opened:
            try:
                rows += plain.read_rows(each.batch, topic, partition, self._decoded_batch_max)
            except (CorruptMessage, InvalidRecord) as error:
                stored = StoredBatch(each.batch.buffer, each.batch.base_offset)
                faults.append(corrupt(stored, error))
        return plain.to_arrow(rows, self._schema), faults


def find_engine(name: EngineName) -> Engine:
    """The module that finds fields; `auto` takes numba where it imports. Raises UsageError."""
    if name != "numpy":
        try:
            from tidegate_pipeline.decode import compiled
        except ImportError as error:
            if name == "numba":
                raise UsageError(f"the decoder numba needs the extra pipeline-numba: {error}") from error
        else:
            return compiled
    return fields


def _lay_out(opened: Sequence[OpenBatch]) -> Areas:
    ends = list(accumulate(len(each.area) for each in opened))
    if ends[-1] + PADDING_BYTES > _DATA_BYTES_MAX:
        raise UsageError(f"{ends[-1]} bytes are too many for one Arrow batch: groupBytes and maxDecodedBatch limit it")
    data = b"".join([*(each.area for each in opened), bytes(PADDING_BYTES)])
    return Areas(data, [0, *ends[:-1]], ends, [each.batch.record_count for each in opened])


def _by_record(batches: Sequence[Batch], values: Iterable[int]) -> Positions:
    return np.repeat(np.fromiter(values, np.int64, len(batches)), [batch.record_count for batch in batches])


def _offsets(batches: Sequence[Batch], deltas: Positions) -> Positions:
    """Offsets, which increase within a batch and stay within its header's range. Raises NeedsSlowPath."""
    ends = np.cumsum([batch.record_count for batch in batches])
    growing = np.diff(deltas) > 0
    growing[ends[:-1] - 1] = True
    last = np.fromiter((batch.last_offset_delta for batch in batches), np.int64)
    if not growing.all() or (deltas[ends - 1] > last).any() or (deltas[[0, *ends[:-1]]] < 0).any():
        raise NeedsSlowPath("offsets do not grow, or leave their batch")
    return _by_record(batches, (batch.base_offset for batch in batches)) + deltas


def _timestamps_us(batches: Sequence[Batch], deltas: Positions) -> Positions:
    """A record's own time, or the log's where the batch carries that. Raises NeedsSlowPath."""
    times = _by_record(batches, (b.max_timestamp if b.is_log_append_time else b.base_timestamp for b in batches))
    if any(batch.is_log_append_time for batch in batches):
        deltas = np.where(_by_record(batches, (batch.is_log_append_time for batch in batches)), 0, deltas)
    times += deltas
    if times.max() > TIMESTAMP_MS_MAX or times.min() < -TIMESTAMP_MS_MAX:
        raise NeedsSlowPath("a timestamp is beyond what Spark can hold")
    return times * 1000


def _timestamp_types(batches: Sequence[Batch], count: int) -> pa.Array:
    kinds = [int(batch.is_log_append_time) for batch in batches]
    if len(set(kinds)) == 1:
        return constant(kinds[0], pa.int32()).of(count)
    return columns.fixed(_by_record(batches, kinds).astype(np.int32), pa.int32())
