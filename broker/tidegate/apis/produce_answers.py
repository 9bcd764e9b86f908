"""The answer of Produce: the outcome of each partition, and the encoded response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidegate.errors import KafkaError, KafkaStorageError, StoreUnavailable
from tidegate.protocol import log_writers, old_responses
from tidegate.protocol.produce_request import Partition
from tidegate.records.validation import RecordsRefused

if TYPE_CHECKING:
    from tidegate.log.append import Appended

BATCHES_FROM: Final = 3
"""Version from which on a partition has a record batch; older ones have message sets (`records.conversion`)."""

Outcome = tuple[int, int, int, int, int, Sequence[tuple[int, str | None]], str | None]
"""Index, error code, base offset, log append time in ms, log start offset, record errors, error message."""
Topics = Sequence[tuple[str | bytes, Sequence[Partition]]]
"""The topics of a request, by name or id, with their partitions."""


def outcome_of(index: int, outcome: Appended | KafkaError) -> Outcome:
    """What a partition is answered."""
    if not isinstance(outcome, KafkaError):
        return index, 0, outcome.base_offset, outcome.log_append_time_ms, outcome.log_start_offset, (), None
    record_errors: Sequence[tuple[int, str | None]] = ()
    if isinstance(outcome, RecordsRefused):
        record_errors, outcome = outcome.record_errors, outcome.cause
    if isinstance(outcome, StoreUnavailable):  # not appended; clients refresh their metadata and send it again
        outcome = KafkaStorageError(outcome.message)
    return index, outcome.code.value, -1, -1, -1, record_errors, outcome.message or outcome.code.name


def encoded(version: int, named: Topics, outcomes: Sequence[Outcome | None]) -> bytes:
    """The response; the outcomes are those of the partitions in order, of all topics."""
    topics, place = [], 0
    for key, partitions in named:
        topics.append((key, outcomes[place : place + len(partitions)]))
        place += len(partitions)
    write = log_writers.produce if version >= BATCHES_FROM else old_responses.produce
    return write(version, topics)  # type: ignore[arg-type]
