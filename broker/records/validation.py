"""Checks that need the records themselves, made only where the topic or the header gives a reason to open a batch.

A batch stays closed unless the topic is compacted (keys are needed), bounds the age of records, or the
header itself says that a record is out of bounds or carries the wrong timestamp type. Opening costs 1-2
microseconds a record, which is more than all else that happens to a batch; its CRC has been checked, so what
is inside is what the producer wrote. Source: Kafka's LogValidator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broker.errors import InvalidRecord, InvalidTimestamp, KafkaError
from broker.records.batch import TIMESTAMP_TYPE, Batch
from broker.records.build import with_create_time, with_max_timestamp
from broker.records.record import read_heads

NO_TIMESTAMP: Final = -1
_ERRORS_LISTED_MAX: Final = 1_000


class RecordsRefused(Exception):
    """Some records break a rule: `cause` is the partition's error, `record_errors` (index in the batch, message)."""

    def __init__(self, cause: KafkaError, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.record_errors = record_errors


@dataclass(frozen=True, slots=True)
class RecordRules:
    """What a topic asks of records. `oldest_ms` and `newest_ms` bound timestamps, both inclusive."""

    compacted: bool
    log_append_time: bool
    oldest_ms: int
    newest_ms: int


def stays_closed(batch: Batch, rules: RecordRules) -> bool:
    """Whether nothing that the header tells gives a reason to open the batch."""
    if rules.compacted or batch.attributes & TIMESTAMP_TYPE:
        return False
    return rules.log_append_time or (rules.oldest_ms <= 0 and batch.max_timestamp <= rules.newest_ms)


def open_and_check(batch: Batch, rules: RecordRules, opened_bytes_max: int) -> Batch:
    """Check every record; return the batch to store: a copy where the header was wrong about its timestamps.

    Raises RecordsRefused, CorruptMessage, InvalidRecord.
    """
    heads = read_heads(batch, opened_bytes_max)
    failures: list[tuple[int, str]] = []
    mistimed = False
    for index, head in enumerate(heads):
        if head.offset_delta != index:
            raise InvalidRecord(f"record {index} of the batch has offset delta {head.offset_delta}")
        if rules.compacted and not head.has_key:
            failures.append((index, f"record {index} has no key, which a compacted topic needs"))
        elif (reason := _mistimed(batch, rules, head.timestamp)) is not None:
            mistimed = True
            failures.append((index, f"record {index}: {reason}"))
    if failures:
        cause: KafkaError = InvalidTimestamp(failures[0][1]) if mistimed else InvalidRecord(failures[0][1])
        raise RecordsRefused(cause, failures[:_ERRORS_LISTED_MAX])
    if rules.log_append_time:
        return batch
    if batch.attributes & TIMESTAMP_TYPE:
        return with_create_time(batch)
    largest = max(head.timestamp for head in heads)
    return batch if largest == batch.max_timestamp else with_max_timestamp(batch, largest)


def _mistimed(batch: Batch, rules: RecordRules, timestamp: int) -> str | None:
    if not rules.log_append_time and timestamp != NO_TIMESTAMP:
        if rules.oldest_ms <= timestamp <= rules.newest_ms:
            return None
        return f"timestamp {timestamp} is not between {rules.oldest_ms} and {rules.newest_ms}"
    if batch.attributes & TIMESTAMP_TYPE:
        return "producers may not set the timestamp type to LogAppendTime"
    return None
