"""Protobuf descriptors as Arrow types, as Spark's `from_protobuf` maps them; messages by Google's runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import pyarrow as pa
from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    json_format,
    message_factory,
)
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor  # type: ignore[import-untyped]
from google.protobuf.internal.well_known_types import WKTBASES  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.values.registry import Schema
from tidegate_pipeline.values.undecodable import Undecodable

_KINDS: Final = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
}
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_JSON_TEXT: Final = frozenset(f"google.protobuf.{name}" for name in ("Any", "Struct", "Value", "ListValue"))
_INDEXES_MAX: Final = 64

Fit = Callable[[Any], Any]


def column_type(schema: Schema, message: str) -> pa.DataType:
    """Of the message of this full name, or of the file's first. Raises UsageError."""
    return _fitted(_message(_file(schema), message), ())[0]


def decoder(writer: Schema, reader: Schema | None, message: str) -> Callable[[bytes, int], object]:
    """Reads message indexes and message from an offset of the bytes, with the reader's fields or the writer's."""
    written = _file(writer)
    wanted = _message(_file(reader) if reader is not None else written, message)
    made = cast("Callable[[], Any]", message_factory.GetMessageClass(wanted))
    fit = _fitted(wanted, ())[1]

    def decode(data: bytes, at: int) -> object:
        indexes, at = _indexes(data, at)
        name = _indexed(written, indexes).full_name
        if name != wanted.full_name:
            raise Undecodable(f"the message is {name}, not {wanted.full_name}", writer.schema_id)
        parsed = made()
        try:
            parsed.ParseFromString(data[at:])
        except DecodeError as error:
            raise Undecodable(f"not a {name}: {error}", writer.schema_id) from None
        return fit(parsed)

    return decode


def _file(schema: Schema) -> FileDescriptor:
    pool = descriptor_pool.DescriptorPool()
    known = descriptor_pool.Default()
    for module in ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers", "descriptor"):
        __import__(f"google.protobuf.{module}_pb2")
        pool.AddSerializedFile(known.FindFileByName(f"google/protobuf/{module}.proto").serialized_pb)
    name = ""
    for name, source in (*schema.references, (f"{schema.schema_id}.proto", schema.source)):
        file = descriptor_pb2.FileDescriptorProto.FromString(source)
        if file.name.startswith("google/protobuf/"):
            continue
        file.name = name
        pool.AddSerializedFile(file.SerializeToString())
    return cast(FileDescriptor, pool.FindFileByName(name))


def _message(file: FileDescriptor, name: str) -> Descriptor:
    if not name:
        return _indexed(file, [0])
    found = file.pool.FindMessageTypeByName(name) if name in _names(file) else None
    if found is None:
        raise UsageError(f"the Protobuf schema has no message {name}; it has {', '.join(sorted(_names(file)))}")
    return cast(Descriptor, found)


def _names(file: FileDescriptor) -> set[str]:
    found, todo = set[str](), list(file.message_types_by_name.values())
    while todo:
        message = todo.pop()
        found.add(message.full_name)
        todo += message.nested_types
    return found


def _indexed(file: FileDescriptor, indexes: Sequence[int]) -> Descriptor:
    messages = list(file.message_types_by_name.values())
    found: Descriptor | None = None
    for index in indexes:
        if not 0 <= index < len(messages):
            raise Undecodable(f"the schema has no message of indexes {list(indexes)}")
        found = messages[index]
        messages = list(found.nested_types)
    assert found is not None
    return found


def _indexes(data: bytes, at: int) -> tuple[list[int], int]:
    """Zigzag varints: how many, then each; a single 0 stands for [0]."""
    count, at = _varint(data, at)
    if count == 0:
        return [0], at
    if not 0 < count <= _INDEXES_MAX:
        raise Undecodable(f"{count} message indexes")
    indexes = []
    for _ in range(count):
        index, at = _varint(data, at)
        indexes.append(index)
    return indexes, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            break
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value >> 1 ^ -(value & 1), at
    raise Undecodable("the message indexes are truncated")


def _fitted(message: Descriptor, above: tuple[str, ...]) -> tuple[pa.DataType, Fit]:
    """The type of a message, and what makes a value of it."""
    name = message.full_name
    if name == _TIMESTAMP:
        return pa.timestamp("us", tz="UTC"), lambda value: value.seconds * 1_000_000 + value.nanos // 1_000
    if name in _WRAPPERS:
        kind, fit = _single(message.fields_by_name["value"], above)
        return kind, lambda value: fit(value.value)
    if name in _JSON_TEXT and name in WKTBASES:
        return pa.string(), lambda value: json_format.MessageToJson(value, indent=None)
    if name in above:
        raise UsageError(f"the Protobuf message {name} contains itself: Spark has no such column")
    fields = [(field, *_field(field, (*above, name))) for field in message.fields]

    def fitted(value: Any) -> dict[str, Any]:
        return {
            field.name: fit(getattr(value, field.name))
            for field, _, fit in fields
            if not field.has_presence or value.HasField(field.name)
        }

    return pa.struct([pa.field(field.name, kind) for field, kind, _ in fields]), fitted


def _field(field: FieldDescriptor, above: tuple[str, ...]) -> tuple[pa.DataType, Fit]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, fit_key = _single(field.message_type.fields_by_name["key"], above)
        kind, fit_value = _single(field.message_type.fields_by_name["value"], above)
        if field.message_type.fields_by_name["value"].message_type is None:
            return pa.map_(key, kind), lambda found: [(fit_key(k), fit_value(v)) for k, v in found.items()]
        return pa.map_(key, kind), lambda found: [(fit_key(k), fit_value(found[k])) for k in found]
    kind, fit = _single(field, above)
    if field.is_repeated:
        return pa.list_(pa.field("element", kind)), lambda items: [fit(one) for one in items]
    return kind, fit


def _single(field: FieldDescriptor, above: tuple[str, ...]) -> tuple[pa.DataType, Fit]:
    if field.message_type is not None:
        return _fitted(field.message_type, above)
    if field.enum_type is not None:
        return pa.string(), _enum(field.enum_type)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return pa.binary(), bytes
    return _KINDS.get(field.cpp_type, pa.string()), lambda value: value


def _enum(enum: EnumDescriptor) -> Fit:
    names = {number: value.name for number, value in enum.values_by_number.items()}
    return lambda number: names.get(number, str(number))
