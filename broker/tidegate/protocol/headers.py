"""Request and response headers: which version, and where the body begins.

Request header v1 is (API key, version, correlation id, client id); v2 adds tagged fields, and keeps the
client id's two-byte length. Response header v0 is the correlation id; v1 adds tagged fields. Answers to
ApiVersions always have v0, because the client does not know yet what the broker speaks.
"""

from __future__ import annotations

import struct
from typing import Final

from kio.index import load_request_schema, load_response_schema

from tidegate.protocol.schema_walk import Buffer, DecodeError, skip_tags

FIXED: Final = struct.Struct(">Iih")
"""API key and version in one number (see `route_key`), correlation id, size of the client id."""

ANSWER: Final = struct.Struct(">ii")
"""Frame size and correlation id: response header v0."""

ANSWER_TAGS: Final = struct.Struct(">iix")
"""The same with no tagged fields: response header v1."""


def route_key(api_key: int, version: int) -> int:
    """API key and version as the header's first four bytes, read as one number."""
    return (api_key & 0xFFFF) << 16 | version & 0xFFFF


def api_and_version(route: int) -> tuple[int, int]:
    """The API key and version of a `route_key`, both signed."""
    api_key, version = route >> 16, route & 0xFFFF
    return (api_key ^ 0x8000) - 0x8000, (version ^ 0x8000) - 0x8000


def request_has_tags(api_key: int, version: int) -> bool:
    """Whether requests of this version have header v2."""
    return int(load_request_schema(api_key, version).__header_schema__.__version__) == 2


def answer_header(api_key: int, version: int) -> struct.Struct:
    """The response header of this version, with the frame's length before it."""
    return ANSWER_TAGS if load_response_schema(api_key, version).__header_schema__.__version__ == 1 else ANSWER


def client_id_of(raw: Buffer) -> str:
    """A client id from its bytes. Raises DecodeError."""
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError:
        raise DecodeError("a client id that is not UTF-8") from None


def skip_header_tags(data: Buffer, position: int, end: int) -> int:
    """Where the body begins behind the tagged fields of header v2. Raises DecodeError."""
    return skip_tags(data, position, end)
