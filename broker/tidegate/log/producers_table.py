"""The producer table: the state of each idempotent producer in a log, and the verdict on its next batch. Pure.

The table is a function of the log alone, so every broker computes the same table. Sequences count modulo 2^31.
Source: KIP-98, KIP-360, Kafka's ProducerStateEntry and ProducerAppendInfo.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from tidegate.errors import InvalidProducerEpoch, KafkaError, OutOfOrderSequenceNumber

BATCHES_KEPT: Final = 5
PRODUCER_ID_EXPIRATION_MS: Final = 86_400_000
"""Time after which the state of an idle producer is removed: Kafka's default of `producer.id.expiration.ms`."""
_MASK: Final = 0x7FFFFFFF
_AHEAD_MAX: Final = 1 << 30


class AppendedBatch(NamedTuple):
    """One of a producer's last batches; `timestamp` is its max timestamp in ms."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    timestamp: int


class ProducerState(NamedTuple):
    """A producer of one partition: its newest epoch, last batches in order, and time of its last append (ms).

    `transaction_start` is the first offset of its open transaction here, -1 without one. `ended_ms` identifies the
    last transaction that the coordinator ended here (`records.control`), `coordinator_epoch` is its last marker's.
    """

    epoch: int
    batches: tuple[AppendedBatch, ...]
    last_active_ms: int
    transaction_start: int = -1
    ended_ms: int = -1
    coordinator_epoch: int = -1

    @property
    def last_timestamp(self) -> int:
        """The newest of its last batch and its last marker, ms; of its last batch while its transaction is open."""
        if self.transaction_start >= 0 and self.batches:
            return self.batches[-1].timestamp
        newest = max(self.batches[-1].timestamp if self.batches else -1, self.ended_ms)
        return newest if newest >= 0 else self.last_active_ms


class Verdict(Enum):
    """The result of judging a batch."""

    ACCEPT = "append it"
    DUPLICATE = "answer with the original base offset"
    FENCED = "an older epoch"
    BEHIND = "a sequence below the next one, and none of the last batches"
    GAP = "a sequence above the next one: the batch before it may still be under way"
    UNKNOWN_GAP = "an unknown producer that does not begin at 0: as GAP, but accepted when nothing comes"


REFUSALS: Final[dict[Verdict, type[KafkaError]]] = {
    Verdict.FENCED: InvalidProducerEpoch,
    Verdict.BEHIND: OutOfOrderSequenceNumber,
    Verdict.GAP: OutOfOrderSequenceNumber,
}


def judge(state: ProducerState | None, epoch: int, base_sequence: int, last_offset_delta: int) -> Verdict:
    """Judge a batch against the state of its producer."""
    if state is None:
        return Verdict.ACCEPT if base_sequence == 0 else Verdict.UNKNOWN_GAP
    if epoch < state.epoch:
        return Verdict.FENCED
    if epoch > state.epoch or not state.batches:  # without batches its last sequence is -1
        return Verdict.ACCEPT if base_sequence == 0 else Verdict.GAP
    ahead = (base_sequence - state.batches[-1].last_sequence - 1) & _MASK
    if ahead == 0:
        return Verdict.ACCEPT
    if find_duplicate(state, epoch, base_sequence, last_offset_delta) is not None:
        return Verdict.DUPLICATE
    return Verdict.GAP if ahead < _AHEAD_MAX else Verdict.BEHIND


def next_sequence(state: ProducerState) -> int:
    """The base sequence that follows the producer's last batch; it must have one."""
    return (state.batches[-1].last_sequence + 1) & _MASK


def is_after(sequence: int, other: int) -> bool:
    """Whether a sequence is above another, modulo 2^31."""
    return 0 < (sequence - other) & _MASK < _AHEAD_MAX


def find_duplicate(
    state: ProducerState, epoch: int, base_sequence: int, last_offset_delta: int
) -> AppendedBatch | None:
    """The same batch among the producer's last ones, or None."""
    if epoch != state.epoch:
        return None
    last_sequence = (base_sequence + last_offset_delta) & _MASK
    for batch in state.batches:
        if batch.base_sequence == base_sequence and batch.last_sequence == last_sequence:
            return batch
    return None


def advance(
    state: ProducerState | None,
    epoch: int,
    base_sequence: int,
    last_offset_delta: int,
    base_offset: int,
    timestamp: int,
    last_active_ms: int,
    transactional: bool = False,
) -> ProducerState:
    """The state after a stored batch of records. A transactional one opens a transaction if none is open."""
    last_sequence = (base_sequence + last_offset_delta) & _MASK
    appended = AppendedBatch(base_sequence, last_sequence, base_offset, timestamp)
    if state is None:
        return ProducerState(epoch, (appended,), last_active_ms, base_offset if transactional else -1)
    kept = state.batches if state.epoch == epoch else ()
    start = state.transaction_start
    if transactional and start < 0:
        start = base_offset
    return ProducerState(
        epoch, (*kept[1 - BATCHES_KEPT :], appended), last_active_ms, start, state.ended_ms, state.coordinator_epoch
    )


def end_transaction(
    state: ProducerState | None, epoch: int, ended_ms: int, coordinator_epoch: int, last_active_ms: int
) -> ProducerState:
    """The state after a stored marker: no open transaction, and sequences restart if the marker raised the epoch."""
    if state is None:
        return ProducerState(epoch, (), last_active_ms, -1, ended_ms, coordinator_epoch)
    kept = state.batches if state.epoch == epoch else ()
    return ProducerState(epoch, kept, last_active_ms, -1, max(ended_ms, state.ended_ms), coordinator_epoch)


def to_text(state: ProducerState) -> str:
    """Serialize a state: `<epoch> <last_active_ms> <base seq>:<last seq>:<base offset>:<timestamp>,...`.

    A producer of transactions has ` <transaction_start> <ended_ms> <coordinator_epoch>` behind it.
    """
    text = f"{state.epoch} {state.last_active_ms} " + ",".join(":".join(map(str, batch)) for batch in state.batches)
    if state.transaction_start < 0 and state.ended_ms < 0 and state.coordinator_epoch < 0:
        return text
    return f"{text} {state.transaction_start} {state.ended_ms} {state.coordinator_epoch}"


def from_text(text: str) -> ProducerState:
    """The reverse of `to_text`. Raises ValueError."""
    epoch, last_active_ms, batches, *transaction = text.split(" ")
    return ProducerState(
        int(epoch),
        tuple(AppendedBatch(*map(int, batch.split(":"))) for batch in batches.split(",") if batch),
        int(last_active_ms),
        *map(int, transaction),
    )
