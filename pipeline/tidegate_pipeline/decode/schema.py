"""The columns of a topic: decoded, as Spark's Kafka connector has them, and raw, one row a stored batch.

Each comes twice: as Spark's type, and as the Arrow schema that Spark makes of it with the session's time zone UTC.
Spark compares the first batch of a task with that and trusts the others, so every batch must have exactly this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

HEADERS_ARROW: Final = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))

DECODED_ARROW: Final = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        "headers": HEADERS_ARROW,
    }
)
"""`timestampType` is 0 for CreateTime, 1 for LogAppendTime; `headers` is null where a record has none."""

DECODED_ARROW_WITHOUT_HEADERS: Final = DECODED_ARROW.remove(DECODED_ARROW.get_field_index("headers"))

RAW_ARROW: Final = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "base_offset": pa.int64(),
        "last_offset": pa.int64(),
        "records": pa.int32(),
        "first_timestamp": pa.int64(),
        "max_timestamp": pa.int64(),
        "attributes": pa.int32(),
        "producer_id": pa.int64(),
        "producer_epoch": pa.int32(),
        "base_sequence": pa.int32(),
        "crc": pa.int64(),
        "batch": pa.binary(),
    }
)
"""Timestamps in ms; `batch` is the whole batch as it is served, base offset and leader epoch written."""

RAW_RANGE_ARROW: Final = RAW_ARROW.append(pa.field("topic_id", pa.string())).append(pa.field("from_offset", pa.int64()))
"""Raw rows that leave no hole (option `includeRange=true`), for archive and replay: a row is the offsets `from_offset`
to `last_offset`. `from_offset` is where the one before it in the task ended, or the planned start of the task's range.
Offsets that have no batch to hand on (a quarantined one, the end of a lost range) are a row of their own: `batch`
empty, `records` 0. `topic_id` is in hex, so that nothing of a deleted topic lands in the one made after it.
"""

RANGES_ARROW: Final = pa.schema({"range": pa.binary()})
"""A range and how to read it, pickled, for a sink that reads it: see `tidegate_pipeline.sources.tasks.arrow_rows`."""


def decoded_arrow(include_headers: bool = True) -> pa.Schema:
    """The Arrow schema of decoded rows."""
    return DECODED_ARROW if include_headers else DECODED_ARROW_WITHOUT_HEADERS


def decoded_schema(include_headers: bool = True) -> StructType:
    """The decoded columns as Spark's type."""
    return _spark_schema(decoded_arrow(include_headers))


def raw_schema(include_range: bool = False) -> StructType:
    """The raw columns as Spark's type."""
    return _spark_schema(RAW_RANGE_ARROW if include_range else RAW_ARROW)


def ranges_schema() -> StructType:
    """The column of ranges that are not read yet as Spark's type."""
    return _spark_schema(RANGES_ARROW)


def _spark_schema(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
