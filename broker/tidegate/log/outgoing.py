"""Batches on the way into a log: queued batches, the entry in flight, and the RESP bytes of its commands."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from tidegate.errors import KafkaError
from tidegate.log.entries import Entry
from tidegate.log.producers_table import ProducerState
from tidegate.records.batch_header import CONTROL, TRANSACTIONAL
from tidegate.records.build import with_log_append_time
from tidegate.store.keys import LogKeys
from tidegate.store.link import Arg

if TYPE_CHECKING:
    from tidegate.log.state import LogState
    from tidegate.records.batch import Batch

logger = structlog.get_logger()

_JOINED_BYTES_MAX: Final = 16_384


class Writer:
    """Names this process in its entries: `<uuid>:<counter>`."""

    __slots__ = ("_counter", "name")

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex.encode()
        self._counter = 0

    def next(self) -> int:
        """The next unused counter."""
        self._counter += 1
        return self._counter


class Appended(NamedTuple):
    """The position of a stored batch; `log_append_time_ms` is -1 on CreateTime topics."""

    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    leader_epoch: int


OnAppended = Callable[[Appended | KafkaError], None]
OnConfirmed = Callable[[KafkaError | None], None]


@dataclass(slots=True)
class InTransaction:
    """The transaction of one batch. `confirm` asks the coordinator whether the batch's partition is in it, and adds it
    where the protocol's version does so; it calls once, after it returns, with None or with the error for the client.

    With `from_zero` an unknown producer must begin with sequence 0 (KIP-890). `confirmed_state` is the state of the log
    before which the coordinator confirmed, `confirmed_behind` the producer's last marker in it.
    """

    confirm: Callable[[OnConfirmed], None]
    from_zero: bool = False
    confirmed_state: LogState | None = None
    confirmed_behind: tuple[int, int] = (-1, -1)


class KnownTransaction(NamedTuple):
    """The open transaction of a producer in a partition, as its administrator knows it: where it begins, -1 without
    one, and the `ended_ms` of the one before.
    """

    start: int = -1
    ended_ms: int = -1


class QueuedBatch:
    """One batch that waits to be appended."""

    __slots__ = (
        "acks_all", "batch", "buffer", "deadline", "done", "ended", "gap_state", "gap_until", "on_done", "proved",
        "timestamp", "transaction", "unresolved_in",
    )  # fmt: skip

    def __init__(
        self,
        batch: Batch,
        on_done: OnAppended,
        acks_all: bool,
        deadline: float,
        transaction: InTransaction | None = None,
        ended: KnownTransaction | None = None,
    ) -> None:
        self.batch = batch
        self.buffer: memoryview = batch.buffer
        self.timestamp = batch.max_timestamp
        self.on_done = on_done
        self.acks_all = acks_all
        self.deadline = deadline
        self.done = False
        self.proved = False
        self.gap_until = 0.0
        self.gap_state: LogState | None = None
        self.transaction = transaction
        self.ended = ended
        self.unresolved_in: tuple[int, ...] = ()
        """Counters of the entries of unknown outcome that contained it."""

    def stamp(self, now_ms: int) -> None:
        """LogAppendTime: append a copy whose timestamps are `now_ms`."""
        stamped = with_log_append_time(self.batch, now_ms)
        self.buffer, self.timestamp = stamped.buffer, stamped.max_timestamp

    def log_refusal(self, log: str, error: KafkaError) -> None:
        """Log that the batch's producer epoch or sequence was refused."""
        batch = self.batch
        logger.info(
            "batch_refused", log=log, reason=type(error).__name__, producer_id=batch.producer_id,
            epoch=batch.producer_epoch, base_sequence=batch.base_sequence,
        )  # fmt: skip


class InFlightEntry:
    """One sent entry whose outcome is open; its batches start at `base` if it is in the log."""

    __slots__ = ("base", "counter", "entry", "items", "producers", "state", "transactional")

    def __init__(
        self,
        counter: int,
        base: int,
        entry: Entry,
        items: list[QueuedBatch],
        producers: dict[int, ProducerState],
        state: LogState,
    ) -> None:
        self.counter = counter
        self.base = base
        self.entry = entry
        self.items = items
        self.producers = producers
        self.state = state
        self.transactional = False
        """Whether a batch belongs to a transaction or is a marker."""

    @classmethod
    def of(
        cls, counter: int, writer: bytes, state: LogState, items: list[QueuedBatch], producers: dict[int, ProducerState]
    ) -> InFlightEntry:
        """An entry of the batches, at the end of the state."""
        end, ends, size, timestamp, attributes = state.end, [], 0, -1, 0
        for item in items:
            end += item.batch.last_offset_delta + 1
            ends.append(end)
            size += len(item.buffer)
            timestamp = max(timestamp, item.timestamp)
            attributes |= item.batch.attributes
        entry = Entry(state.end, writer, [item.buffer for item in items], ends, size, timestamp)
        sent = cls(counter, state.end, entry, items, producers, state)
        sent.transactional = attributes & (TRANSACTIONAL | CONTROL) != 0
        return sent


class Commands:
    """The two commands of an append, written as RESP; large batches are not copied."""

    __slots__ = ("_key", "_publish", "_xadd")

    def __init__(self, keys: LogKeys) -> None:
        self._key = keys.log
        key, wake = keys.log.encode(), keys.wake.encode()
        self._xadd = b"$4\r\nXADD\r\n$%d\r\n%b\r\n$10\r\nNOMKSTREAM\r\n" % (len(key), key)
        self._publish = b"*3\r\n$7\r\nPUBLISH\r\n$%d\r\n%b\r\n" % (len(wake), wake)

    def xadd(self, sent: InFlightEntry, size: int) -> list[bytes | memoryview]:
        """`XADD key NOMKSTREAM <base>-1 w <writer> b <batch> [b <batch> ...]`; `size` is that of the batches."""
        entry_id, writer, items = b"%d-1" % sent.base, sent.entry.writer, sent.items
        parts: list[bytes | memoryview] = [
            b"*%d\r\n%b$%d\r\n%b\r\n$1\r\nw\r\n$%d\r\n%b\r\n"
            % (2 * len(items) + 6, self._xadd, len(entry_id), entry_id, len(writer), writer)
        ]
        for item in items:
            parts += (b"$1\r\nb\r\n$%d\r\n" % len(item.buffer), item.buffer, b"\r\n")
        return [b"".join(parts)] if size <= _JOINED_BYTES_MAX else parts

    def append_control(self, sent: InFlightEntry) -> list[Arg]:
        """Keys and arguments of `log/append_control` for an entry of markers."""
        return [1, self._key, b"%d-1" % sent.base, sent.entry.writer, *(bytes(item.buffer) for item in sent.items)]

    def publish(self, end: int, writer: bytes) -> bytes:
        """`PUBLISH <wake> <end offset>:<writer>`."""
        payload = b"%d:%b" % (end, writer)
        return b"%b$%d\r\n%b\r\n" % (self._publish, len(payload), payload)
