"""Decode a batch record by record: the reference for the fast paths, which also names faults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tidegate.errors import InvalidRecord
from tidegate.records.batch import Batch
from tidegate.records.record import Record, read_records
from tidegate_pipeline.decode.opening import TIMESTAMP_MS_MAX

Row = tuple[Any, ...]


def read_rows(batch: Batch, topic: str, partition: int, decoded_batch_max: int) -> list[Row]:
    """A batch's rows, with headers, timestamps in microseconds. Raises CorruptMessage, InvalidRecord."""
    records = read_records(batch, decoded_batch_max)
    _check_offsets(batch, records)
    for record in records:
        if abs(record.timestamp) > TIMESTAMP_MS_MAX:
            raise InvalidRecord(f"the timestamp of offset {record.offset} is beyond what Spark can hold")
    kind = int(batch.is_log_append_time)
    return [
        (key, value, topic, partition, offset, timestamp * 1000, kind, list(headers) or None)
        for offset, timestamp, key, value, headers in records
    ]


def to_arrow(rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
    """Rows with or without headers, as the schema has it."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=False)], schema=schema
    )


def _check_offsets(batch: Batch, records: Sequence[Record]) -> None:
    before = batch.base_offset - 1
    for record in records:
        if record.offset <= before:
            raise InvalidRecord(f"offset {record.offset} follows {before}")
        before = record.offset
    if before >= batch.next_offset:
        raise InvalidRecord(f"offset {before} is behind the batch's last, {batch.next_offset - 1}")
