"""The lz4 frames of messages with magic 0, whose header checksum is wrong (KAFKA-3160).

A frame is `magic number 4, FLG 1, BD 1, [content size 8], [dictionary id 4], header checksum 1, blocks`. The checksum
is the second byte of the xxHash-32 of FLG to dictionary id. Clients of Kafka 0.8 and 0.9 include the magic number in
it, and later ones do when they write for those brokers. Source: lz4's frame format, KafkaLZ4BlockOutputStream.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

_FLAGS_AT: Final = 4
_DESCRIPTOR_BYTES: Final = 2
_CONTENT_SIZE: Final = 0x08
_DICTIONARY_ID: Final = 0x01
_WORD: Final = Struct("<I").unpack_from
_MASK: Final = 0xFFFF_FFFF
_PRIMES: Final = (2_654_435_761, 2_246_822_519, 3_266_489_917, 668_265_263, 374_761_393)


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK


def _xxhash32(data: bytes) -> int:
    """XxHash-32 with seed 0 of at most 15 bytes."""
    first, second, third, fourth, fifth = _PRIMES
    value = fifth + len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        value = _rotate((value + _WORD(data, at)[0] * third) & _MASK, 17) * fourth & _MASK
    for byte in data[whole:]:
        value = _rotate((value + byte * fifth) & _MASK, 11) * first & _MASK
    value = (value ^ value >> 15) * second & _MASK
    value = (value ^ value >> 13) * third & _MASK
    return value ^ value >> 16


def _checksum_at(frame: bytes) -> int:
    """Where the header checksum is; beyond the end if the frame is cut."""
    if len(frame) <= _FLAGS_AT:
        return len(frame)
    flags = frame[_FLAGS_AT]
    optional = (8 if flags & _CONTENT_SIZE else 0) + (4 if flags & _DICTIONARY_ID else 0)
    return _FLAGS_AT + _DESCRIPTOR_BYTES + optional


def with_correct_checksum(frame: bytes) -> bytes:
    """The frame with a correct header checksum, whichever it has."""
    at = _checksum_at(frame)
    if at >= len(frame):
        return frame
    return frame[:at] + bytes((_xxhash32(frame[_FLAGS_AT:at]) >> 8 & 0xFF,)) + frame[at + 1 :]
