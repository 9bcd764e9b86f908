"""One plausible value for any kio request or response, from its schema: what a recorded conversation would hold."""

from __future__ import annotations

import datetime
import uuid
from dataclasses import fields
from typing import Any

from kio.schema.errors import ErrorCode
from kio.serial._introspect import (
    EntityField,
    EntityTupleField,
    PrimitiveField,
    PrimitiveTupleField,
    classify_field,
    get_field_tag,
    get_schema_field_type,
)

_VALUES: dict[str, Any] = {
    "string": "sample",
    "bytes": b"\x00\x00\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x00",
    "records": b"\x00" * 61,
    "bool": False,
    "error_code": ErrorCode.unknown_member_id,
    "uuid": uuid.UUID(int=7),
    "timedelta_i32": datetime.timedelta(milliseconds=1),
    "timedelta_i64": datetime.timedelta(milliseconds=1),
    "datetime_i64": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
    "float64": 0.5,
}


def sample(schema: type[Any]) -> Any:
    """An instance of `schema`: numbers are 1, texts short, every array holds one element."""
    values: dict[str, Any] = {}
    for field in fields(schema):
        if get_field_tag(field) is not None:
            continue
        match classify_field(field):
            case EntityField(inner):
                values[field.name] = sample(inner)
            case EntityTupleField(inner):
                values[field.name] = (sample(inner),)
            case PrimitiveField():
                values[field.name] = _VALUES.get(get_schema_field_type(field), 1)
            case PrimitiveTupleField():
                values[field.name] = (_VALUES.get(get_schema_field_type(field), 1),)
    return schema(**values)
