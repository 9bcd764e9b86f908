"""The records of a batch, decompressed: offset, timestamp, key, value, headers.

A record is `length varint, attributes int8, timestamp delta varlong, offset delta varint, key, value,
headers`; keys, values and headers have varint lengths, -1 for null. Varints are zigzag. Parsing costs 1-2 us per
record, so only callers that need records parse them. Source: Kafka's DefaultRecord.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tidegate.errors import InvalidRecord
from tidegate.records.batch import Batch
from tidegate.records.compression import decompress

OPENED_BYTES_MAX: Final = 128 << 20
"""Default bound on the decompressed records of one batch."""
_VARINT_BITS_MAX: Final = 63


class Record(NamedTuple):
    """One record; `offset` is absolute, `timestamp` in ms, null key or value None."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class RecordHead(NamedTuple):
    """The fields for validation and searches by time; `offset_delta` is the offset within the batch."""

    offset_delta: int
    timestamp: int
    has_key: bool


_ANY_OFFSET: Final = -(1 << 63)


def varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    value = data[position]
    position += 1
    if value < 0x80:
        return (value >> 1) ^ -(value & 1), position
    value &= 0x7F
    shift = 7
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift > _VARINT_BITS_MAX:
            raise InvalidRecord("a varint is too long")


def _field(data: bytes | memoryview, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = varint(data, position)
    if length < 0:
        return None, position
    if position + length > end:
        raise InvalidRecord("a field reaches beyond its record")
    return bytes(data[position : position + length]), position + length


def _headers(data: bytes | memoryview, position: int, end: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, position = varint(data, position)
    if count < 0 or count > end - position:
        raise InvalidRecord("a record has a wrong count of headers")
    headers = []
    for _ in range(count):
        name, position = _field(data, position, end)
        if name is None:
            raise InvalidRecord("the name of a header is null")
        value, position = _field(data, position, end)
        headers.append((name.decode("utf-8", "replace"), value))
    return tuple(headers), position


def record_ranges(data: bytes | memoryview, count: int) -> Iterator[tuple[int, int]]:
    """Start (after the length) and end of each record; they must cover the whole area."""
    position, size = 0, len(data)
    for _ in range(count):
        length, position = varint(data, position)
        end = position + length
        if length < 0 or end > size:
            raise InvalidRecord("a record reaches beyond the batch")
        yield position, end
        position = end
    if position != size:
        raise InvalidRecord(f"{size - position} bytes follow the last record")


def read_records(batch: Batch, bytes_max: int = OPENED_BYTES_MAX) -> list[Record]:
    """Every record of a batch that has its offset. Raises CorruptMessage, InvalidRecord."""
    return list(iter_records(batch, _ANY_OFFSET, bytes_max))


def iter_records(batch: Batch, start: int, bytes_max: int = OPENED_BYTES_MAX) -> Iterator[Record]:
    """The records from an offset on, opened one by one. Raises CorruptMessage, InvalidRecord."""
    data = decompress(batch.codec, batch.records, bytes_max)
    logged = batch.max_timestamp if batch.is_log_append_time else None
    base_offset, base_timestamp = batch.base_offset, batch.base_timestamp
    try:
        for begin, end in record_ranges(data, batch.record_count):
            delta, position = varint(data, begin + 1)
            offset_delta, position = varint(data, position)
            if base_offset + offset_delta < start:
                continue
            key, position = _field(data, position, end)
            value, position = _field(data, position, end)
            headers, position = _headers(data, position, end)
            if position != end:
                raise InvalidRecord("a record has a wrong length")
            timestamp = base_timestamp + delta if logged is None else logged
            yield Record(base_offset + offset_delta, timestamp, key, value, headers)
    except IndexError as error:
        raise InvalidRecord("a record is cut") from error


def iter_heads(batch: Batch, bytes_max: int = OPENED_BYTES_MAX) -> Iterator[RecordHead]:
    """Yields the `RecordHead` of each record. Raises CorruptMessage, InvalidRecord."""
    return heads_of(batch, decompress(batch.codec, batch.records, bytes_max))


def heads_of(batch: Batch, data: bytes | memoryview) -> Iterator[RecordHead]:
    """The same for decompressed records, `data`."""
    logged = batch.max_timestamp if batch.is_log_append_time else None
    base_timestamp = batch.base_timestamp
    try:
        for start, _ in record_ranges(data, batch.record_count):
            delta, position = varint(data, start + 1)
            offset_delta, position = varint(data, position)
            key_length, _ = varint(data, position)
            yield RecordHead(offset_delta, base_timestamp + delta if logged is None else logged, key_length >= 0)
    except IndexError as error:
        raise InvalidRecord("a record is cut") from error
