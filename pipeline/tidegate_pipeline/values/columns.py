"""Binary columns of a DataFrame as columns of their schema; for batch and streaming queries alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from tidegate_pipeline.errors import UndecodableValue, UsageError
from tidegate_pipeline.values.codec import Codec, Evolution
from tidegate_pipeline.values.dead_letters import describe
from tidegate_pipeline.values.plain_json import CORRUPT, parsed, top_level
from tidegate_pipeline.values.registry import Registry
from tidegate_pipeline.values.undecodable import Undecodable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

OnUndecodable = Literal["fail", "column"]

ERROR_ARROW: Final = pa.struct([("reason", pa.string()), ("schema_id", pa.int64()), ("bytes", pa.binary())])
_PLACE: Final = ("topic", "partition", "offset")


def decoded(
    rows: DataFrame,
    *,
    registry: Registry | str,
    subject: str,
    column: Literal["key", "value"] = "value",
    version: str = "latest",
    evolution: Evolution = "reader",
    message: str = "",
    on_undecodable: OnUndecodable = "fail",
) -> DataFrame:
    """`rows` of `format("tidegate")` with the column of its schema's type, by the schema ids of a registry.

    The type is that of the subject's `version` when the query is made (Protobuf: of `message`, its full name, or the
    file's first). `evolution="reader"` resolves each record to that schema; `"writer"` reads it by its own and takes
    the fields of the same names. With `on_undecodable="column"` such records have null and, in `<column>_error`, a
    struct of reason, schema_id, and the original bytes. Raises UsageError, PipelineError.
    """
    address = Registry(registry) if isinstance(registry, str) else registry
    codec = Codec(address, address.of_subject(subject, version), message, evolution)
    return decode_column(rows, column, codec, None if on_undecodable == "column" else fail)


def json_decoded(
    rows: DataFrame,
    schema: StructType | str,
    *,
    column: Literal["key", "value"] = "value",
    on_undecodable: OnUndecodable = "fail",
) -> DataFrame:
    """As `decoded`, of plain JSON; the schema as a type or as DDL (`"id BIGINT, name STRING"`)."""
    return json_column(rows, column, schema, None if on_undecodable == "column" else fail)


PutAside = Callable[[list[dict[str, Any]], int], int]
"""What happens to undecodable rows of a task, of which so many were before; returns how many are now."""


def fail(rows: list[dict[str, Any]], before: int) -> int:
    """Raises UndecodableValue."""
    raise UndecodableValue(describe(rows[0]))


def decode_column(rows: DataFrame, column: str, codec: Codec, put_aside: PutAside | None) -> DataFrame:
    """With `put_aside` undecodable rows go there and nowhere else; without it they have the column `<column>_error`."""
    from pyspark.sql.pandas.types import from_arrow_type

    task = _Task(column, codec, codec.arrow_type(), put_aside)
    schema = _replaced(rows, column, from_arrow_type(task.arrow_type, prefer_timestamp_ntz=True), put_aside is None)
    return rows.mapInArrow(partial(_run, task), schema)


def json_column(
    rows: DataFrame, column: str, schema: StructType | str, put_aside: PutAside | None, counted: str = ""
) -> DataFrame:
    """As `decode_column`; `counted` names the count, by `observe`, of records with top-level fields that are not in
    the schema. Raises UsageError for a schema that is no struct.
    """
    from pyspark.sql.functions import array, array_except, coalesce, col, count_if, lit, map_keys, size, struct, when
    from pyspark.sql.types import StructType

    typed = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(typed, StructType) or CORRUPT in typed.names:
        raise UsageError("the schema of plain JSON is a struct, such as `id BIGINT, name STRING`")
    found = rows.withColumn("_parsed", parsed(col(column), typed)).withColumn("_fields", top_level(col(column)))
    if counted:
        names = array(*(lit(name) for name in typed.names)).cast("array<string>")
        unknown = size(array_except(map_keys(col("_fields")), names)) > 0
        found = found.observe(counted, count_if(coalesce(unknown, lit(False))).alias(counted))
    wrong = col(column).isNotNull() & (
        col("_parsed").isNull() | col(f"_parsed.{CORRUPT}").isNotNull() | col("_fields").isNull()
    )
    reason = struct(
        lit("not JSON of the given schema").alias("reason"),
        lit(None).cast("bigint").alias("schema_id"),
        col(column).alias("bytes"),
    )
    fields = [col(f"_parsed.`{name}`").alias(name) for name in typed.names]
    marked = found.withColumn(f"{column}_error", when(wrong, reason)).withColumn(
        column, when(col("_parsed").isNotNull() & ~wrong, struct(*fields))
    )
    marked = marked.drop("_parsed", "_fields")
    if put_aside is None:
        return marked
    task = _Task(column, None, None, put_aside)
    return marked.mapInArrow(partial(_run, task), marked.drop(f"{column}_error").schema)


def _replaced(rows: DataFrame, column: str, kind: DataType, with_error: bool) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    if column not in rows.columns:
        raise UsageError(f"there is no column {column}; there are {', '.join(rows.columns)}")
    fields = [StructField(field.name, kind) if field.name == column else field for field in rows.schema.fields]
    if with_error:
        fields.append(StructField(f"{column}_error", from_arrow_type(ERROR_ARROW)))
    return StructType(fields)


@dataclass(frozen=True, slots=True)
class _Task:
    """What a task does; without a codec the column is decoded and `<column>_error` there."""

    column: str
    codec: Codec | None
    arrow_type: pa.DataType | None
    put_aside: PutAside | None


def _run(task: _Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    put_aside = 0
    error = f"{task.column}_error"
    for batch in batches:
        decoded_batch = batch if task.codec is None else _decode(task, task.codec, batch)
        if task.put_aside is None:
            yield decoded_batch
            continue
        wrong = pc.is_valid(decoded_batch[error])
        if pc.any(wrong).as_py():
            put_aside = task.put_aside(_letters(decoded_batch.filter(wrong), task.column), put_aside)
            decoded_batch = decoded_batch.filter(pc.invert(wrong))
        yield decoded_batch.drop_columns([error])


def _decode(task: _Task, codec: Codec, batch: pa.RecordBatch) -> pa.RecordBatch:
    values, errors = list[object](), list[dict[str, Any] | None]()
    for data in batch[task.column].to_pylist():
        value = error = None
        if data is not None:
            try:
                value = codec.decode(data)
            except Undecodable as wrong:
                error = {"reason": wrong.reason, "schema_id": wrong.schema_id, "bytes": data}
        values.append(value)
        errors.append(error)
    column = _column(task, values, errors, batch)
    at = batch.schema.get_field_index(task.column)
    fields = [pa.field(task.column, column.type) if field.name == task.column else field for field in batch.schema]
    arrays = [column if index == at else array for index, array in enumerate(batch.columns)]
    return pa.RecordBatch.from_arrays(
        [*arrays, pa.array(errors, ERROR_ARROW)], schema=pa.schema([*fields, (f"{task.column}_error", ERROR_ARROW)])
    )


def _column(task: _Task, values: list[object], errors: list[dict[str, Any] | None], batch: pa.RecordBatch) -> pa.Array:
    """Where Arrow refuses a value, such as an integer above 64 bits, its record is undecodable."""
    try:
        return pa.array(values, task.arrow_type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        for at, value in enumerate(values):
            try:
                pa.array([value], task.arrow_type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                data = batch[task.column][at].as_py()
                errors[at] = {"reason": f"it does not fit the column: {error}", "schema_id": None, "bytes": data}
                values[at] = None
        return pa.array(values, task.arrow_type)


def _letters(batch: pa.RecordBatch, column: str) -> list[dict[str, Any]]:
    """Undecodable rows with the fields of VALUES_ARROW that they have; the other of key and value as it is."""
    letters = []
    for row in batch.to_pylist():
        error = row[f"{column}_error"]
        letter = {name: row.get(name) for name in (*_PLACE, "timestamp", "key", "value")}
        letters.append(letter | {column: error["bytes"], "schema_id": error["schema_id"], "reason": error["reason"]})
    return letters
