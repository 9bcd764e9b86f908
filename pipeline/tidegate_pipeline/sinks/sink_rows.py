"""Rows as records: the columns that Spark's Kafka connector takes, and `timestamp`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.replay.partitioner import murmur2_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_BYTES: Final = ("binary", "string")
COLUMNS: Final = {
    "topic": ("string",),
    "key": _BYTES,
    "value": _BYTES,
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
"""Column -> its types. Others are ignored, as by the connector."""


class SinkRecord(NamedTuple):
    """A record to be produced; a `partition` of None is chosen by `key_hash`, a `timestamp_ms` of None is now."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    partition: int | None
    timestamp_ms: int | None
    key_hash: int


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raises UsageError for rows that are no records."""
    fields = {field.name: field for field in schema.fields}
    if "value" not in fields:
        raise UsageError("the rows have no column value")
    if topic is None and "topic" not in fields:
        raise UsageError("the rows have no column topic, and there is no option topic")
    for name, types in COLUMNS.items():
        found = fields[name].dataType.simpleString() if name in fields else types[0]
        if found not in types:
            raise UsageError(f"the column {name} is {' or '.join(types)}, not {found}")


def records_of(rows: pa.RecordBatch, topic: str | None) -> Iterator[SinkRecord]:
    """The records of a batch of rows; `topic` wins over the column. Raises UsageError for a null topic."""
    topics = [topic] * rows.num_rows if topic is not None else _column(rows, "topic")
    keys = _bytes(rows, "key")
    for name, key, value, headers, partition, timestamp, key_hash in zip(
        topics,
        keys.to_pylist(),
        _bytes(rows, "value").to_pylist(),
        _column(rows, "headers"),
        _column(rows, "partition"),
        _milliseconds(rows),
        murmur2_of(keys).tolist(),
        strict=True,
    ):
        if name is None:
            raise UsageError("a row has no topic: the column is null, and there is no option topic")
        pairs = [(header["key"], header["value"]) for header in headers] if headers else []
        yield SinkRecord(name, key, value, pairs, partition, timestamp, key_hash)


def _column(rows: pa.RecordBatch, name: str) -> list[Any]:
    at = rows.schema.get_field_index(name)
    return rows.column(at).to_pylist() if at >= 0 else [None] * rows.num_rows


def _bytes(rows: pa.RecordBatch, name: str) -> pa.BinaryArray:
    at = rows.schema.get_field_index(name)
    if at < 0:
        return pa.nulls(rows.num_rows, pa.binary())
    column: Any = rows.column(at)
    return column.cast(pa.binary())


def _milliseconds(rows: pa.RecordBatch) -> list[int | None]:
    """Spark's microseconds, rounded down as its Kafka source's are."""
    at = rows.schema.get_field_index("timestamp")
    if at < 0:
        return [None] * rows.num_rows
    micros = rows.column(at).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    return [None if value is None else value // 1000 for value in micros]
