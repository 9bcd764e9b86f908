"""Unresolved appends: entries of unknown outcome, and batches that were answered with a retriable error.

Among the latter are batches that are stored but were not proved as durable: the server that is promoted may lack them.

A client that receives REQUEST_TIMED_OUT or a retriable store error sends its batch again with the same sequence
number. Later batches of that producer may already be in transit. OUT_OF_ORDER_SEQUENCE_NUMBER for one of them would
be fatal: librdkafka then bumps its epoch and sends all unacknowledged batches as new, including those in the log.
And if the broker has no known sequence, it would append them ahead of the batch that is to be retried. So a batch
behind a failed one gets the same answer, until the producer's retry succeeds.
Source: librdkafka's rd_kafka_handle_Produce_error and rd_kafka_err_action, Kafka's TransactionManager.canRetry.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from tidegate.errors import KafkaError, RequestTimedOut, StoreUnavailable
from tidegate.log.producers_table import is_after

if TYPE_CHECKING:
    from tidegate.log.outgoing import InFlightEntry, QueuedBatch
    from tidegate.records.batch import Batch

GIVEN_UP_KEPT_S: Final = 60.0
"""How long later batches of a producer may still be in transit: twice a client's request timeout."""
_PRODUCERS_MAX: Final = 10_000
"""Producers with a failed batch that was not retried yet; the oldest are dropped first."""


class LogUnreachable(RequestTimedOut):
    """The outcome is unknown for so long that the client should use another broker: its connection is closed.

    Clients do not refresh their metadata for REQUEST_TIMED_OUT; they do when the connection closes, and then also treat
    a batch as possibly stored. KAFKA_STORAGE_ERROR would state that it was not stored.
    """


class _GivenUp(NamedTuple):
    epoch: int
    base_sequence: int
    last_sequence: int
    answer: KafkaError
    until_s: float
    unproved: int | None
    """The sequence of the last one that was stored and not proved."""


class Unresolved:
    """The unresolved appends of one partition on this broker.

    After `unreachable_s` with an unknown outcome clients are sent to another broker; if only this broker lost its
    connection, another one leads the partition by then.
    """

    __slots__ = ("_given_up", "_given_up_until_s", "_unknown_since_s", "_unreachable_s", "entries")

    def __init__(self, unreachable_s: float) -> None:
        self._unreachable_s = unreachable_s
        self._unknown_since_s = math.inf
        self.entries: dict[int, InFlightEntry] = {}
        """Entries in flight or of unknown outcome, by counter; a plain dict, since every append uses it."""
        self._given_up: dict[int, _GivenUp] = {}
        self._given_up_until_s = -math.inf

    def is_empty(self, now_s: float) -> bool:
        """Whether no entry is unresolved, and no failed batch has to be sent again before later ones."""
        return not self.entries and now_s >= self._given_up_until_s

    # -- entries

    def outcome_unknown(self, sent: InFlightEntry, now_s: float) -> None:
        """Record that the reply to an entry did not arrive."""
        self._unknown_since_s = min(self._unknown_since_s, now_s)
        for item in sent.items:
            item.unresolved_in += (sent.counter,)

    def take(self, counter: int, base: int) -> InFlightEntry | None:
        """Remove and return the entry that was found in the log at `base`; None if it was sent for another offset."""
        sent = self.entries.get(counter)
        return self.entries.pop(counter) if sent is not None and sent.base == base else None

    def discard_below(self, end: int, in_flight: InFlightEntry | None) -> None:
        """The log was read up to `end`: unresolved entries below it are not in the log and never will be."""
        if self.entries:
            for counter in [c for c, sent in self.entries.items() if sent.base < end and sent is not in_flight]:
                del self.entries[counter]
        if not self.entries:
            self._unknown_since_s = math.inf

    def bases_below(self, offset: int) -> list[int]:
        """Bases, below `offset`, of entries of unknown outcome."""
        return [sent.base for sent in self.entries.values() if sent.base < offset]

    def clear(self) -> None:
        """Discard everything: the log was deleted."""
        self.entries.clear()
        self._given_up.clear()
        self._unknown_since_s = math.inf

    def may_be_stored(self, item: QueuedBatch) -> bool:
        """Whether the batch, or any batch of its idempotent producer, is in an entry of unknown outcome."""
        producer_id = item.batch.producer_id
        if producer_id >= 0:
            return any(producer_id in sent.producers for sent in self.entries.values())
        return any(counter in self.entries for counter in item.unresolved_in)

    # -- batches answered with an error

    def answer(self, item: QueuedBatch, failure: KafkaError, now_s: float) -> KafkaError:
        """The error for a batch: one that means "not stored" only if that is certain."""
        if isinstance(failure, KafkaError) and not isinstance(failure, StoreUnavailable):
            return failure
        if not self.may_be_stored(item) and not self._was_unproved(item, now_s):
            return StoreUnavailable(str(failure))
        sent_again = item.batch.producer_id >= 0 and not item.unresolved_in
        unreachable = sent_again and now_s - self._unknown_since_s > self._unreachable_s
        return (LogUnreachable if unreachable else RequestTimedOut)(f"it may be in the log: {failure}")

    def _was_unproved(self, item: QueuedBatch, now_s: float) -> bool:
        """Whether the batch is sent again because it was stored and not proved."""
        before, batch = self._given_up.get(item.batch.producer_id), item.batch
        if before is None or before.unproved is None or before.epoch != batch.producer_epoch:
            return False
        return now_s < before.until_s and not is_after(batch.base_sequence, before.unproved)

    def unproved(self, batch: Batch, now_s: float) -> None:
        """Record that an idempotent producer's batch is stored, and was not proved as durable."""
        self.give_up(batch, RequestTimedOut("the batch before it was not proved"), now_s, is_stored=True)

    def give_up(self, batch: Batch, answer: KafkaError, now_s: float, *, is_stored: bool = False) -> None:
        """Record that an idempotent producer's batch was answered with an error after which clients retry."""
        if not isinstance(answer, RequestTimedOut | StoreUnavailable):
            return
        if isinstance(answer, LogUnreachable):
            answer = RequestTimedOut(answer.message)  # later batches may reach the log again
        before = self._given_up.pop(batch.producer_id, None)
        sequence = last = batch.base_sequence
        unproved = before.unproved if before is not None and before.epoch == batch.producer_epoch else None
        unproved = batch.base_sequence if is_stored else unproved
        if before is not None and self._is_behind(before, batch, now_s):
            sequence = before.base_sequence
            last = last if is_after(last, before.last_sequence) else before.last_sequence
        elif len(self._given_up) >= _PRODUCERS_MAX:
            del self._given_up[next(iter(self._given_up))]
        until_s = self._given_up_until_s = now_s + GIVEN_UP_KEPT_S
        self._given_up[batch.producer_id] = _GivenUp(batch.producer_epoch, sequence, last, answer, until_s, unproved)

    def answer_behind(self, item: QueuedBatch, now_s: float) -> KafkaError | None:
        """The error for a batch whose predecessor failed or may be in an unresolved entry; None otherwise."""
        answer = self.answer_behind_failed(item.batch, now_s)
        if answer is not None:
            return answer
        return RequestTimedOut("the batch before it may be in the log") if self.may_be_stored(item) else None

    def answer_behind_failed(self, batch: Batch, now_s: float) -> KafkaError | None:
        """The error of the producer's failed batch before this one, until it was sent again; None without one."""
        before = self._given_up.get(batch.producer_id)
        return before.answer if before is not None and self._is_behind(before, batch, now_s) else None

    def accepted(self, batch: Batch) -> None:
        """The producer's sequence continues: forget its failed batches up to this one."""
        if not self._given_up:
            return
        before = self._given_up.pop(batch.producer_id, None)
        if before is None or before.epoch != batch.producer_epoch:
            return
        if is_after(before.last_sequence, batch.base_sequence):  # those behind it are still to be sent again
            self._given_up[batch.producer_id] = before._replace(base_sequence=batch.base_sequence)

    @staticmethod
    def _is_behind(before: _GivenUp, batch: Batch, now_s: float) -> bool:
        return (
            now_s < before.until_s
            and batch.producer_epoch == before.epoch
            and is_after(batch.base_sequence, before.base_sequence)
        )
