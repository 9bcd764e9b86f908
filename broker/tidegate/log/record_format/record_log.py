"""One partition of format `record` on one broker: what the APIs call, as of `PartitionLog`.

There is no cached state that an answer depends on: each append, read and position is one script at the stream, which
Redis programs change too. Appends by brokers are published; appends by Redis programs are found by a poll of the
streams that have waiting fetches (`RecordPoll`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from tidegate.errors import (
    InvalidTxnState,
    KafkaError,
    NotEnoughReplicasAfterAppend,
    OffsetOutOfRange,
)
from tidegate.log.outgoing import InTransaction, KnownTransaction, OnAppended
from tidegate.log.producers_table import AppendedBatch, ProducerState
from tidegate.log.read import OnSlice, Slice
from tidegate.log.record_format.record_append import RecordAppends
from tidegate.log.record_format.record_stream import RecordStream
from tidegate.log.record_format.record_transactions import end_transaction
from tidegate.log.services import LogServices
from tidegate.log.state import EpochEnds, LogOffsets
from tidegate.records.batch import Batch
from tidegate.records.entry_batches import Built, build_batches
from tidegate.records.entry_fields import TIMESTAMP
from tidegate.records.entry_ids import parse_id
from tidegate.store.calls import error_of
from tidegate.store.script_lanes import READS
from tidegate.store.scripts import Script
from tidegate.store.tasks import TaskSet

if TYPE_CHECKING:
    from tidegate.topics.catalog import Topic

logger = structlog.get_logger()

READ_RECORDS: Final = Script("records/read_records")
READ_ENDS: Final = Script("records/read_ends")
TRIM_RECORDS: Final = Script("records/trim_records")
READ_RECORD_LAG: Final = Script("records/read_lag")

READ_ENTRIES_MAX: Final = 2_000
"""Entries of one read: building their batch takes about 5 us each on the event loop."""
READ_BYTES_MAX: Final = 4 << 20
_TRIM_ENTRIES: Final = 1_000
_MEAN_BYTES: Final = 256.0
_LOG_BYTES: Final = 4_000
"""Memory of a log beside its keys."""


@dataclass(frozen=True, slots=True)
class RecordEnds:
    """Where a stream begins and ends: offsets, the id of the first entry, entries now and ever added."""

    log_start: int
    end: int
    first_offset: int
    length: int
    added: int


class RecordLog(RecordStream):
    """The log of one partition of a topic of format `record`."""

    def __init__(self, services: LogServices, topic: Topic, index: int) -> None:
        super().__init__(services, topic, index)
        self.tasks = TaskSet()
        self._mean_bytes = _MEAN_BYTES
        self._reported = b""
        self._appends = RecordAppends(self)

    # -- what the APIs call

    def append(
        self, batch: Batch, on_done: OnAppended, *, acks_all: bool = True, transaction: InTransaction | None = None,
        ended: KnownTransaction | None = None,
    ) -> None:  # fmt: skip
        """Queue a batch; `on_done` gets `Appended` or a KafkaError, once, after this returns.

        OutOfOrderSequenceNumber, InvalidProducerEpoch: refused. RequestTimedOut: it may be in the log now or later.
        MessageTooLarge: more records or bytes than one script appends. A batch of a transaction is staged; a marker
        appends or drops what its producer has staged; with `ended` InvalidTxnState if that is of another transaction.
        """
        if batch.is_control:
            self.tasks.start(self._end_transaction(batch, on_done, ended))
        elif batch.is_transactional and transaction is None:
            refused = InvalidTxnState("a transactional batch without a transactional id")
            self.loop.call_soon(on_done, refused)
        else:
            self._appends.append(batch, on_done, acks_all, transaction)

    async def _end_transaction(self, batch: Batch, on_done: OnAppended, known: KnownTransaction | None) -> None:
        try:
            ended = await end_transaction(self, batch, known)
        except Exception as error:  # noqa: BLE001 - becomes the caller's error
            self.guarded(on_done, error)
            return
        if self.durability.immediate:
            self.guarded(on_done, ended)
        else:
            self.durability.prove(
                self.lanes.node,
                lambda held: self.guarded(on_done, ended if held else NotEnoughReplicasAfterAppend()),
            )

    def read(self, offset: int, bytes_max: int, at_least_one: bool, on_done: OnSlice, committed: bool = False) -> None:
        """Read the records from `offset` on, as a client that reads for no group; every record is committed."""
        self.tasks.start(self.answer_read(self.read_range(offset, bytes_max, at_least_one), on_done))

    def known(self) -> LogOffsets | None:
        """The offsets of the last read; None if something was appended since."""
        known = self._known
        return known if known is not None and known.leader_epoch == self.leader_epoch else None

    async def ensure(self) -> LogOffsets:
        """The offsets of the last read, or of now. Raises UnknownTopicOrPartition, StoreUnavailable."""
        return self.known() or await self.end_offset()

    async def end_offset(self) -> LogOffsets:
        """The offsets now. The log start is that of the first entry: Redis programs may have trimmed or deleted."""
        ends = await self.read_ends()
        start = max(ends.log_start, ends.first_offset if ends.length else ends.end)
        return self._offsets(ends.end, start)

    async def latest(self) -> LogOffsets:
        """As `end_offset`."""
        return await self.end_offset()

    async def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record that was appended at or after the time: ids are times of appends."""
        return await self._first_record("XRANGE", f"{max(timestamp_ms, 0)}-0", "+")

    async def max_timestamp(self) -> tuple[int, int] | None:
        """(offset, timestamp) of the last record."""
        return await self._first_record("XREVRANGE", "+", "-")

    async def epoch_ends(self, epochs: Iterable[int]) -> EpochEnds:
        """The offsets, and the ends of these epochs; (-1, -1) for an epoch that never was."""
        known = await self.end_offset()
        ends = {one: (one, known.log_end_offset) if 0 <= one <= self.leader_epoch else (-1, -1) for one in epochs}
        return known, ends

    async def epoch_end(self, epoch: int) -> tuple[int, int]:
        """(leader epoch, end offset); (-1, -1) for an epoch that never was."""
        return (await self.epoch_ends((epoch,)))[1][epoch]

    async def archived_end(self) -> int:
        """0: there is no second tier."""
        return 0

    async def delete_records(self, offset: int) -> int:
        """Remove the records below `offset` (-1: all); returns the log start. Raises OffsetOutOfRange."""
        ends = await self.read_ends()
        if offset == -1:
            offset = ends.end
        if not 0 <= offset <= ends.end:
            raise OffsetOutOfRange
        return await self.trim(offset)

    async def count_from(self, offset: int) -> int:
        """How many records there are from an offset on. Raises UnknownTopicOrPartition, StoreUnavailable."""
        before = self.ids.id_before(offset)
        *_, counts = await self.run(READ_RECORD_LAG, [self.keys.log, self.keys.meta], before)
        return int(counts[0])

    async def read_producers(self) -> dict[int, ProducerState]:
        """The idempotent producers. Raises StoreUnavailable."""
        states = await self.store.read("HGETALL", self.keys.producers)
        return {int(producer_id): self._producer(text.decode()) for producer_id, text in states.items()}

    def _producer(self, text: str) -> ProducerState:
        epoch, last_active_ms, batches, *transaction = text.split(" ")
        ended_ms, staged, *_ = map(int, transaction or (-1, 0))
        kept = []
        for batch in batches.split(",") if batches else ():
            base, last, first_id = batch.split(":")
            offset = self.ids.end_of(first_id) - 1  # -1: it was staged
            appended_ms = parse_id(first_id)[0] if offset >= 0 else int(last_active_ms)
            kept.append(AppendedBatch(int(base), int(last), offset, appended_ms))
        return ProducerState(int(epoch), tuple(kept), int(last_active_ms), 0 if staged else -1, ended_ms)

    # -- reading

    async def answer_read(self, reading: Any, on_done: OnSlice) -> None:
        """Pass the outcome of a read to its caller."""
        outcome: Slice | KafkaError
        try:
            outcome = await reading
        except Exception as error:  # noqa: BLE001 - becomes the partition's error
            outcome = error_of(error, "records_not_read")
        self.guarded(on_done, outcome)

    async def read_range(self, offset: int, bytes_max: int, at_least_one: bool) -> Slice:
        """The records from `offset` on. Raises OffsetOutOfRange, UnknownTopicOrPartition, StoreUnavailable."""
        first = self.ids.id_of(offset)
        while True:
            limits = self.entries_of(bytes_max), self.bytes_of(bytes_max)
            keys = [self.keys.log, self.keys.meta]
            read = await self.run_on(READS, READ_RECORDS, keys, first, *limits)
            found = self.slice_of(offset, read, bytes_max, at_least_one)
            if found.size or found.end_offset == offset or not read[2]:
                return found
            offset = found.end_offset  # only entries without an offset
            first = f"({read[2][-1][0].decode()}"

    def entries_of(self, bytes_max: int) -> int:
        """How many entries to request for so many bytes."""
        return max(1, min(READ_ENTRIES_MAX, int(self.bytes_of(bytes_max) / self._mean_bytes) + 1))

    def bytes_of(self, bytes_max: int) -> int:
        """The bytes to request."""
        return min(bytes_max, READ_BYTES_MAX)

    def slice_of(self, offset: int, read: list[Any], bytes_max: int, at_least_one: bool) -> Slice:
        """The answer for what a script read: log start, last id of the stream, entries. Raises OffsetOutOfRange."""
        log_start, last_id, entries = int(read[0]), read[1], read[2]
        end = self.ids.end_of(last_id)
        if offset < log_start:
            raise OffsetOutOfRange(f"{offset} is below the log start offset {log_start}")
        if not entries and offset > end:
            raise OffsetOutOfRange(f"{offset} is above the log end offset {end}")
        self._known = self._offsets(max(end, offset), min(log_start, offset))
        if parse_id(last_id) > parse_id(self.last_id):  # the poll continues from here: notify the other fetches
            self.last_id = last_id.decode()
            self.loop.call_soon(self._call_listeners)
        built = build_batches(self.ids, entries, self.leader_epoch, by_append_time=self.log_append_time)
        self._report(built)
        size = sum(map(len, built.batches))
        if entries:
            self._mean_bytes += (size / len(entries) - self._mean_bytes) / 4
        if size > bytes_max and not at_least_one:
            return self._slice([], 0, offset, end)
        return self._slice(list(built.batches), size, max(built.end_offset, offset), end)

    def _slice(self, batches: list[Any], size: int, end_offset: int, end: int) -> Slice:
        high_watermark = max(end, end_offset)
        known = self._known
        start = known.log_start_offset if known is not None else 0
        return Slice(batches, size, end_offset, high_watermark, high_watermark, start)

    def _report(self, built: Built) -> None:
        """Count and log entries that have no offset, each id once here."""
        if built.beyond and built.last_beyond > self._reported:
            self._reported = built.last_beyond
            self._services.records_without_offset += built.beyond
            logger.warning(
                "records_without_offset", log=self.keys.log, entries=built.beyond, last=built.last_beyond.decode(),
                sequence_bits=self.ids.bits,
            )  # fmt: skip

    # -- positions

    async def read_ends(self) -> RecordEnds:
        """Where the stream begins and ends now. Raises UnknownTopicOrPartition, StoreUnavailable."""
        log_start, last_id, first, length, added = await self.run(READ_ENDS, [self.keys.log, self.keys.meta])
        first_offset = self.ids.offset_of(first)
        if first_offset is None:
            first_offset = self.ids.end_of(first)
        return RecordEnds(int(log_start), self.ids.end_of(last_id), first_offset, length, added)

    def _offsets(self, end: int, start: int) -> LogOffsets:
        return LogOffsets(end, end, start, end, self.leader_epoch, start, self.leader_epoch)

    async def _first_record(self, command: str, first: str, last: str) -> tuple[int, int] | None:
        """The first entry of a range that has an offset."""
        count = 1
        while True:
            entries = await self.store.read(command, self.keys.log, first, last, "COUNT", count)
            for entry_id, fields in entries:
                offset = self.ids.offset_of(entry_id)
                if offset is not None:
                    return offset, self._timestamp(entry_id, fields or ())
            if len(entries) < count:
                return None
            first, count = f"({entries[-1][0].decode()}", READ_ENTRIES_MAX

    def _timestamp(self, entry_id: bytes, fields: Any) -> int:
        ms = parse_id(entry_id)[0]
        if not self.log_append_time and TIMESTAMP in fields[::2]:
            text = fields[1 + 2 * fields[::2].index(TIMESTAMP)]
            return int(text) if text.isdigit() else ms
        return ms

    async def trim(self, offset: int) -> int:
        """Raise the log start to `offset` and remove what is below, in slices; returns the log start."""
        more = 1
        log_start = offset
        while more:
            keys, first = [self.keys.log, self.keys.meta], self.ids.id_of(offset)
            log_start, more = await self.run(TRIM_RECORDS, keys, first, offset, _TRIM_ENTRIES, self.keys.wake)
        self._known = None
        return int(log_start)

    # -- memory

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits here; entries without an offset are counted once, so what was counted stays known."""
        return not (self._listeners or self.tasks or self._reported) and self._appends.is_idle

    @property
    def used_s(self) -> float:
        """0: there is no state to load."""
        return 0.0

    @property
    def memory_bytes(self) -> int:
        """Upper bound of the memory."""
        return _LOG_BYTES + self.keys.held_bytes

    def close(self, reason: KafkaError) -> None:
        """Stop; pending and later requests fail with `reason`."""
        self._closed = reason
        self.notify()
        if self._listeners:
            self._stop_listening()
        self._appends.close(reason)
