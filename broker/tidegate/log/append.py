"""Append record batches to a partition's log.

The algorithm has four steps, and each partition has at most one append command in flight.

1. Judge (`admission.py`). Each queued batch of an idempotent producer is checked against the producer table of the
   cached LogState: accepted, duplicate, sequence gap, or refused. A refusal is sent only after a refresh that began
   after the batch was queued, because the cached state may be older than the log.
2. Combine. The accepted batches, up to ENTRY_BYTES_MAX and ENTRY_BATCHES_MAX, become one stream entry.
3. Send. The entry that starts at offset `base` gets the id `<base>-1`, in one XADD with NOMKSTREAM. Redis refuses an
   id not above the stream's last (compare-and-set): if another broker appended first, this one reads and judges again.
4. Resolve. A successful XADD proves that the cached state was current, so the entry is applied to it without a read,
   and the producers receive their offsets. The next entry is sent before the replies of this one are written.

If no reply arrives, the outcome of the XADD is unknown. The entry contains `w <uuid>:<counter>`, which names this
process and this append; the next read of the log either finds that field or proves that the entry is absent.
Until then the batches stay queued; overdue ones get REQUEST_TIMED_OUT, as they may be stored (`unresolved.py`).

Invariants: at most one entry in flight; `on_done` is called once per batch; a producer's batches keep their order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from tidegate.errors import (
    InvalidProducerEpoch,
    KafkaError,
    NotEnoughReplicasAfterAppend,
    OutOfOrderSequenceNumber,
    StoreUnavailable,
    UnknownTopicOrPartition,
)
from tidegate.log.admission import Admission, after
from tidegate.log.entries import Entry, StrayEntry
from tidegate.log.outgoing import Appended, Commands, InFlightEntry, OnAppended, QueuedBatch
from tidegate.log.producers_table import ProducerState
from tidegate.log.unresolved import Unresolved
from tidegate.log.waiting import WaitingBatches
from tidegate.records.batch_header import CONTROL
from tidegate.store.outcome import Failure, Gone, Moved, Refused, Stale, Unknown
from tidegate.store.scripts import Script

if TYPE_CHECKING:
    from tidegate.log.cached_log import CachedLog
    from tidegate.log.high_watermark import HighWatermark
    from tidegate.log.log_refresh import LogRefresher
    from tidegate.log.state import LogState

__all__ = ["Appended", "Appends", "OnAppended"]

ENTRY_BYTES_MAX: Final = 1 << 20
"""Largest stream entry into which small batches are joined; a larger batch has an entry of its own."""
ENTRY_BATCHES_MAX: Final = 1_000
"""Bounds the time of an entry on the event loop, and its arguments where Lua passes them to one command."""
APPEND_CONTROL = Script("log/append_control")


class Appends:
    """The appends of one partition on this broker."""

    def __init__(
        self, log: CachedLog, refresher: LogRefresher, high_watermark: HighWatermark, notify: Callable[[], None]
    ) -> None:
        self._log = log
        self._refresher = refresher
        self._high_watermark = high_watermark
        self._notify = notify
        self._queue: deque[QueuedBatch] = deque()
        self._waiting = WaitingBatches()
        self._in_flight: InFlightEntry | None = None
        self.unresolved = Unresolved(log.settings.broker_lease_timeout_ms / 1000)
        self._scheduled = self._is_refreshing = self._loading = False
        self._timer: asyncio.TimerHandle | None = None
        self._commands = Commands(log.keys)
        self.admission = Admission(log, self, high_watermark)

    @property
    def is_idle(self) -> bool:
        """Whether no batch is queued, in flight or unresolved."""
        busy = self._queue or self._in_flight or self._scheduled or self._loading or self._is_refreshing or self._timer
        return not (busy or self._waiting or self.admission.asks) and self.unresolved.is_empty(self._log.loop.time())

    # -- queueing

    def append(self, item: QueuedBatch) -> None:
        """Queue a batch; its `on_done` is called exactly once, never before this returns."""
        self._queue.append(item)
        self._schedule()

    def schedule(self) -> None:
        """Judge the queued and the waiting batches at the end of the tick."""
        self._waiting.requeue_all(self._queue)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and self._in_flight is None:
            self._scheduled = True
            self._log.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        if self._in_flight is not None or not self._queue:
            return
        state = self._log.state
        if state is None:
            self._load()
            return
        if state.stray is not None:
            self._refuse_all(state.stray)
            return
        items, producers, size = self._take(state)
        if items:
            self._send(state, items, producers, size)

    def _refuse_all(self, stray: StrayEntry) -> None:
        """Nothing can follow `stray`: refuse the batches queued before the last refresh, refresh for the others."""
        kept: deque[QueuedBatch] = deque()
        self._waiting.requeue_all(self._queue)
        for item in self._queue:
            if item.proved and not item.done:
                self.done(item, stray)
            elif not item.done:
                kept.append(item)
        self._queue = kept
        if kept:
            self.refresh()

    def _load(self) -> None:
        if not self._loading:
            self._loading = True
            self._log.with_state(self._loaded)

    def _loaded(self, loaded: LogState | KafkaError) -> None:
        self._loading = False
        if isinstance(loaded, KafkaError):
            self.fail(loaded)
        self.schedule()

    # -- judging

    def _take(self, state: LogState) -> tuple[list[QueuedBatch], dict[int, ProducerState], int]:
        """Dequeue the batches of the next entry; return them, their producers' next states and their bytes."""
        queue, waiting, limit = self._queue, self._waiting, ENTRY_BYTES_MAX
        taken: list[QueuedBatch] = []
        producers: dict[int, ProducerState] = {}
        size, offset, clock, stamps = 0, state.end, self._log.store.clock, self._log.log_append_time
        while queue:
            item = queue.popleft()
            batch = item.batch
            total = size + batch.size
            if taken and (
                total > limit
                or len(taken) == ENTRY_BATCHES_MAX
                or (batch.attributes ^ taken[0].batch.attributes) & CONTROL
            ):
                queue.appendleft(item)
                break
            if item.done:
                continue
            if batch.producer_id >= 0:
                planned = producers.get(batch.producer_id)
                producer = planned or state.producers.get(batch.producer_id)
                if not self.admission.accepts(state, item, producer, planned is not None):
                    if not item.done:
                        self._wait(item)
                    continue
                self.unresolved.accepted(batch)
            if stamps:
                item.stamp(clock.now_ms())
            if batch.producer_id >= 0:
                producers[batch.producer_id] = producer = after(producer, item, offset, clock.now_ms())
                if waiting and (following := waiting.take_next(batch.producer_id, producer)) is not None:
                    queue.appendleft(following)
            taken.append(item)
            size = total
            offset += batch.last_offset_delta + 1
        return taken, producers, size

    def _wait(self, item: QueuedBatch) -> None:
        if not self._waiting.add(item):
            failure = StoreUnavailable("too many batches of the producer wait")
            self.give_up(item, self.unresolved.answer(item, failure, self._log.loop.time()))

    def refresh(self) -> None:
        """Refresh the log's state for the queued batches."""
        if self._is_refreshing:
            return
        self._is_refreshing = True
        self._log.loop.call_soon(self._refresh_now)

    def _refresh_now(self) -> None:
        asked = [item for item in (*self._queue, *self._waiting.batches()) if not item.done]
        self._refresher.refresh(lambda failure: self._on_refreshed(asked, failure))

    def _on_refreshed(self, asked: list[QueuedBatch], failure: KafkaError | None) -> None:
        self._is_refreshing = False
        if isinstance(failure, UnknownTopicOrPartition):
            self.fail(failure)
            return
        if failure is None:
            for item in asked:
                item.proved = True
        else:
            self._give_up_overdue(failure)
        self.schedule()

    def later(self, delay_s: float) -> None:
        """Refresh after a pause."""
        if self._timer is None:
            self._timer = self._log.loop.call_later(max(delay_s, 0.001), self._timed)

    def _timed(self) -> None:
        self._timer = None
        self.refresh()

    # -- sending

    def _send(self, state: LogState, items: list[QueuedBatch], producers: dict[int, ProducerState], size: int) -> None:
        log = self._log
        counter = log.writer.next()
        sent = InFlightEntry.of(counter, b"%b:%d" % (log.writer.name, counter), state, items, producers)
        self._in_flight = sent
        self.unresolved.entries[sent.counter] = sent
        message = self._commands.publish(sent.entry.end, log.writer.name)
        if sent.transactional and items[0].batch.attributes & CONTROL:
            command = self._commands.append_control(sent)
            log.lanes.append_control(APPEND_CONTROL, command, message, lambda outcome: self._on_append(sent, outcome))
            return
        log.lanes.append(self._commands.xadd(sent, size), size, message, lambda outcome: self._on_append(sent, outcome))

    def _on_append(self, sent: InFlightEntry, outcome: bytes | Failure) -> None:
        self._in_flight = None
        if isinstance(outcome, bytes):
            if self._waiting:
                self._waiting.requeue(sent.producers, self._queue)
            if sent.counter in self.unresolved.entries:
                self._confirm(sent)
        else:
            self._on_append_failed(sent, outcome)
            if isinstance(outcome, Stale):
                return
        if self._queue:
            self._schedule()

    def _on_append_failed(self, sent: InFlightEntry, failure: Failure) -> None:
        """Queue the entry's batches again: the entry is not in the log, or its outcome is unknown."""
        if isinstance(failure, Unknown):  # loading the log's state resolves it
            self._log.void(failure.text)
            self.unresolved.outcome_unknown(sent, self._log.loop.time())
        else:
            self.unresolved.entries.pop(sent.counter, None)
        self._waiting.requeue_all(self._queue)
        self._queue.extendleft(item for item in reversed(sent.items) if not item.done)
        match failure:
            case Stale():
                self._read_missed(sent)
            case Gone():  # deleted or lost: loading finds out, and fails the batches
                self._log.void(failure.text)
            case Moved():
                self._log.void(failure.text)
                self._give_up_overdue(failure.error)
            case Unknown():
                self._give_up_overdue(failure.error)
            case Refused():  # the server takes no writes: waiting would not help
                self._log.void(failure.text)
                for item in sent.items:
                    item.deadline = 0.0
                self._give_up_overdue(failure.error)

    def _read_missed(self, sent: InFlightEntry) -> None:
        def refreshed(failure: KafkaError | None) -> None:
            state = self._log.state
            if isinstance(failure, UnknownTopicOrPartition):
                self.fail(failure)
                return
            if failure is None and state is sent.state and state.end <= sent.base:
                self._log.void("refused, and yet nothing was missed")
            self._give_up_overdue(failure or StoreUnavailable("the log continues without this broker"))
            self.schedule()

        self._refresher.refresh(refreshed)

    def _give_up_overdue(self, failure: KafkaError) -> None:
        now = self._log.loop.time()
        producers: set[int] = set()
        self._waiting.requeue_all(self._queue)
        for item in list(self._queue):
            producer_id = item.batch.producer_id
            if not item.done and (now > item.deadline or producer_id in producers):
                self.give_up(item, self.unresolved.answer(item, failure, now))
                if producer_id >= 0:
                    producers.add(producer_id)  # later batches of this producer need this one

    def fail_transaction(self, item: QueuedBatch, failure: KafkaError) -> None:
        """The coordinator refused a batch: answer it, and those of its producer and epoch behind it, with that error.

        A batch of another epoch is of another instance of the producer: the coordinator may confirm it.
        """
        producer = item.batch.producer_id, item.batch.producer_epoch
        self._waiting.requeue_all(self._queue)
        for other in list(self._queue):
            is_same = (other.batch.producer_id, other.batch.producer_epoch) == producer
            if is_same and other.transaction is not None and not other.done:
                if isinstance(failure, StoreUnavailable):
                    self.give_up(other, self.unresolved.answer(other, failure, self._log.loop.time()))
                else:
                    self.done(other, failure)

    def give_up(self, item: QueuedBatch, answer: KafkaError) -> None:
        """Answer a batch with an error after which clients send it again."""
        if item.batch.base_sequence >= 0:
            self.unresolved.give_up(item.batch, answer, self._log.loop.time())
        self.done(item, answer)

    # -- outcomes

    def _confirm(self, sent: InFlightEntry) -> None:
        self.unresolved.entries.pop(sent.counter, None)
        log, state = self._log, sent.state
        if log.state is state and state.end == sent.base:
            if sent.transactional:
                state.apply(sent.entry, log.store.clock.now_ms())
            else:
                state.apply_own(sent.entry, sent.producers)
            state.verified_at = log.loop.time()
            self.unresolved.discard_below(state.end, None)
            log.appended(state, sent.entry)
            if self._queue:
                self._flush()  # send the next entry before the replies of this one
            self._resolve(sent)
            if log.durability.immediate:
                self._notify()
        else:
            self._resolve(sent)

    def found(self, entry: Entry) -> None:
        """Resolve this process's append of `entry`, which was read from the log, if its outcome was unknown."""
        writer, _, counter = entry.writer.rpartition(b":")
        if writer == self._log.writer.name:
            sent = self.unresolved.take(int(counter), entry.base)
            if sent is not None:
                self._resolve(sent)

    def discard_unresolved_below(self, end: int) -> None:
        """The log was read completely up to `end`: unresolved entries below it are not in the log."""
        self.unresolved.discard_below(end, self._in_flight)

    def _resolve(self, sent: InFlightEntry) -> None:
        log = self._log
        log.usage.stored(log.topic, sent.entry.end - sent.base, sent.entry.size)
        epoch = sent.state.epoch_at(sent.base)
        log_start = log.state.log_start if log.state is not None else sent.state.log_start
        stamped = log.log_append_time
        base = sent.base
        for item, end in zip(sent.items, sent.entry.ends, strict=True):
            if not item.done:
                item.done = True
                answer = Appended(base, item.timestamp if stamped else -1, log_start, epoch)
                if log.durability.immediate or not item.acks_all:
                    log.guarded(item.on_done, answer)
                else:
                    self._high_watermark.when_durable(end, True, partial(self.reply, item, answer))
            base = end

    def reply(self, item: QueuedBatch, answer: Appended, proved: bool) -> None:
        """Answer a stored batch, by whether its durability was proved."""
        if not proved and item.batch.base_sequence >= 0:  # a fail-over may lose it, with later ones in transit
            self.unresolved.unproved(item.batch, self._log.loop.time())
        self._log.guarded(item.on_done, answer if proved else NotEnoughReplicasAfterAppend())

    def done(self, item: QueuedBatch, outcome: KafkaError) -> None:
        """Answer a batch with an error."""
        item.done = True
        if isinstance(outcome, InvalidProducerEpoch | OutOfOrderSequenceNumber):
            item.log_refusal(self._log.keys.log, outcome)
        self._log.guarded(item.on_done, outcome)

    def close(self, reason: KafkaError) -> None:
        """Stop the gap timer and fail the queued batches with `reason`."""
        if self._timer is not None:
            self._timer.cancel()
        self.fail(reason)

    def fail(self, failure: KafkaError) -> None:
        """Answer every queued batch with `failure`, or with REQUEST_TIMED_OUT where it may be stored."""
        if isinstance(failure, UnknownTopicOrPartition):
            self.unresolved.clear()
            if self._in_flight is not None:  # nothing resolves it now
                self._queue.extendleft(reversed(self._in_flight.items))
        self._waiting.requeue_all(self._queue)
        queue, self._queue = self._queue, deque()
        for item in queue:
            if not item.done:
                self.give_up(item, self.unresolved.answer(item, failure, self._log.loop.time()))
