"""Kafka's strings, byte strings and lengths as bytes, for the hand-written encoders."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

INT16: Final = struct.Struct(">h").pack
INT32: Final = struct.Struct(">i").pack
INT64: Final = struct.Struct(">q").pack
NO_THROTTLE: Final = b"\0\0\0\0"
NO_TAGS: Final = b"\0"
NULL: Final = b"\0"
"""A null string or array of a flexible version."""

_TWO_BYTES: Final = struct.Struct(">BB").pack
_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(128))


def uvarint(value: int) -> bytes:
    """Encode an unsigned varint."""
    if value < 128:
        return _ONE_BYTE[value]
    if value < 16_384:
        return _TWO_BYTES(value & 0x7F | 0x80, value >> 7)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def compact_string(text: str | None) -> bytes:
    """Encode a string of a flexible version; None is null."""
    if text is None:
        return b"\0"
    raw = text.encode()
    return uvarint(len(raw) + 1) + raw


def short_string(text: str | None) -> bytes:
    """Encode a string of a non-flexible version; None is null."""
    if text is None:
        return b"\xff\xff"
    raw = text.encode()
    return INT16(len(raw)) + raw


def string(text: str | None, flexible: bool) -> bytes:
    """Encode a nullable string."""
    return compact_string(text) if flexible else short_string(text)


@lru_cache(1024)
def name(text: str, flexible: bool) -> bytes:
    """Encode a repeated string such as a topic name. Names have at most 32 kB, so the cache holds at most 64 MB."""
    return compact_string(text) if flexible else short_string(text)


def length(count: int, flexible: bool) -> bytes:
    """Encode the length of an array or byte string; -1 is null."""
    return uvarint(count + 1) if flexible else INT32(count)
