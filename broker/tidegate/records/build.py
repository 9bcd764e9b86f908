"""Build record batches: transaction markers, and the batches of tests, restores and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

from tidegate.records.batch import Batch, Codec
from tidegate.records.batch_header import (
    ATTRIBUTES_AT,
    CRC,
    CRC_AT,
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    INT16,
    INT64,
    LENGTH_OVERHEAD,
    MAGIC,
    MAX_TIMESTAMP_AT,
    TIMESTAMP_TYPE,
)
from tidegate.records.compression import compress


class NewRecord(NamedTuple):
    """A record to be encoded; timestamp in ms, None is null."""

    value: bytes | None
    key: bytes | None = None
    timestamp: int = 0
    headers: Sequence[tuple[str, bytes | None]] = ()


def encode_varint(value: int) -> bytes:
    value = value << 1 if value >= 0 else (-value << 1) - 1
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _field(value: bytes | None) -> bytes:
    return b"\x01" if value is None else encode_varint(len(value)) + value


def encode_record(record: NewRecord, offset_delta: int, base_timestamp: int) -> bytes:
    """The bytes of a record in a records area."""
    parts = [b"\x00", encode_varint(record.timestamp - base_timestamp), encode_varint(offset_delta)]
    parts += (_field(record.key), _field(record.value), encode_varint(len(record.headers)))
    for name, value in record.headers:
        parts += (_field(name.encode()), _field(value))
    body = b"".join(parts)
    return encode_varint(len(body)) + body


def build_batch(
    records: Sequence[NewRecord],
    *,
    codec: int = Codec.NONE,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
) -> bytes:
    """A batch of at least one record, as a producer sends it. `attributes` are flags besides the codec bits."""
    base_timestamp = records[0].timestamp
    return batch_of_area(
        b"".join(encode_record(record, i, base_timestamp) for i, record in enumerate(records)),
        len(records),
        base_timestamp,
        max(record.timestamp for record in records),
        codec=codec,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        attributes=attributes,
    )


def batch_of_area(
    area: bytes,
    record_count: int,
    base_timestamp: int,
    max_timestamp: int,
    *,
    codec: int = Codec.NONE,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
) -> bytes:
    """A batch of encoded records, uncompressed in `area`."""
    area = compress(codec, area)
    batch = bytearray(
        HEADER.pack(
            base_offset, HEADER_BYTES + len(area) - LENGTH_OVERHEAD, leader_epoch, MAGIC, 0, attributes | codec,
            record_count - 1, base_timestamp, max_timestamp,
            producer_id, producer_epoch, base_sequence, record_count,
        )
    )  # fmt: skip
    batch += area
    return bytes(seal(batch))


def build_empty_batch(base_offset: int, offset_count: int) -> bytes:
    """A batch without records that covers so many offsets, as Kafka's log cleaner leaves them."""
    batch = bytearray(
        HEADER.pack(
            base_offset, HEADER_BYTES - LENGTH_OVERHEAD, -1, MAGIC, 0, 0, offset_count - 1, -1, -1, -1, -1, -1, 0
        )
    )
    return bytes(seal(batch))


def seal(batch: bytearray) -> bytearray:
    """Write the CRC of a modified batch."""
    CRC.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))
    return batch


def with_create_time(batch: Batch) -> Batch:
    """A copy with the timestamp type CreateTime, for CreateTime topics."""
    changed = bytearray(batch.buffer)
    INT16.pack_into(changed, ATTRIBUTES_AT, batch.attributes & ~TIMESTAMP_TYPE)
    return Batch(memoryview(seal(changed)))


def with_max_timestamp(batch: Batch, timestamp_ms: int) -> Batch:
    """A copy whose header has the actual largest timestamp of its records."""
    changed = bytearray(batch.buffer)
    INT64.pack_into(changed, MAX_TIMESTAMP_AT, timestamp_ms)
    return Batch(memoryview(seal(changed)))


def with_log_append_time(batch: Batch, now_ms: int) -> Batch:
    """A copy with LogAppendTime: bit 3 and the max timestamp change; the base timestamp does not."""
    changed = bytearray(batch.buffer)
    INT16.pack_into(changed, ATTRIBUTES_AT, batch.attributes | TIMESTAMP_TYPE)
    INT64.pack_into(changed, MAX_TIMESTAMP_AT, now_ms)
    return Batch(memoryview(seal(changed)))
