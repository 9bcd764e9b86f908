"""Kafka's strings, byte strings, lengths and tagged fields as bytes, for the hand-written readers and writers."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

INT16: Final = struct.Struct(">h").pack
INT32: Final = struct.Struct(">i").pack
INT64: Final = struct.Struct(">q").pack
NO_THROTTLE: Final = b"\0\0\0\0"
NO_TAGS: Final = b"\0"
NULL: Final = b"\0"
"""A null string or array of a flexible version."""

TAGS_MAX: Final = 127
"""Maximum tagged fields of one section; Kafka's messages define fewer than ten."""

STRING_BYTES_MAX: Final = 32_767
"""Longest string of the protocol, in bytes of UTF-8."""

Buffer = bytes | memoryview

_TWO_BYTES: Final = struct.Struct(">BB").pack
_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(128))


class DecodeError(Exception):
    """Bytes that are not a valid request; the connection is closed."""


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


def read_uvarint(data: Buffer, position: int, end: int) -> tuple[int, int]:
    """Decode an unsigned varint of at most five bytes; returns it and the next position. Raises DecodeError."""
    value = shift = 0
    while True:
        if position >= end or shift > 28:
            raise DecodeError("a varint that does not end")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


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


class EncodedNames(dict[str, bytes]):
    """Encoded strings that repeat, such as topic names: up to `COUNT_MAX` of them, none of the long ones."""

    COUNT_MAX: Final = 1_024
    LENGTH_MAX: Final = 256

    def __init__(self, encode: Callable[[str | None], bytes]) -> None:
        self._encode = encode

    def __missing__(self, text: str) -> bytes:
        raw = self._encode(text)
        if len(text) <= self.LENGTH_MAX:
            if len(self) >= self.COUNT_MAX:
                self.clear()
            self[text] = raw
        return raw


NAMES: Final = EncodedNames(short_string), EncodedNames(compact_string)
"""By whether the version is flexible."""


def length(count: int, flexible: bool) -> bytes:
    """Encode the length of an array or byte string; -1 is null."""
    return uvarint(count + 1) if flexible else INT32(count)


def replaced(raw: Buffer) -> str:
    """A string with U+FFFD for what is not UTF-8: three bytes for one, so that it may be too long to be answered.

    Raises DecodeError.
    """
    text = str(raw, "utf-8", "replace")
    if len(text.encode()) > STRING_BYTES_MAX:
        raise DecodeError("a string that is not UTF-8 and too long")
    return text


def skip_tags(data: Buffer, position: int, end: int) -> int:
    """The position after a section of tagged fields. Raises DecodeError."""
    count, position = read_uvarint(data, position, end)
    if count > TAGS_MAX:
        raise DecodeError(f"more than {TAGS_MAX} tagged fields")
    for _ in range(count):
        _, position = read_uvarint(data, position, end)
        size, position = read_uvarint(data, position, end)
        position += size
        if position > end:
            raise DecodeError("a tagged field that ends beyond its frame")
    return position
