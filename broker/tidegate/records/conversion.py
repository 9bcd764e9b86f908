"""Convert message sets (magic 0 and 1) to record batches on the way in, and batches to message sets on the way out.

In: one batch for a message set, with the set's codec. Messages without a timestamp get the time of arrival, because
retention and searches go by the records' timestamps. Out: headers and control batches are dropped, and so are records
below the requested offset. zstd becomes gzip, and so does lz4 with magic 0, whose clients know only gzip and snappy, or
expect wrong checksums of lz4. Source: Kafka's
LogValidator.convertAndAssignOffsets, RecordsUtil.downConvert.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final, NamedTuple

from tidegate.errors import InvalidRecord, MessageTooLarge
from tidegate.records.batch import Batch, Buffer, Codec, iter_headers, parse_produced
from tidegate.records.batch_header import TIMESTAMP_TYPE
from tidegate.records.build import NewRecord, batch_of_area, encode_record
from tidegate.records.compression import RecordsTooLarge
from tidegate.records.message_set import (
    NO_TIMESTAMP,
    Message,
    build_message,
    build_wrapper,
    iter_messages,
    message_bytes,
    unwrap,
)
from tidegate.records.record import read_records
from tidegate.records.validation import OPENED_RECORDS_MAX, RecordRules, header_suffices, open_and_check

INLINE_MESSAGES_MAX: Final = 500
"""Messages of a set that are converted on the event loop: some ms. A larger set is converted in a thread."""
INLINE_BYTES_MAX: Final = 64 * 1024
"""Bytes of a set that is converted on the event loop, compressed and decompressed."""
_PRODUCE_VERSION: Final = 3
"""Version of Produce whose rules a converted batch must follow."""


class Limits(NamedTuple):
    """Limits of the conversion of one message set."""

    opened_bytes: int
    """Decompressed bytes of a wrapper."""
    messages: int = OPENED_RECORDS_MAX


INLINE: Final = Limits(INLINE_BYTES_MAX, INLINE_MESSAGES_MAX)


# -- in


def batch_of_messages(
    data: memoryview | None, rules: RecordRules, message_bytes_max: int, now_ms: int, limits: Limits
) -> Batch:
    """The batch to append for the message set of a Produce partition.

    `message_bytes_max` is the topic's max.message.bytes, for each message (a wrapper is one) and for the batch. Raises
    KafkaError, RecordsRefused; RecordsTooLarge if the set exceeds `limits`.
    """
    if not data:
        raise InvalidRecord("the partition has no messages")
    outer = _outer(data, message_bytes_max, limits)
    first = next(outer)
    if first.codec and next(outer, None) is not None:
        raise InvalidRecord("a compressed message is the only one of its set")
    messages = _inner(first, limits) if first.codec else chain((first,), outer)
    converted = _encode(messages, first, now_ms)
    batch = parse_produced(converted, _PRODUCE_VERSION, message_bytes_max)
    return batch if header_suffices(batch, rules) else open_and_check(batch, rules, limits.opened_bytes)


def converted_inline(data: memoryview | None, rules: RecordRules, message_bytes_max: int, now_ms: int) -> Batch | None:
    """`batch_of_messages` if the set is small, whatever its wrapper claims; None otherwise."""
    if data and len(data) > INLINE_BYTES_MAX:
        return None
    try:
        return batch_of_messages(data, rules, message_bytes_max, now_ms, INLINE)
    except RecordsTooLarge:
        return None


def _outer(data: memoryview, message_bytes_max: int, limits: Limits) -> Iterator[Message]:
    for count, message in enumerate(iter_messages(data)):
        if count == limits.messages:
            raise RecordsTooLarge(f"more than {limits.messages} messages in a set")
        if message.size > message_bytes_max:
            raise MessageTooLarge(f"a message of {message.size} bytes, the topic takes {message_bytes_max}")
        yield message


def _inner(wrapper: Message, limits: Limits) -> Iterator[Message]:
    for count, message in enumerate(iter_messages(unwrap(wrapper, limits.opened_bytes))):
        if count == limits.messages:
            raise RecordsTooLarge(f"more than {limits.messages} messages in a set")
        if message.magic != wrapper.magic:
            raise InvalidRecord(f"a message of magic {message.magic} in a wrapper of magic {wrapper.magic}")
        yield message


def _encode(messages: Iterator[Message], first: Message, now_ms: int) -> bytes:
    """The batch of a set's messages, with the codec and the timestamp type of its `first`."""
    area = bytearray()
    base = largest = count = 0
    for count, message in enumerate(messages, 1):
        if message.codec:
            raise InvalidRecord("a compressed message beside or inside another message")
        timestamp = now_ms if message.timestamp == NO_TIMESTAMP else message.timestamp
        if count == 1:
            base = largest = timestamp
        largest = max(largest, timestamp)
        area += encode_record(NewRecord(message.value, message.key, timestamp), count - 1, base)
    if not count:
        raise InvalidRecord("a compressed message without messages")
    attributes = first.attributes & TIMESTAMP_TYPE if first.magic else 0
    return batch_of_area(bytes(area), count, base, largest, codec=first.codec, attributes=attributes)


# -- out


class MessageSet(NamedTuple):
    """A message set to send. `next_offset` is the offset after its last complete message."""

    data: bytes
    next_offset: int


def message_set(batches: Buffer, magic: int, first_offset: int, bytes_max: int, *, whole_first: bool) -> MessageSet:
    """The records of stored batches from `first_offset` on as a message set of at most `bytes_max` bytes.

    If not even the first message fits, the set is its first `bytes_max` bytes: clients then ask for more. A compressed
    batch that does not fit is sent as single messages. `whole_first` (from Fetch v3 on, KIP-74) sends the first message
    whole, whatever its size. Raises CorruptMessage, InvalidRecord.
    """
    out = bytearray()
    next_offset = first_offset
    for batch in iter_headers(batches):
        messages = [] if batch.is_control else _messages_of(batch, magic, first_offset)
        if messages and batch.codec:
            wrapper = build_wrapper(messages, magic, _codec_for(batch.codec, magic))
            if len(out) + len(wrapper) <= bytes_max:
                out += wrapper
                messages = []
            elif out:
                break
        for message in messages:
            if len(out) + message_bytes(message, magic) > bytes_max and (out or not whole_first):
                return MessageSet(bytes(out or build_message(message, magic)[:bytes_max]), next_offset)
            out += build_message(message, magic)
            next_offset = message.offset + 1
        next_offset = max(next_offset, batch.next_offset)
    return MessageSet(bytes(out), next_offset)


def _codec_for(codec: int, magic: int) -> int:
    return codec if codec in (Codec.GZIP, Codec.SNAPPY) or (magic and codec == Codec.LZ4) else Codec.GZIP


def _messages_of(batch: Batch, magic: int, first_offset: int) -> list[Message]:
    batch.verify_crc()  # clients check the messages' CRCs, which are computed here
    kind = batch.attributes & TIMESTAMP_TYPE if magic else 0
    return [
        Message(record.offset, record.timestamp if magic else NO_TIMESTAMP, record.key, record.value, magic, kind)
        for record in read_records(batch)
        if record.offset >= first_offset
    ]
