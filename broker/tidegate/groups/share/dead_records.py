"""The records of a dead-letter topic (KIP-1191) as values: the failed records, and the batches to append."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from tidegate.errors import CorruptMessage, InvalidRecord
from tidegate.groups.share.sessions import SharePartition
from tidegate.records.batch import Batch, Codec
from tidegate.records.batch_header import HEADER_BYTES
from tidegate.records.build import NewRecord, build_batch
from tidegate.records.record import Record, read_records
from tidegate.topics.configs import TopicConfig

MESSAGES: Final = {
    "rejected": "Offset rejected by client.",
    "deliveries": "Offset delivery count exceeded the threshold.",
}
"""Cause, as the scripts name it -> the text of the last header, as in Kafka."""
_HEADERS: Final = "__dlq.errors."
_BATCH_BYTES_MAX: Final = 1 << 20
_RECORD_OVERHEAD: Final = 40
_HEADER_OVERHEAD: Final = 10
_COMPACT: Final = "compact"

SourceRecord = tuple[int, Record | None]
"""Offset and record; None if the record is gone, or is not to be copied."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An entry of a group's queue: records of one share-partition, both offsets inclusive."""

    entry_id: str
    topic: str
    partition: SharePartition
    first: int
    last: int
    delivery_count: int
    cause: str
    target: str
    copies: bool

    @classmethod
    def of(cls, entry_id: bytes, fields: Sequence[bytes]) -> DeadLetter:
        """From the reply of Redis."""
        texts = [field.decode() for field in fields]
        values = dict(zip(texts[::2], texts[1::2], strict=True))
        topic_id, _, index = values["partition"].partition(":")
        return cls(
            entry_id.decode(),
            values["topic"],
            SharePartition(UUID(hex=topic_id), int(index)),
            int(values["first"]),
            int(values["last"]),
            int(values["deliveries"]),
            values["cause"],
            values["target"],
            values["copy"] == "1",
        )

    @property
    def record_count(self) -> int:
        """Offsets that it names."""
        return self.last - self.first + 1

    def record(self, group_id: str, offset: int, source: Record | None, now_ms: int) -> NewRecord:
        """The record to be written for an offset, with the headers in the order of Kafka."""
        values: Mapping[str, object] = {
            "topic": self.topic,
            "partition": self.partition.index,
            "offset": offset,
            "group": group_id,
            "delivery.count": self.delivery_count,
            "message": MESSAGES.get(self.cause, self.cause),
        }
        headers = [(_HEADERS + name, str(value).encode()) for name, value in values.items()]
        if source is None:
            return NewRecord(None, None, now_ms, headers)
        return NewRecord(source.value, source.key, now_ms, headers)


def source_records(batches: Sequence[Batch], first: int, last: int, copies: bool) -> list[SourceRecord]:
    """The offsets from `first` to the end of the batches, at most `last`; those of control batches are left out."""
    found: list[SourceRecord] = []
    offset = first
    for batch in batches:
        until = min(batch.next_offset - 1, last)
        found += ((one, None) for one in range(offset, min(batch.base_offset, last + 1)))
        if not batch.is_control:
            records = _records_of(batch) if copies else {}
            start = max(batch.base_offset, offset)
            found += ((one, records.get(one)) for one in range(start, until + 1))
        offset = max(until + 1, offset)
    return found


def _records_of(batch: Batch) -> Mapping[int, Record]:
    try:
        return {record.offset: record for record in read_records(batch)}
    except (CorruptMessage, InvalidRecord):  # nobody can read them
        return {}


def _size(record: NewRecord) -> int:
    size = _RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"")
    return size + sum(_HEADER_OVERHEAD + len(name) + len(value or b"") for name, value in record.headers)


def batches_of(records: Sequence[NewRecord], config: TopicConfig) -> Iterator[Batch]:
    """The batches that a topic takes. A record that is too large loses key and value; what it refuses is left out."""
    bytes_max = min(config.max_message_bytes, _BATCH_BYTES_MAX) - HEADER_BYTES
    pending: list[NewRecord] = []
    pending_bytes = 0
    for full in records:
        record = full if _size(full) <= bytes_max else full._replace(key=None, value=None)
        size = _size(record)
        if size > bytes_max or (record.key is None and _COMPACT in config.cleanup_policy):
            continue
        if pending and pending_bytes + size > bytes_max:
            yield _batch(pending, config)
            pending, pending_bytes = [], 0
        pending.append(record)
        pending_bytes += size
    if pending:
        yield _batch(pending, config)


def _batch(records: Sequence[NewRecord], config: TopicConfig) -> Batch:
    codec = Codec.NONE if config.compression_codec is None else config.compression_codec
    return Batch.parse(build_batch(records, codec=codec))
