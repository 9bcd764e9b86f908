"""Avro schemas as Arrow types, as Spark's `from_avro` maps them; records by fastavro."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from functools import partial
from io import BytesIO
from typing import Any, Final

import fastavro
import pyarrow as pa

from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.values.registry import Schema
from tidegate_pipeline.values.undecodable import Undecodable

_PRIMITIVES: Final[Mapping[str, pa.DataType]] = {
    "null": pa.string(),  # Parquet has no column of nulls
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Final[Mapping[tuple[str, str], pa.DataType]] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("us", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
_NUMBERS: Final = ({"int", "long"}, {"float", "double"})
_DECIMAL_DIGITS_MAX: Final = 38

Fit = Callable[[Any], Any]
"""From what fastavro reads to what pyarrow takes."""


def column_type(schema: Schema) -> pa.DataType:
    """Raises UsageError for a type that contains itself."""
    return _Types(schema).root[0]


def decoder(writer: Schema, reader: Schema | None) -> Callable[[bytes, int], object]:
    """Reads a record that begins at an offset of its bytes; `reader` fills in defaults and promotes types."""
    parsed = _parsed(writer)
    resolved = _parsed(reader) if reader is not None and reader.schema_id != writer.schema_id else None
    fit = _Types(reader or writer).root[1]

    def decode(data: bytes, at: int) -> object:
        stream = BytesIO(data)
        stream.seek(at)
        value = fastavro.schemaless_reader(stream, parsed, resolved)
        if stream.tell() != len(data):
            raise Undecodable(f"{len(data) - stream.tell()} bytes after the record", writer.schema_id)
        return value if fit is None else fit(value)

    return decode


def _parsed(schema: Schema) -> Any:
    named: dict[str, Any] = {}
    for _, source in schema.references:
        fastavro.parse_schema(json.loads(source), named_schemas=named)
    return fastavro.parse_schema(json.loads(schema.source), named_schemas=named)


class _Types:
    """The Arrow type of a schema, and what fits its values to it (None: nothing to do)."""

    def __init__(self, schema: Schema) -> None:
        self._named: dict[str, Any] = {}
        for _, source in schema.references:
            self._name(json.loads(source), "")
        parsed = json.loads(schema.source)
        self._name(parsed, "")
        self._open: list[str] = []
        self.root = self._type(parsed, "")

    def _name(self, schema: Any, namespace: str) -> None:
        """Remember every named type under its full name."""
        if isinstance(schema, list):
            for branch in schema:
                self._name(branch, namespace)
        elif isinstance(schema, Mapping):
            if schema["type"] in ("record", "error", "enum", "fixed"):
                name = _full_name(schema["name"], schema.get("namespace", namespace))
                self._named[name] = schema
                namespace = name.rpartition(".")[0]
                for field in schema.get("fields", ()):
                    self._name(field["type"], namespace)
            else:
                for part in ("type", "items", "values"):
                    self._name(schema.get(part), namespace)

    def _type(self, schema: Any, namespace: str) -> tuple[pa.DataType, Fit | None]:
        if isinstance(schema, list):
            return self._union(schema, namespace)
        if isinstance(schema, str):
            return (_PRIMITIVES[schema], None) if schema in _PRIMITIVES else self._reference(schema, namespace)
        kind = schema["type"]
        if not isinstance(kind, str):
            return self._type(kind, namespace)
        if kind in ("record", "error"):
            return self._record(schema, namespace)
        if kind in ("array", "map"):
            return self._collection(schema, kind, namespace)
        if kind == "enum":
            return pa.string(), None
        if "logicalType" in schema:
            return _logical(schema, kind, schema["logicalType"])
        return (pa.binary(), None) if kind == "fixed" else self._type(kind, namespace)

    def _reference(self, schema: str, namespace: str) -> tuple[pa.DataType, Fit | None]:
        for name in (_full_name(schema, namespace), schema):
            if name in self._named:
                return self._type(self._named[name], name.rpartition(".")[0])
        raise UsageError(f"the Avro schema names {schema}, which is not defined")

    def _collection(self, schema: Mapping[str, Any], kind: str, namespace: str) -> tuple[pa.DataType, Fit]:
        if kind == "array":
            item, fit = self._type(schema["items"], namespace)
            return pa.list_(pa.field("element", item)), partial(_list, fit)
        value, fit = self._type(schema["values"], namespace)
        return pa.map_(pa.string(), value), partial(_pairs, fit)

    def _record(self, schema: Mapping[str, Any], namespace: str) -> tuple[pa.DataType, Fit | None]:
        name = _full_name(schema["name"], schema.get("namespace", namespace))
        if name in self._open:
            raise UsageError(f"the Avro type {name} contains itself: Spark has no such column")
        self._open.append(name)
        types = {field["name"]: self._type(field["type"], name.rpartition(".")[0]) for field in schema["fields"]}
        self._open.pop()
        fits = {field: fit for field, (_, fit) in types.items() if fit is not None}

        def fitted(record: dict[str, Any]) -> dict[str, Any]:
            for field, fit in fits.items():
                if record.get(field) is not None:
                    record[field] = fit(record[field])
            return record

        return pa.struct([pa.field(field, kind) for field, (kind, _) in types.items()]), fitted if fits else None

    def _union(self, schema: list[Any], namespace: str) -> tuple[pa.DataType, Fit | None]:
        """One type that may be null; numbers as the wider one; of other types the text of the value as JSON."""
        branches = [branch for branch in schema if branch != "null"]
        if len(branches) == 1:
            kind, fit = self._type(branches[0], namespace)
            return kind, fit and (lambda value: None if value is None else fit(value))
        for numbers in _NUMBERS:
            if branches and all(isinstance(branch, str) for branch in branches) and numbers >= set(branches):
                return _PRIMITIVES[max(branches, key=lambda name: _PRIMITIVES[name].bit_width)], None
        return pa.string(), lambda value: None if value is None else json.dumps(value, default=_plain)


def _list(fit: Fit | None, items: list[Any]) -> list[Any]:
    return items if fit is None else [fit(one) for one in items]


def _pairs(fit: Fit | None, found: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return list(found.items()) if fit is None else [(key, fit(one)) for key, one in found.items()]


def _logical(schema: Mapping[str, Any], kind: str, logical: str) -> tuple[pa.DataType, Fit | None]:
    if logical == "decimal" and schema.get("precision", 0) <= _DECIMAL_DIGITS_MAX:
        return pa.decimal128(schema["precision"], schema.get("scale", 0)), None
    if logical in ("time-millis", "time-micros"):
        scale = 1_000 if logical == "time-millis" else 1
        return _PRIMITIVES[kind], lambda value: _micros(value) // scale
    if logical == "uuid":
        return pa.string(), str
    if (kind, logical) in _LOGICAL:
        return _LOGICAL[kind, logical], None
    if logical == "decimal":
        return pa.string(), str
    return pa.binary() if kind == "fixed" else _PRIMITIVES[kind], None


def _micros(value: datetime.time) -> int:
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond


def _plain(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"
