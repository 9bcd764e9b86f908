"""The records of `__transaction_state`: a key and a value for each transactional id.

Source: TransactionLogKey.json, TransactionLogValue.json of Kafka's transaction coordinator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tidegate.records.coordinator_types import (
    NO_TAGS,
    compact_array,
    compact_string,
    int8,
    int16,
    int32,
    int64,
    string,
    tags,
)

_KEY: Final = 0
"""Kind of record: the int16 that a key begins with."""
_VALUE_VERSION: Final = 1
_PREVIOUS_PRODUCER_ID: Final = 0
_NEXT_PRODUCER_ID: Final = 1
_STATUS: Final = {
    "Empty": 0,
    "Ongoing": 1,
    "PrepareCommit": 2,
    "PrepareAbort": 3,
    "CompleteCommit": 4,
    "CompleteAbort": 5,
}


class TransactionValue(NamedTuple):
    """The state of a transactional id. `partitions`: topic -> indexes; times in ms, -1 for none."""

    producer_id: int
    previous_producer_id: int
    next_producer_id: int
    epoch: int
    timeout_ms: int
    state: str
    partitions: Mapping[str, Sequence[int]]
    update_ms: int
    start_ms: int


def transaction_key(transactional_id: str) -> bytes:
    """The key of a transactional id."""
    return int16(_KEY) + string(transactional_id)


def transaction_value(one: TransactionValue) -> bytes:
    """The value; an Empty transactional id has null for its partitions, as in Kafka."""
    status = _STATUS[one.state]
    partitions = [_topic(topic, indexes) for topic, indexes in one.partitions.items()] if status else None
    tagged = [
        (tag, int64(producer_id))
        for tag, producer_id in (
            (_PREVIOUS_PRODUCER_ID, one.previous_producer_id),
            (_NEXT_PRODUCER_ID, one.next_producer_id),
        )
        if producer_id >= 0
    ]
    return b"".join(
        (
            int16(_VALUE_VERSION), int64(one.producer_id), int16(one.epoch), int32(one.timeout_ms), int8(status),
            compact_array(partitions), int64(one.update_ms), int64(one.start_ms), tags(tagged),
        )
    )  # fmt: skip


def _topic(topic: str, indexes: Sequence[int]) -> bytes:
    return compact_string(topic) + compact_array([int32(index) for index in indexes]) + NO_TAGS
