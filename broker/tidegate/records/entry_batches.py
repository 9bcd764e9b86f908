"""Build the record batches (v2) of a Fetch from stream entries. Offsets have gaps, as after compaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidegate.records.batch_header import HEADER, HEADER_BYTES, LENGTH_OVERHEAD, MAGIC, TIMESTAMP_TYPE
from tidegate.records.build import NewRecord, encode_record, seal
from tidegate.records.entry_fields import record_of
from tidegate.records.entry_ids import RecordIds, parse_id

_BATCH_RECORDS_MAX: Final = 1_000
_DELTA_MAX: Final = (1 << 31) - 1
_NO_PRODUCER: Final = -1


@dataclass(frozen=True, slots=True)
class Built:
    """Batches, the offset after the last record, and the entries beyond the sequence bits, which have no offset."""

    batches: list[bytes]
    end_offset: int
    beyond: int
    last_beyond: bytes = b""


def build_batches(ids: RecordIds, entries: Sequence[Any], leader_epoch: int, *, by_append_time: bool) -> Built:
    """The batches of the entries of an XRANGE reply; `end_offset` is 0 without entries."""
    batches: list[bytes] = []
    rows: list[tuple[int, NewRecord]] = []
    beyond, last_beyond, end_offset = 0, b"", 0
    for entry_id, fields in entries:
        end_offset = ids.end_of(entry_id)
        offset = ids.offset_of(entry_id)
        if offset is None:
            beyond, last_beyond = beyond + 1, entry_id
            continue
        ms = parse_id(entry_id)[0]
        record = record_of(fields or (), ms)
        if by_append_time:
            record = record._replace(timestamp=ms)
        if rows and _is_full(rows, offset, by_append_time and ms != rows[-1][1].timestamp):
            batches.append(_batch(rows, leader_epoch, by_append_time))
            rows = []
        rows.append((offset, record))
    if rows:
        batches.append(_batch(rows, leader_epoch, by_append_time))
    return Built(batches, end_offset, beyond, last_beyond)


def _is_full(rows: Sequence[tuple[int, NewRecord]], offset: int, is_later: bool) -> bool:
    """Whether the next record starts another batch: with LogAppendTime a batch has one time."""
    return is_later or len(rows) == _BATCH_RECORDS_MAX or offset - rows[0][0] > _DELTA_MAX


def _batch(rows: Sequence[tuple[int, NewRecord]], leader_epoch: int, by_append_time: bool) -> bytes:
    base_offset, first = rows[0]
    base_timestamp = first.timestamp
    area = b"".join(encode_record(record, offset - base_offset, base_timestamp) for offset, record in rows)
    batch = bytearray(
        HEADER.pack(
            base_offset, HEADER_BYTES + len(area) - LENGTH_OVERHEAD, leader_epoch, MAGIC, 0,
            TIMESTAMP_TYPE if by_append_time else 0, rows[-1][0] - base_offset, base_timestamp,
            max(record.timestamp for _, record in rows), _NO_PRODUCER, _NO_PRODUCER, _NO_PRODUCER, len(rows),
        )
    )  # fmt: skip
    batch += area
    return bytes(seal(batch))
