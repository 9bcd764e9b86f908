"""Message sets, the records format of Kafka 0.8 (magic 0) and 0.10 (magic 1): parse and build.

```
0 offset 8     8 size 4     12 crc 4     16 magic 1    17 attributes 1    [18 timestamp 8: magic 1]
then key and value, each an int32 length (-1: null) and its bytes
```
`size` counts the bytes after it; the CRC-32 covers everything from `magic`. Attributes: bits 0-2 codec, bit 3 timestamp
type (magic 1). The value of a compressed message (a wrapper) is a message set. Offsets in it are absolute with magic 0;
with magic 1 they count from its first message, and the wrapper has the offset of the last one (KIP-31, KIP-32).
Source: Kafka's "A Guide To The Kafka Protocol", LegacyRecord, AbstractLegacyRecordBatch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from kio.schema.errors import ErrorCode

from tidegate.errors import CorruptMessage, InvalidRecord, KafkaError
from tidegate.records.batch import Codec
from tidegate.records.batch_header import CODEC_BITS, TIMESTAMP_TYPE
from tidegate.records.compression import compress, decompress
from tidegate.records.old_lz4 import with_correct_checksum

NO_TIMESTAMP: Final = -1
MAGIC_MAX: Final = 1
LOG_OVERHEAD: Final = 12
"""Offset and size, before the bytes that `size` counts."""
_HEAD: Final = Struct(">qiIbb")
_PLACE: Final = Struct(">qi")
_BODY: Final = (Struct(">bb"), Struct(">bbq"))
_CRC: Final = Struct(">I")
_TIMESTAMP: Final = Struct(">q")
_LENGTH: Final = Struct(">i")
_CRC_END: Final = 16
_SIZE_MIN: Final = (14, 22)
"""Size of a message with null key and value, of magic 0 and 1."""
_NULL: Final = b"\xff\xff\xff\xff"


class InvalidMessageSize(KafkaError):
    """A message with a negative size; today's name of the code is INVALID_FETCH_SIZE."""

    code = ErrorCode.invalid_fetch_size


class Message(NamedTuple):
    """One message. Timestamp in ms, -1 with magic 0; `size` is that of its bytes, with offset and size."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    magic: int = 0
    attributes: int = 0
    size: int = 0

    @property
    def codec(self) -> int:
        """The codec of a wrapper; NONE for a message that holds data."""
        return self.attributes & CODEC_BITS


# -- parse


def _field(data: memoryview, position: int, end: int) -> tuple[bytes | None, int]:
    start = position + _LENGTH.size
    if start > end:
        raise CorruptMessage("a message that is cut")
    (size,) = _LENGTH.unpack_from(data, position)
    if size < 0:
        return None, start
    if start + size > end:
        raise CorruptMessage("a field that reaches beyond its message")
    return bytes(data[start : start + size]), start + size


def iter_messages(data: memoryview) -> Iterator[Message]:
    """Each message of a set, wrappers unopened. The set must be complete.

    Raises CorruptMessage, InvalidMessageSize (a negative size), InvalidRecord (another magic).
    """
    position, limit = 0, len(data)
    while position < limit:
        if limit - position < _HEAD.size:
            raise CorruptMessage("the last message is cut")
        offset, size, crc, magic, attributes = _HEAD.unpack_from(data, position)
        if size < 0:
            raise InvalidMessageSize(f"a message of {size} bytes")
        if not 0 <= magic <= MAGIC_MAX:
            raise InvalidRecord(f"a message of magic {magic} in a message set")
        end = position + LOG_OVERHEAD + size
        if size < _SIZE_MIN[magic] or end > limit:
            raise CorruptMessage(f"a message of {size} bytes where {limit - position - LOG_OVERHEAD} are left")
        if crc32(data[position + _CRC_END : end]) != crc:
            raise CorruptMessage("the CRC of a message is wrong")
        at, timestamp = position + _HEAD.size, NO_TIMESTAMP
        if magic:
            (timestamp,) = _TIMESTAMP.unpack_from(data, at)
            at += _TIMESTAMP.size
        key, at = _field(data, at, end)
        value, at = _field(data, at, end)
        if at != end:
            raise CorruptMessage("the fields of a message do not fill it")
        yield Message(offset, timestamp, key, value, magic, attributes, end - position)
        position = end


def unwrap(wrapper: Message, bytes_max: int) -> memoryview:
    """The message set in a compressed message, at most `bytes_max` bytes. Raises CorruptMessage."""
    if wrapper.value is None:
        raise CorruptMessage("a compressed message without a value")
    if wrapper.codec > Codec.LZ4:
        raise CorruptMessage(f"codec {wrapper.codec} in a message set")
    lz4_of_old = wrapper.codec == Codec.LZ4 and wrapper.magic == 0
    value = with_correct_checksum(wrapper.value) if lz4_of_old else wrapper.value
    return memoryview(decompress(wrapper.codec, value, bytes_max))


# -- build


def build_message(message: Message, magic: int) -> bytes:
    """The bytes of one message in a message set."""
    key, value = message.key, message.value
    if magic:
        parts = [_BODY[1].pack(magic, message.attributes, message.timestamp)]
    else:
        parts = [_BODY[0].pack(magic, message.attributes)]
    for field in (key, value):
        parts.append(_NULL if field is None else _LENGTH.pack(len(field)) + field)
    body = b"".join(parts)
    return _PLACE.pack(message.offset, len(body) + _CRC.size) + _CRC.pack(crc32(body)) + body


def message_bytes(message: Message, magic: int) -> int:
    """The length of `build_message`."""
    return LOG_OVERHEAD + _SIZE_MIN[magic] + len(message.key or b"") + len(message.value or b"")


def build_wrapper(messages: Sequence[Message], magic: int, codec: int) -> bytes:
    """One compressed message of at least one message, whose offsets are absolute."""
    last, kind = messages[-1], messages[0].attributes & TIMESTAMP_TYPE
    first = messages[0].offset if magic else 0
    inner = b"".join(build_message(one._replace(offset=one.offset - first), magic) for one in messages)
    value = compress(codec, inner)
    timestamp = max(one.timestamp for one in messages)
    return build_message(Message(last.offset, timestamp, None, value, attributes=codec | kind), magic)
