"""Judge queued batches against the cached state of the log: which of them join the next entry.

An idempotent batch is judged by the producer table. A batch of a transaction that the log does not show as open is
appended only if the coordinator confirms it, by this rule: read the log's state, then ask the coordinator, then append.
The append proves the state, and a marker that ended the transaction meanwhile would have changed it; after a marker of
that producer, or with another state, the coordinator is asked again. So no batch lands behind its transaction's marker.

A marker is appended once for each transaction: the state shows the last one that the coordinator ended here. One of an
administrator names the transaction that it ends by its first offset.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from tidegate.errors import InvalidProducerEpoch, InvalidTxnState, KafkaError, StoreUnavailable
from tidegate.log.outgoing import Appended, InTransaction, QueuedBatch
from tidegate.log.producers_table import (
    REFUSALS,
    ProducerState,
    Verdict,
    advance,
    end_transaction,
    find_duplicate,
    judge,
)
from tidegate.records.batch_header import CONTROL, TRANSACTIONAL
from tidegate.records.control import read_marker

if TYPE_CHECKING:
    from tidegate.log.cached_log import CachedLog
    from tidegate.log.high_watermark import HighWatermark
    from tidegate.log.state import LogState
    from tidegate.log.unresolved import Unresolved

SEQUENCE_GAP_TIMEOUT_MS: Final = 500
"""Time that a batch waits for its predecessor, which another broker may be appending."""
_GAP_REFRESH_S: Final = 0.05
_NO_OFFSET: Final = -1


def after(producer: ProducerState | None, item: QueuedBatch, offset: int, now_ms: int) -> ProducerState:
    """The state of a batch's producer once the batch is appended at `offset`."""
    batch = item.batch
    if batch.attributes & CONTROL:
        marker = read_marker(batch.buffer)
        ended_ms, coordinator_epoch = (-1, -1) if marker is None else (marker.ended_ms, marker.coordinator_epoch)
        return end_transaction(producer, batch.producer_epoch, ended_ms, coordinator_epoch, now_ms)
    return advance(
        producer, batch.producer_epoch, batch.base_sequence, batch.last_offset_delta, offset, item.timestamp, now_ms,
        batch.attributes & TRANSACTIONAL != 0,
    )  # fmt: skip


class BatchQueue(Protocol):
    """What the judge does with the queue, implemented by `Appends`."""

    unresolved: Unresolved

    def schedule(self) -> None:
        """Judge the queued batches at the end of the tick."""

    def refresh(self) -> None:
        """Refresh the log's state for the queued batches."""

    def later(self, delay_s: float) -> None:
        """Refresh after a pause."""

    def done(self, item: QueuedBatch, outcome: KafkaError) -> None:
        """Answer a batch with an error."""

    def give_up(self, item: QueuedBatch, answer: KafkaError) -> None:
        """Answer a batch with an error after which clients send it again."""

    def reply(self, item: QueuedBatch, answer: Appended, proved: bool) -> None:
        """Answer a stored batch, by whether its durability was proved."""

    def fail_transaction(self, item: QueuedBatch, failure: KafkaError) -> None:
        """The coordinator refused a batch: answer it, and those of its producer and epoch behind it, so."""


class Admission:
    """The judge of one partition's queued batches on this broker."""

    __slots__ = ("_appends", "_asking", "_high_watermark", "_log")

    def __init__(self, log: CachedLog, appends: BatchQueue, high_watermark: HighWatermark) -> None:
        self._log = log
        self._appends = appends
        self._high_watermark = high_watermark
        self._asking: dict[int, QueuedBatch] = {}
        """By producer: the batch for which the coordinator is being asked. Later batches of that producer wait."""

    @property
    def asks(self) -> bool:
        """Whether the coordinator is being asked about a batch."""
        return bool(self._asking)

    def accepts(self, state: LogState, item: QueuedBatch, producer: ProducerState | None, planned: bool) -> bool:
        """Whether an idempotent batch joins the next entry; if not, it was answered or stays in the queue.

        With `planned`, `state` includes batches of the entry that is being built, so a refusal would be premature.
        """
        batch = item.batch
        if batch.attributes & CONTROL:
            return self._accepts_marker(state, item, producer, planned)
        if self._asking and self._asking.get(batch.producer_id, item) is not item:
            return False
        verdict = judge(producer, batch.producer_epoch, batch.base_sequence, batch.last_offset_delta)
        if verdict is not Verdict.ACCEPT and not self._accepts_anyway(state, item, verdict, planned):
            return False
        if batch.attributes & TRANSACTIONAL or (producer is not None and producer.transaction_start >= 0):
            return self._in_transaction(state, item, producer, planned)
        return True

    def _accepts_anyway(self, state: LogState, item: QueuedBatch, verdict: Verdict, planned: bool) -> bool:
        """As `accepts`, for a batch that is not the producer's next one by the cached state."""
        if verdict is Verdict.DUPLICATE:
            self._answer_duplicate(state, item)
            return False
        if planned:
            return False
        if not item.proved:
            self._appends.refresh()
            return False
        if verdict is Verdict.UNKNOWN_GAP and item.transaction is not None and item.transaction.from_zero:
            verdict = Verdict.GAP
        if verdict is Verdict.GAP or verdict is Verdict.UNKNOWN_GAP:
            now = self._log.loop.time()
            if item.gap_state is not state:  # an outage of Redis does not count against the gap
                item.gap_state, item.gap_until = state, now + SEQUENCE_GAP_TIMEOUT_MS / 1000
            if now < item.gap_until:
                item.proved = False  # another broker may append the predecessor
                self._appends.later(min(_GAP_REFRESH_S, item.gap_until - now))
                return False
            return self._accepts_after_gap(state, item, verdict)
        self._refuse(state, item, verdict)
        return False

    def _accepts_after_gap(self, state: LogState, item: QueuedBatch, verdict: Verdict) -> bool:
        answer = self._appends.unresolved.answer_behind(item, self._log.loop.time())
        if answer is None and verdict is Verdict.UNKNOWN_GAP:
            if not self._log.may_lack_batches:
                return True
            answer = StoreUnavailable("Redis was away: batches before it may have been refused before they got here")
        if answer is not None:
            self._appends.give_up(item, answer)
        else:
            self._refuse(state, item, verdict)
        return False

    def _refuse(self, state: LogState, item: QueuedBatch, verdict: Verdict) -> None:
        """Answer with the coordinator's error if it refuses the batch too: that one is checked first, as by Kafka."""
        producer, transaction = state.producers.get(item.batch.producer_id), item.transaction
        is_open = (
            producer is not None and producer.transaction_start >= 0 and producer.epoch == item.batch.producer_epoch
        )
        if transaction is None or is_open or transaction.confirmed_state is not None:
            self._appends.done(item, REFUSALS[verdict]())
        else:
            self._ask(state, item, transaction, (-1, -1) if producer is None else (producer.epoch, producer.ended_ms))

    def _answer_duplicate(self, state: LogState, item: QueuedBatch) -> None:
        batch = item.batch
        producer = state.producers.get(batch.producer_id)
        if producer is None:
            return
        known = find_duplicate(producer, batch.producer_epoch, batch.base_sequence, batch.last_offset_delta)
        if known is None:  # the first copy is in the entry being built: wait
            return
        append_time_ms = known.timestamp if self._log.log_append_time else -1
        answer = Appended(known.base_offset, append_time_ms, state.log_start, state.leader_epoch)
        item.done = True
        durable = partial(self._appends.reply, item, answer)
        self._high_watermark.when_durable(known.base_offset + 1, item.acks_all, durable)

    # -- transactions

    def _in_transaction(
        self, state: LogState, item: QueuedBatch, producer: ProducerState | None, planned: bool
    ) -> bool:
        """Whether a batch may be appended as far as transactions are concerned; its sequence is right."""
        is_open = producer is not None and producer.transaction_start >= 0
        if not item.batch.attributes & TRANSACTIONAL:
            if not planned and item.proved:
                self._appends.done(item, InvalidTxnState("the producer has an open transaction in the partition"))
            elif not planned:
                self._appends.refresh()
            return False
        if is_open and producer is not None and producer.epoch == item.batch.producer_epoch:
            return True
        ended = (-1, -1) if producer is None else (producer.epoch, producer.ended_ms)
        transaction = item.transaction
        if transaction is None:
            self._appends.done(item, InvalidTxnState("a transactional batch without a transactional id"))
            return False
        if transaction.confirmed_state is state and transaction.confirmed_behind == ended:
            return True
        if item.batch.producer_id not in self._asking:
            self._ask(state, item, transaction, ended)
        return False

    def _ask(self, state: LogState, item: QueuedBatch, transaction: InTransaction, ended: tuple[int, int]) -> None:
        """Ask the coordinator; `ended` names the producer's last marker in the state that was read before."""
        producer_id = item.batch.producer_id
        self._asking[producer_id] = item

        def answered(failure: KafkaError | None) -> None:
            self._asking.pop(producer_id, None)
            if failure is None:
                transaction.confirmed_state, transaction.confirmed_behind = state, ended
            else:
                self._appends.fail_transaction(item, failure)
            self._appends.schedule()

        transaction.confirm(answered)

    def _accepts_marker(
        self, state: LogState, item: QueuedBatch, producer: ProducerState | None, planned: bool
    ) -> bool:
        """Whether a marker joins the next entry. What the state shows of its producer only ever advances."""
        if producer is None:
            return True
        if planned:
            return False
        marker = read_marker(item.batch.buffer)
        if marker is not None and 0 <= marker.ended_ms <= producer.ended_ms:
            item.done = True
            answer = Appended(_NO_OFFSET, -1, state.log_start, state.leader_epoch)
            durable = partial(self._appends.reply, item, answer)
            self._high_watermark.when_durable(state.end, item.acks_all, durable)
            return False
        if item.batch.producer_epoch < producer.epoch:
            self._appends.done(item, InvalidProducerEpoch("the marker has an older epoch than its producer"))
            return False
        if item.ended is not None and 0 <= producer.transaction_start != item.ended.start:
            self._appends.done(item, InvalidTxnState("the producer has begun another transaction in the partition"))
            return False
        return True
