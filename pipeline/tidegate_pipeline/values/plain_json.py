"""Plain JSON by Spark's own `from_json`, with a given schema or one inferred from a sample."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from tidegate_pipeline.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

CORRUPT: Final = "_corrupt_record"
_SAMPLED_BYTES_MAX: Final = 4 << 20


def inferred_schema(rows: DataFrame, column: str = "value", sample: int = 1_000) -> StructType:
    """The schema of the JSON objects in the first `sample` rows of a batch query. Raises UsageError without any."""
    from pyspark.sql.functions import col, lit, schema_of_json
    from pyspark.sql.types import ArrayType, StructType

    found, size = list[str](), 0
    for (value,) in rows.where(col(column).isNotNull()).select(column).limit(sample).collect():
        text = _object(bytes(value))
        if text is not None and size + len(text) <= _SAMPLED_BYTES_MAX:
            found.append(text)
            size += len(text)
    if not found:
        raise UsageError(f"no schema can be inferred: the first {sample} records have no JSON object")
    reported = rows.sparkSession.range(1).select(schema_of_json(lit(f"[{','.join(found)}]"))).head()
    assert reported is not None
    wrapper = StructType.fromDDL(f"sampled {reported[0]}")
    assert isinstance(wrapper, StructType)
    sampled = wrapper.fields[0].dataType
    assert isinstance(sampled, ArrayType) and isinstance(sampled.elementType, StructType)
    return sampled.elementType


def merged(known: StructType, sampled: StructType) -> StructType:
    """The fields of `known` with their types, then those that only `sampled` has; in structs within them too."""
    from pyspark.sql.types import StructField, StructType

    others = {field.name: field for field in sampled.fields}
    fields = []
    for field in known.fields:
        other = others.pop(field.name, field).dataType
        if isinstance(field.dataType, StructType) and isinstance(other, StructType):
            field = StructField(field.name, merged(field.dataType, other), field.nullable)
        fields.append(field)
    return StructType([*fields, *others.values()])


def top_level(column: Column) -> Column:
    """The top-level fields of a JSON object as a map of text; null where anything follows the object."""
    from pyspark.sql.functions import concat, from_json, lit, size, when

    found = from_json(concat(lit("["), column.cast("string"), lit(",{}]")), "array<map<string,string>>")
    return when(size(found) == lit(2), found[0])


def parsed(column: Column, schema: StructType) -> Column:
    """A struct of `schema` and the text of what does not fit it in the field CORRUPT."""
    from pyspark.sql.functions import from_json
    from pyspark.sql.types import StringType, StructType

    with_corrupt = StructType(list(schema.fields)).add(CORRUPT, StringType())
    return from_json(column.cast("string"), with_corrupt, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT})


def _object(data: bytes) -> str | None:
    try:
        return json.dumps(value) if isinstance(value := json.loads(data), dict) else None
    except ValueError:
        return None
