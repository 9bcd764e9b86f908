"""Requests of any API and version from plain values, their frames, and responses; written and read by kio."""

from __future__ import annotations

import dataclasses
import io
import struct
import types
import typing
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from typing import Any, Final

from kio.serial import entity_reader, entity_writer

from tidegate.protocol.schema_walk import plan_of
from tidegate.protocol.schemas import load_request_schema, load_response_schema

_DESCRIBE_TRANSACTIONS: Final = 65
"""A transaction that has not begun has the time -1, which kio does not read; it is read as 0."""


def request_type(api_key: int, version: int) -> Any:
    """kio's class of a request."""
    return load_request_schema(api_key, version)


# -- requests


def request(api_key: int, version: int, /, **values: Any) -> Any:
    """A request from plain values: lists or tuples for arrays, dicts for entities, ms or timedeltas for durations."""
    return _entity(load_request_schema(api_key, version), values)


def request_of_version(api_key: int, version: int, /, **values: Any) -> Any:
    """The same; values that the version has no field for are left out."""
    return _entity(load_request_schema(api_key, version), values, leave_out=True)


def _entity(schema: Any, values: Mapping[str, Any], leave_out: bool = False) -> Any:
    kinds = _kinds(schema)
    return schema(
        **{
            name: _value(kinds.get(name), value, leave_out)
            for name, value in values.items()
            if name in kinds or not leave_out
        }
    )


def _value(kind: Any, value: Any, leave_out: bool) -> Any:
    if isinstance(value, list | tuple):
        return tuple([_value(kind, one, leave_out) for one in value])
    if isinstance(value, dict):
        return _entity(kind, value, leave_out)
    if isinstance(value, int | float) and "Timedelta" in getattr(kind, "__name__", ""):
        return timedelta(milliseconds=value)
    return value


@cache
def _kinds(schema: Any) -> dict[str, Any]:
    """The type of each field, or that of its elements."""
    return {field.name: _kind(field.type) for field in dataclasses.fields(schema)}


def _kind(kind: Any) -> Any:
    if isinstance(kind, types.UnionType):
        kind = next(one for one in typing.get_args(kind) if one is not type(None))
    return typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else kind


# -- bytes


def frame(payload: bytes) -> bytes:
    """A payload after its length."""
    return struct.pack(">i", len(payload)) + payload


def encode_body(request: Any) -> bytes:
    """A request's bytes without its header."""
    body = io.BytesIO()
    entity_writer(type(request))(body, request)
    return body.getvalue()


def encode_request(request: Any, correlation_id: int, client_id: str | None = "raw") -> bytes:
    """A whole frame: length, header, body."""
    schema = type(request)
    header = struct.pack(">hhi", int(schema.__api_key__), int(schema.__version__), correlation_id)
    header += struct.pack(">h", -1) if client_id is None else struct.pack(">h", len(client_id)) + client_id.encode()
    if schema.__header_schema__.__version__ == 2:
        header += b"\x00"
    return frame(header + encode_body(request))


def decode_body(api_key: int, version: int, body: bytes, offset: int = 0) -> Any:
    """A response from its bytes, all of which must be used up."""
    schema: Any = load_response_schema(api_key, version)
    if api_key == _DESCRIBE_TRANSACTIONS:
        body = body[:offset] + plan_of(schema).rewrite(body, offset, len(body))
    response, size = entity_reader(schema)(body, offset)
    assert offset + size == len(body), f"{len(body) - offset - size} bytes left over"
    return response


def decode_response(api_key: int, version: int, payload: bytes) -> tuple[int, Any]:
    """Correlation id and response of a frame without its length; the whole frame must be used up."""
    (correlation_id,) = struct.unpack_from(">i", payload)
    offset = 4
    if load_response_schema(api_key, version).__header_schema__.__version__ == 1:
        assert payload[4] == 0, "response header carries tags"
        offset = 5
    return correlation_id, decode_body(api_key, version, payload, offset)
