"""Transaction markers: control batches of one record that end a producer's transaction in a partition.

The record's key is version int16 and type int16 (0 abort, 1 commit), its value version int16 and coordinator epoch
int32. A marker of the coordinator has the time of the decision as base timestamp: that identifies the transaction which
it ends, so a marker is written once although several brokers may try. A marker that an administrator wrote has -1
there; its record's own timestamp is right in both cases. Source: Kafka's EndTransactionMarker, ControlRecordType.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct, error
from typing import Final, NamedTuple

from tidegate.records.batch import Batch, Buffer
from tidegate.records.batch_header import (
    ATTRIBUTES_AT,
    ATTRIBUTES_TO_SEQUENCE,
    CONTROL,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    TRANSACTIONAL,
)
from tidegate.records.build import NewRecord, encode_record, seal

_KEY: Final = Struct(">hh")
_VALUE: Final = Struct(">hi")


class MarkerType(IntEnum):
    """How a transaction ended."""

    ABORT = 0
    COMMIT = 1


class Marker(NamedTuple):
    """What a marker says. `ended_ms` identifies the transaction, -1 if no coordinator wrote it."""

    producer_id: int
    producer_epoch: int
    type: MarkerType
    ended_ms: int
    coordinator_epoch: int = 0


def build_marker(marker: Marker, now_ms: int) -> Batch:
    """The batch of a marker, as it is appended."""
    record = NewRecord(value=_VALUE.pack(0, marker.coordinator_epoch), key=_KEY.pack(0, marker.type), timestamp=now_ms)
    area = encode_record(record, 0, marker.ended_ms)
    batch = bytearray(
        HEADER.pack(
            0, HEADER_BYTES + len(area) - LENGTH_OVERHEAD, -1, MAGIC, 0, TRANSACTIONAL | CONTROL, 0,
            marker.ended_ms, now_ms, marker.producer_id, marker.producer_epoch, -1, 1,
        )
    )  # fmt: skip
    return Batch(memoryview(bytes(seal(batch + area))))


def read_marker(batch: Buffer) -> Marker | None:
    """The marker in a control batch; None if it does not mark the end of a transaction."""
    _, _, ended_ms, _, producer_id, epoch, _ = ATTRIBUTES_TO_SEQUENCE.unpack_from(batch, ATTRIBUTES_AT)
    try:
        at = _skip_varint(batch, HEADER_BYTES) + 1  # length, attributes
        at = _skip_varint(batch, _skip_varint(batch, at))  # timestamp and offset deltas
        at = _skip_varint(batch, at)  # the key's length
        _, kind = _KEY.unpack_from(batch, at)
        at = _skip_varint(batch, at + _KEY.size)
        _, coordinator_epoch = _VALUE.unpack_from(batch, at)
        return Marker(producer_id, epoch, MarkerType(kind), ended_ms, coordinator_epoch)
    except (IndexError, ValueError, error):
        return None


def _skip_varint(buffer: Buffer, at: int) -> int:
    while buffer[at] & 0x80:
        at += 1
    return at + 1
