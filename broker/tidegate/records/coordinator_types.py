"""Types of Kafka's message format, as records of its coordinators use them; compact ones are of flexible versions."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from struct import Struct
from typing import Final

int8: Final = Struct(">b").pack
int16: Final = Struct(">h").pack
int32: Final = Struct(">i").pack
int64: Final = Struct(">q").pack
NO_TAGS: Final = b"\0"


def string(text: str | None) -> bytes:
    """A string with its length as int16, -1 for null."""
    if text is None:
        return int16(-1)
    raw = text.encode()
    return int16(len(raw)) + raw


def data(value: bytes) -> bytes:
    """Bytes with their length as int32."""
    return int32(len(value)) + value


def uvarint(value: int) -> bytes:
    """An unsigned varint."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))


def compact_string(text: str | None) -> bytes:
    """A string with its length and 1 as a varint, 0 for null."""
    if text is None:
        return uvarint(0)
    raw = text.encode()
    return uvarint(len(raw) + 1) + raw


def compact_bytes(value: bytes) -> bytes:
    """Bytes with their length and 1 as a varint."""
    return uvarint(len(value) + 1) + value


def compact_array(elements: Collection[bytes] | None) -> bytes:
    """Encoded elements with their number and 1 as a varint, 0 for null."""
    if elements is None:
        return uvarint(0)
    return uvarint(len(elements) + 1) + b"".join(elements)


def tags(fields: Iterable[tuple[int, bytes]]) -> bytes:
    """Tagged fields, in the order of their tags."""
    encoded = [uvarint(tag) + uvarint(len(value)) + value for tag, value in fields]
    return uvarint(len(encoded)) + b"".join(encoded)
