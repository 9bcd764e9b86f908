"""The options of `CREATE TABLE … USING tidegate OPTIONS (…)`, kept in the table's schema.

Spark 4.3 gives a Python source the table's options when the table is created, and its stored schema, but no options,
when it is read (PythonDataSourceV2). So the schema of a table that is being created has its options as metadata of the
first column.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.format_options import TABLE_OPTION_PREFIX, given_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

METADATA: Final = "tidegate.options"


def with_table_options(schema: StructType, given: Mapping[str, str]) -> StructType:
    """The schema as Spark is to store it: unchanged unless a SQL table is being created."""
    from pyspark.sql.types import StructField, StructType

    if not any(name.lower().startswith(TABLE_OPTION_PREFIX) for name in given):
        return schema
    first, *others = schema.fields
    options = json.dumps(given_options(given), sort_keys=True)
    return StructType([StructField(first.name, first.dataType, first.nullable, {METADATA: options}), *others])


def table_options(schema: StructType) -> dict[str, str]:
    """The options that the schema of a SQL table has; {} for other schemas."""
    options: dict[str, str] = json.loads(schema.fields[0].metadata.get(METADATA, "{}")) if schema.fields else {}
    return options


def check_no_insert(schema: StructType, given: Mapping[str, str]) -> None:
    """Raises UsageError for an INSERT INTO a SQL table: its options are a source's; rows read from it are no insert."""
    is_of_table = any(METADATA in field.metadata for field in schema.fields)
    if is_of_table and "kafka.bootstrap.servers" not in map(str.lower, given):
        raise UsageError(
            "a SQL table of tidegate is read only: write with"
            ' df.write.format("tidegate").mode("append").option("kafka.bootstrap.servers", …).option("topic", …).save()'
        )


def same_columns(one: StructType, other: StructType) -> bool:
    """Whether names and types are equal, whatever their metadata."""
    return [(field.name, field.dataType) for field in one.fields] == [
        (field.name, field.dataType) for field in other.fields
    ]
