"""Request and response headers: their version, and the start of the body.

Request header v1 is (API key, version, correlation id, client id); v2 adds tagged fields and keeps the client id's
two-byte length. Response header v0 is the correlation id; v1 adds tagged fields. ApiVersions responses always have v0,
because the client does not know the broker's versions yet.
"""

from __future__ import annotations

import struct
from typing import Final

from tidegate.protocol.primitives import Buffer, replaced, skip_tags
from tidegate.protocol.schemas import load_request_schema, load_response_schema
from tidegate.protocol.versions import is_old

FIXED: Final = struct.Struct(">Iih")
"""Route key (see `route_key`), correlation id, length of the client id."""

ANSWER: Final = struct.Struct(">ii")
"""Frame length and correlation id: response header v0."""

ANSWER_TAGS: Final = struct.Struct(">iix")
"""As above with an empty tagged-field section: response header v1."""


def route_key(api_key: int, version: int) -> int:
    """API key and version: the first four bytes of the header as one integer."""
    return (api_key & 0xFFFF) << 16 | version & 0xFFFF


def api_and_version(route: int) -> tuple[int, int]:
    """The signed API key and version of a `route_key`."""
    api_key, version = route >> 16, route & 0xFFFF
    return (api_key ^ 0x8000) - 0x8000, (version ^ 0x8000) - 0x8000


def request_has_tags(api_key: int, version: int) -> bool:
    """Whether requests of this version have header v2."""
    if is_old(api_key, version):
        return False
    return int(load_request_schema(api_key, version).__header_schema__.__version__) == 2


def answer_header(api_key: int, version: int) -> struct.Struct:
    """The response header of this version, preceded by the frame length."""
    if is_old(api_key, version):
        return ANSWER
    return ANSWER_TAGS if load_response_schema(api_key, version).__header_schema__.__version__ == 1 else ANSWER


def client_id_of(raw: Buffer) -> str:
    """Decode a client id; what is not UTF-8 becomes U+FFFD, as in Kafka. Raises DecodeError."""
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError:
        return replaced(raw)


def skip_header_tags(data: Buffer, position: int, end: int) -> int:
    """The start of the body after the tagged fields of header v2. Raises DecodeError."""
    return skip_tags(data, position, end)
