"""The columns of rows that the table sinks take."""

from __future__ import annotations

from collections.abc import Iterator
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


def check_types(table: str, known: pa.DataType, rows: pa.DataType, name: str = "") -> None:
    """Raises UsageError if a field that table and rows have, at any depth, is of another type in the rows.

    Neither deltalake nor Spark's Parquet sink compares them: such files would make the table unreadable.
    """
    for field, of_table, of_rows in _fields_of_both(known, rows, name):
        if of_table != of_rows:
            raise UsageError(
                f"{table}: the column {field} is {of_table}, and of the rows {of_rows}: choose another table"
            )


def _fields_of_both(known: pa.DataType, rows: pa.DataType, name: str) -> Iterator[tuple[str, str, str]]:
    if pa.types.is_struct(known) and pa.types.is_struct(rows):
        types = {field.name: field.type for field in known}
        for field in rows:
            if field.name in types:
                yield from _fields_of_both(types[field.name], field.type, f"{name}.{field.name}".lstrip("."))
    elif _is_list(known) and _is_list(rows):
        yield from _fields_of_both(known.value_type, rows.value_type, name)
    elif pa.types.is_map(known) and pa.types.is_map(rows):
        yield from _fields_of_both(known.key_type, rows.key_type, name)
        yield from _fields_of_both(known.item_type, rows.item_type, name)
    else:
        yield name, _type_name(known), _type_name(rows)


def _is_list(of: pa.DataType) -> bool:
    return bool(pa.types.is_list(of) or pa.types.is_large_list(of))


def _type_name(of: pa.DataType) -> str:
    """As Arrow writes it, whatever the length of its offsets and the names in it."""
    if pa.types.is_struct(of) or pa.types.is_map(of) or _is_list(of):
        return "struct" if pa.types.is_struct(of) else "map" if pa.types.is_map(of) else "list"
    return str(of).removeprefix("large_").removesuffix("_view")
