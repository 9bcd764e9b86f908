"""What a table is partitioned by, as the option says it: `day(timestamp)`, `hour(timestamp)`, `topic`, `value.city`.

Iceberg derives such a partition from a column by itself. In Parquet and Delta tables it is a column of its own: `day`,
`hour`, `month`, `year` of the record's timestamp, the column itself, or `value_city`; hours are text as 2026-03-01-23.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.tables.columns import DAY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BY_DAY: Final = "day(timestamp)"
NULL: Final = "__HIVE_DEFAULT_PARTITION__"
"""What Hive and Spark call the folder of null."""
_FIELD: Final = re.compile(r"(\w+)\((?:(\d+), *)?([\w.]+)\)|([\w.]+)")
_PATTERNS: Final[Mapping[str, tuple[str, str]]] = {
    "hour": ("%Y-%m-%d-%H", "yyyy-MM-dd-HH"),
    "month": ("%Y-%m", "yyyy-MM"),
    "year": ("%Y", "yyyy"),
}
"""Of transforms that give text: as Arrow and as Spark format a time."""
_TRANSFORMS: Final = ("identity", "day", *_PATTERNS)


@dataclass(frozen=True, slots=True)
class PartitionField:
    """`width` is a bucket transform's, else 0."""

    column: str
    transform: str
    width: int = 0

    def __str__(self) -> str:
        if self.transform == "identity":
            return self.column
        return f"{self.transform}({f'{self.width}, ' if self.width else ''}{self.column})"

    @property
    def long_name(self) -> str:
        """As Iceberg's field: column and transform."""
        return self.column.replace(".", "_") + ("" if self.transform == "identity" else f"_{self.transform}")

    @property
    def name(self) -> str:
        """As the column of a Parquet or Delta table."""
        return self.transform if self.column == "timestamp" and self.transform != "identity" else self.long_name


def parse_fields(partition_by: str) -> Iterator[PartitionField]:
    """The fields of the option. Raises UsageError."""
    for text in re.split(r",\s*(?![^(]*\))", partition_by.strip()):
        found = _FIELD.fullmatch(text)
        if not found:
            raise UsageError(
                f"{text} is not a partition field: day(timestamp), hour(timestamp), bucket(16, key), topic"
            )
        yield PartitionField(found[3] or found[4], found[1] or "identity", int(found[2] or 0))


@dataclass(frozen=True, slots=True)
class PartitionColumns:
    """The partition columns of a Parquet or Delta table, in their order."""

    fields: tuple[PartitionField, ...]

    @classmethod
    def parse(cls, partition_by: str) -> PartitionColumns:
        """Raises UsageError."""
        fields = tuple(parse_fields(partition_by))
        for field in fields:
            if field.transform not in _TRANSFORMS:
                raise UsageError(
                    f"{field}: Parquet and Delta tables are partitioned by a column, or by day, hour, month or year of"
                    " one; bucket(…) is for Iceberg"
                )
        twice = {field.name for field in fields if sum(other.name == field.name for other in fields) > 1}
        if twice:
            raise UsageError(f"{partition_by}: two partition columns {', '.join(sorted(twice))}")
        return cls(fields)

    @property
    def names(self) -> list[str]:
        """Of the columns."""
        return [field.name for field in self.fields]

    def in_files(self, columns: pa.Schema) -> pa.Schema:
        """The columns of rows that data files have: all but those that the table is partitioned by."""
        return pa.schema([field for field in columns if field.name not in self.names])

    def of_table(self, columns: pa.Schema) -> pa.Schema:
        """The columns of rows, then those that are derived. Raises UsageError."""
        derived = [pa.field(field.name, _type(field, columns)) for field in self.fields if field.name != field.column]
        if taken := [field.name for field in derived if field.name in columns.names]:
            raise UsageError(f"the rows have a column {taken[0]} already: partition by something else")
        for field in self.fields:
            _type(field, columns)
        return pa.schema([*columns, *derived])

    def values(self, rows: pa.Table) -> pa.Table:
        """The partition columns of rows."""
        columns = [_derived(field, _column(rows, field.column)) for field in self.fields]
        return pa.table(columns, names=self.names)

    def in_spark(self, rows: DataFrame) -> DataFrame:
        """Rows with the columns that are derived. Raises UsageError."""
        from pyspark.sql.functions import col, date_format, to_date
        from pyspark.sql.pandas.types import to_arrow_schema

        self.of_table(to_arrow_schema(rows.schema, timezone="UTC"))
        for field in self.fields:
            if field.name == field.column:
                continue
            found: Column = col(field.column)
            if field.transform == "day":
                found = to_date(found)
            elif field.transform != "identity":
                found = date_format(found, _PATTERNS[field.transform][1])
            rows = rows.withColumn(field.name, found)
        return rows


def partitioned_otherwise(path: str, there: Sequence[str], wanted: Sequence[str]) -> UsageError:
    """Of a table that is there."""
    return UsageError(
        f"{path} is partitioned by {', '.join(there) or 'nothing'}, not by {', '.join(wanted)}: give the same"
        " --partition-by as at its start, or another --table"
    )


def as_text(value: Any) -> str | None:
    """A partition column's value as the log of a Delta table has it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _column(rows: pa.Table, path: str) -> pa.ChunkedArray:
    name, *below = path.split(".")
    column = rows[name]
    return pc.struct_field(column, below) if below else column


def _derived(field: PartitionField, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if field.transform == "identity":
        return column
    if field.transform == "day":
        return pc.cast(column, DAY.type, safe=False)
    return pc.strftime(column, format=_PATTERNS[field.transform][0])


def _type(field: PartitionField, columns: pa.Schema) -> pa.DataType:
    """The type of a partition column. Raises UsageError."""
    found: pa.DataType = pa.struct(list(columns))
    for name in field.column.split("."):
        if not pa.types.is_struct(found) or found.get_field_index(name) < 0:
            raise UsageError(f"cannot partition by {field}: the rows have no column {field.column}")
        found = found.field(name).type
    if field.transform == "day" and pa.types.is_temporal(found):
        return DAY.type
    if field.transform != "identity" and pa.types.is_temporal(found):
        return pa.string()
    is_plain = pa.types.is_string(found) or pa.types.is_integer(found) or pa.types.is_boolean(found)
    if field.transform == "identity" and (is_plain or pa.types.is_date(found)):
        return found
    raise UsageError(f"cannot partition by {field}: {field.column} is {found}")
