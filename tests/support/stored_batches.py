"""Record batches as a log holds them, of any shape: with gaps as compaction leaves them, sealed after any change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.records.batch import Codec
from tidegate.records.batch_header import HEADER, HEADER_BYTES
from tidegate.records.build import NewRecord, encode_record, seal
from tidegate.records.compression import compress


def sealed_batch(area: bytes, codec: int = Codec.NONE, **header: int) -> bytes:
    """A batch around an uncompressed records area, whatever that holds, with the right length and CRC."""
    packed = compress(codec, area)
    fields = {
        "base_offset": 0,
        "batch_length": HEADER_BYTES + len(packed) - 12,
        "leader_epoch": -1,
        "magic": 2,
        "crc": 0,
        "attributes": 0,
        "last_offset_delta": header.get("record_count", 0) - 1,
        "base_timestamp": 0,
        "max_timestamp": 0,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "record_count": 0,
    } | header
    fields["attributes"] |= codec
    return bytes(seal(bytearray(HEADER.pack(*fields.values()) + packed)))


def stored_batch(
    records: Sequence[NewRecord], deltas: Sequence[int] | None = None, codec: int = Codec.NONE, **header: int
) -> bytes:
    """A batch of records at these offset deltas, else one after the other."""
    deltas = range(len(records)) if deltas is None else deltas
    base_timestamp = records[0].timestamp
    area = b"".join(encode_record(each, delta, base_timestamp) for each, delta in zip(records, deltas, strict=True))
    reported: Mapping[str, Any] = {
        "last_offset_delta": deltas[-1],
        "base_timestamp": base_timestamp,
        "max_timestamp": max(each.timestamp for each in records),
        "record_count": len(records),
    }
    return sealed_batch(area, codec, **{**reported, **header})
