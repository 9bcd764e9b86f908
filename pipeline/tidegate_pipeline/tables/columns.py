"""The columns of rows that the table sinks take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tidegate_pipeline.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

DAY: Final = pa.field("day", pa.date32())
"""The partition column of Delta tables: the date of `timestamp`, UTC."""
PLACES: Final = ("topic", "partition", "offset", "timestamp")
"""The columns that rows must have; others are as the query makes them."""


def columns_of(schema: StructType, format_name: str) -> pa.Schema:
    """The Arrow schema of a query's rows, without `day`. Raises UsageError where they are not records of topics."""
    from pyspark.sql.pandas.types import to_arrow_schema

    missing = [name for name in PLACES if name not in schema.names]
    if missing:
        raise UsageError(f"{format_name} takes decoded rows of tidegate; no {', '.join(missing)}")
    columns = to_arrow_schema(schema, timezone="UTC", prefers_large_types=False)
    return pa.schema([field for field in columns if field.name != DAY.name])
