"""Validate the records of a produced batch before it is stored.

The structure of every batch is checked (`records.structure`), but of compressed batches of trusted producers
(`is_storable_unopened`). Timestamps and keys are read one by one only if the topic is compacted or bounds the
timestamps of records, or if the header has the wrong largest timestamp or timestamp type. Small batches are checked on
the event loop, others in a thread. Source: Kafka's LogValidator.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidegate.errors import InvalidRecord, InvalidTimestamp, KafkaError
from tidegate.records.batch import Batch
from tidegate.records.batch_header import CODEC_BITS, HEADER_BYTES, TIMESTAMP_TYPE
from tidegate.records.build import with_create_time, with_max_timestamp
from tidegate.records.compression import RecordsTooLarge, decompress
from tidegate.records.record import heads_of
from tidegate.records.structure import check_records, check_sizes

NO_TIMESTAMP: Final = -1
_CUT: Final = "a record is cut"
_TIMESTAMP_MAX: Final = (1 << 63) - 1
_ERRORS_LISTED_MAX: Final = 1_000
OPENED_RECORDS_MAX: Final = 1_000_000
"""Bound on the records of a produced batch; each costs about 1 us to check and at least 7 bytes."""
INLINE_RECORDS_MAX: Final = 1_000
"""Batches with at most this many records are checked on the event loop, larger ones in a thread."""
INLINE_BYTES_MAX: Final = 256 * 1024
"""Bytes up to which a batch is decompressed on the event loop."""


class RecordsRefused(KafkaError):
    """Some records break a rule: `cause` is the partition's error, `record_errors` (index in the batch, message)."""

    code = InvalidRecord.code

    def __init__(self, cause: KafkaError, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(cause.message)
        self.cause = cause
        self.record_errors = record_errors


class RecordRules(NamedTuple):
    """A topic's rules for records; a tuple, because each batch has its own.

    `oldest_ms` and `newest_ms` bound timestamps, both inclusive.
    """

    compacted: bool
    log_append_time: bool
    oldest_ms: int
    newest_ms: int
    record_bytes_max: int | None = None
    """Limit of a record of a compressed batch, bytes; None: none."""


def header_suffices(batch: Batch, rules: RecordRules, largest_delta: int | None = None) -> bool:
    """Whether the header shows that the records need not be read, if its largest timestamp is right.

    Whether it is right too, if the records' largest timestamp delta, ms, is given; of no interest with LogAppendTime.
    """
    if rules.compacted or batch.attributes & TIMESTAMP_TYPE or rules.record_bytes_max is not None:
        return False
    if rules.log_append_time:
        return True
    if largest_delta is not None and batch.base_timestamp + largest_delta != batch.max_timestamp:
        return False
    return rules.oldest_ms <= 0 and batch.max_timestamp <= rules.newest_ms


def is_storable_unopened(batch: Batch, rules: RecordRules) -> bool:
    """Whether a compressed batch may be stored by its header, where its producer is trusted with the records."""
    is_compressed = bool(batch.attributes & CODEC_BITS)
    return is_compressed and batch.record_count <= OPENED_RECORDS_MAX and header_suffices(batch, rules)


def open_and_check(batch: Batch, rules: RecordRules, opened_bytes_max: int) -> Batch:
    """Check every record; return the batch to store: a copy if the header's timestamps were wrong.

    Raises RecordsRefused, CorruptMessage, InvalidRecord.
    """
    if batch.record_count > OPENED_RECORDS_MAX:
        raise InvalidRecord(f"{batch.record_count} records, more than the {OPENED_RECORDS_MAX} that are opened")
    codec = batch.attributes & CODEC_BITS
    area = batch.buffer[HEADER_BYTES:]
    if codec:
        area = memoryview(decompress(codec, area, opened_bytes_max))
    try:
        if codec and rules.record_bytes_max is not None:
            check_sizes(area, batch.record_count, rules.record_bytes_max)
        largest_delta = check_records(area, batch.record_count)
    except IndexError as error:
        raise InvalidRecord(_CUT) from error
    return batch if header_suffices(batch, rules, largest_delta) else _check_heads(batch, rules, area)


def _check_heads(batch: Batch, rules: RecordRules, area: bytes | memoryview) -> Batch:
    failures: list[tuple[int, str]] = []
    mistimed = False
    largest = NO_TIMESTAMP
    for index, head in enumerate(heads_of(batch, area)):
        largest = max(largest, head.timestamp)
        if head.offset_delta != index:
            raise InvalidRecord(f"record {index} of the batch has offset delta {head.offset_delta}")
        if rules.compacted and not head.has_key:
            failures.append((index, f"record {index} has no key, which a compacted topic needs"))
        elif (reason := _mistimed(batch, rules, head.timestamp)) is not None:
            mistimed = True
            failures.append((index, f"record {index}: {reason}"))
        if len(failures) == _ERRORS_LISTED_MAX:
            break
    if failures:
        cause: KafkaError = InvalidTimestamp(failures[0][1]) if mistimed else InvalidRecord(failures[0][1])
        raise RecordsRefused(cause, failures)
    if rules.log_append_time:
        return batch
    if batch.attributes & TIMESTAMP_TYPE:
        return with_create_time(batch)
    return batch if largest == batch.max_timestamp else with_max_timestamp(batch, largest)


def open_inline(batch: Batch, rules: RecordRules, opened_bytes_max: int) -> Batch | None:
    """`open_and_check` if the batch is small, whatever its header claims, or of records of one size; None otherwise."""
    if INLINE_RECORDS_MAX < batch.record_count <= OPENED_RECORDS_MAX:
        if batch.attributes & CODEC_BITS or not header_suffices(batch, rules):
            return None
        try:
            largest_delta = check_records(batch.buffer[HEADER_BYTES:], batch.record_count, INLINE_RECORDS_MAX)
        except IndexError as error:
            raise InvalidRecord(_CUT) from error
        return batch if largest_delta is not None and header_suffices(batch, rules, largest_delta) else None
    try:
        return open_and_check(batch, rules, min(INLINE_BYTES_MAX, opened_bytes_max))
    except RecordsTooLarge:
        if opened_bytes_max > INLINE_BYTES_MAX:
            return None
        raise


def _mistimed(batch: Batch, rules: RecordRules, timestamp: int) -> str | None:
    if not rules.log_append_time and timestamp != NO_TIMESTAMP:
        if rules.oldest_ms <= timestamp <= min(rules.newest_ms, _TIMESTAMP_MAX):
            return None
        return f"timestamp {timestamp} is not between {rules.oldest_ms} and {rules.newest_ms}"
    if batch.attributes & TIMESTAMP_TYPE:
        return "producers may not set the timestamp type to LogAppendTime"
    return None
