"""Compact one record batch: drop the records whose key has a newer record, and expired tombstones. Pure.

A rewritten batch keeps its offsets, producer fields and codec; record count, largest timestamp and CRC change. A
tombstone (null value) stays until its delete horizon. The batch stores the horizon: attribute bit 6 is set, and the
base timestamp is the horizon, so the timestamp deltas of its records are encoded again. Source: Kafka's LogCleaner,
MemoryRecords.filterTo.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from hashlib import blake2b
from typing import Final, NamedTuple

from tidegate.errors import InvalidRecord
from tidegate.records.batch import Batch, Buffer
from tidegate.records.batch_header import CODEC_BITS, DELETE_HORIZON, HEADER, HEADER_BYTES, LENGTH_OVERHEAD, MAGIC
from tidegate.records.build import encode_varint, seal
from tidegate.records.compression import compress, decompress
from tidegate.records.record import OPENED_BYTES_MAX, record_ranges, varint

NO_TIMESTAMP: Final = -1
_DIGEST_BYTES: Final = 16
_SHORT_KEY_BYTES_MAX: Final = 32


class CleaningRules(NamedTuple):
    """What to drop: `latest` maps key ids to the offset of their newest record.

    Tombstones below `horizon_from` keep the horizon of their batch; later ones get `new_horizon_ms`.
    """

    latest: Mapping[bytes, int]
    now_ms: int
    new_horizon_ms: int
    horizon_from: int


class Cleaned(NamedTuple):
    """A cleaned batch: its bytes (None if no record is left), and the records dropped."""

    batch: Buffer | None
    dropped: int


class _Record(NamedTuple):
    """Where a record's parts are: `start` with its length, `rest` after its timestamp delta, `end`."""

    start: int
    body: int
    rest: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    is_tombstone: bool


def note_keys(batch: Batch, base: int, latest: MutableMapping[bytes, int]) -> None:
    """Record the offset of each key of a batch that starts at `base`. Raises CorruptMessage, InvalidRecord."""
    for record in _records(batch, _opened(batch)):
        if record.key is not None:
            latest[record.key] = base + record.offset_delta


def clean(batch: Batch, base: int, rules: CleaningRules) -> Cleaned:
    """Clean a batch that starts at `base`; an unchanged one keeps its bytes. Raises CorruptMessage, InvalidRecord."""
    data = _opened(batch)
    is_new = base >= rules.horizon_from or not batch.attributes & DELETE_HORIZON
    is_expired = not is_new and batch.base_timestamp <= rules.now_ms
    latest = rules.latest
    kept: list[_Record] = []
    has_tombstone = False
    for record in _records(batch, data):
        if record.key is None or base + record.offset_delta < latest.get(record.key, -1):
            continue
        if record.is_tombstone:
            if is_expired:
                continue
            has_tombstone = True
        kept.append(record)
    dropped = batch.record_count - len(kept)
    if not kept:
        return Cleaned(None, dropped)
    horizon = rules.new_horizon_ms if has_tombstone and is_new else None
    if not dropped and horizon is None:
        return Cleaned(batch.buffer, 0)
    return Cleaned(_rewritten(batch, data, kept, horizon), dropped)


def emptied(batch: Batch) -> bytes:
    """The batch without records: it only holds its offsets and its producer's sequence."""
    attributes = batch.attributes & ~(CODEC_BITS | DELETE_HORIZON)
    return _sealed(batch, b"", 0, attributes, NO_TIMESTAMP, NO_TIMESTAMP)


def key_id(key: bytes) -> bytes:
    """A key in the map of newest offsets: a digest where that is shorter, so no other key has its length."""
    size = len(key)
    if size > _SHORT_KEY_BYTES_MAX or size == _DIGEST_BYTES:
        return blake2b(key, digest_size=_DIGEST_BYTES).digest()
    return key


def _opened(batch: Batch) -> bytes:
    return bytes(decompress(batch.codec, batch.records, OPENED_BYTES_MAX))


def _records(batch: Batch, data: bytes) -> Iterator[_Record]:
    start = 0
    try:
        for body, end in record_ranges(data, batch.record_count):
            timestamp_delta, rest = varint(data, body + 1)
            offset_delta, position = varint(data, rest)
            size, position = varint(data, position)
            key = None
            if size >= 0:
                key, position = key_id(data[position : position + size]), position + size
            if position >= end:
                raise InvalidRecord("a field reaches beyond its record")
            value_size, _ = varint(data, position)
            yield _Record(start, body, rest, end, timestamp_delta, offset_delta, key, value_size < 0)
            start = end
    except IndexError as error:
        raise InvalidRecord("a record is cut") from error


def _rewritten(batch: Batch, data: bytes, kept: list[_Record], horizon: int | None) -> bytes:
    base_timestamp, attributes = batch.base_timestamp, batch.attributes
    newest = batch.max_timestamp
    if not batch.is_log_append_time:
        newest = max(base_timestamp + record.timestamp_delta for record in kept)
    if horizon is None:
        area = b"".join(data[record.start : record.end] for record in kept)
        return _sealed(batch, area, len(kept), attributes, base_timestamp, newest)
    shift = base_timestamp - horizon
    parts: list[bytes] = []
    for record in kept:
        body = data[record.body : record.body + 1] + encode_varint(record.timestamp_delta + shift)
        body += data[record.rest : record.end]
        parts += (encode_varint(len(body)), body)
    return _sealed(batch, b"".join(parts), len(kept), attributes | DELETE_HORIZON, horizon, newest)


def _sealed(batch: Batch, area: bytes, count: int, attributes: int, base_timestamp: int, max_timestamp: int) -> bytes:
    area = compress(attributes & CODEC_BITS, area)
    header = HEADER.pack(
        batch.base_offset, HEADER_BYTES + len(area) - LENGTH_OVERHEAD, batch.leader_epoch, MAGIC, 0, attributes,
        batch.last_offset_delta, base_timestamp, max_timestamp,
        batch.producer_id, batch.producer_epoch, batch.base_sequence, count,
    )  # fmt: skip
    return bytes(seal(bytearray(header + area)))
