"""Read the due partitions of a fetch, in order, within its byte budget; then answer or wait.

The log calls back, synchronously for cached data. Other reads run concurrently as long as their largest possible
results fit into the budget. What must be awaited (an unknown topic, a log not opened yet, differing epochs) runs in a
separate task, rarely.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import structlog

from tidegate.apis.call import Call
from tidegate.apis.fetch_message_sets import are_markers
from tidegate.apis.fetch_sessions import READ_COMMITTED, ZSTD_FROM, FetchSet, Wanted
from tidegate.apis.slices import SLICE, run_slice
from tidegate.cluster.placement import leader_of
from tidegate.errors import (
    FencedLeaderEpoch,
    KafkaError,
    KafkaStorageError,
    OffsetOutOfRange,
    StoreUnavailable,
    UnknownLeaderEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnsupportedCompressionType,
)
from tidegate.log.record_format.record_log import RecordLog
from tidegate.protocol.log_writers import FetchPartition
from tidegate.records.batch import holds_zstd
from tidegate.store.calls import error_of

if TYPE_CHECKING:
    from tidegate.log.logs import FetchedLog
    from tidegate.log.read import Slice
    from tidegate.log.record_format.record_groups import RecordReader
    from tidegate.log.state import LogOffsets

logger = structlog.get_logger()

BATCHES_FROM: Final = 4
"""Version from which on records are sent as batches; older ones get message sets (`fetch_message_sets`)."""
LEADERS_FROM: Final = 16
"""Version from which on an error about the leader's epoch names the leader (KIP-951)."""
BYTES_MAX: Final = 55 << 20
"""Bytes of records in one response: Kafka's default of `fetch.max.bytes`."""
_ONE_MESSAGE_FROM: Final = 3
_STORE_AWAY_PAUSE_S: Final = 0.1
BY_ORDER: Final = attrgetter("order")


class Reading:
    """The reading half of a fetch. Sizes in bytes; `_reserved` is the largest possible size of the reads in progress.

    `_urgent` is set by results that must be answered at once, `_names_leaders` by those with a leader; `_deadline_s` is
    the loop's time when waiting ends.
    """

    __slots__ = (
        "_answered",
        "_at",
        "_blocked",
        "_call",
        "_deadline_s",
        "_evaluated",
        "_filling",
        "_filling_later",
        "_isolation",
        "_loop",
        "_max_bytes",
        "_names_leaders",
        "_reading",
        "_reserved",
        "_resolved",
        "_set",
        "_size",
        "_todo",
        "_urgent",
    )

    def __init__(self, call: Call, fetch_set: FetchSet, isolation: int, max_bytes: int, deadline_s: float) -> None:
        self._call = call
        self._set = fetch_set
        self._isolation = isolation
        self._max_bytes = max_bytes
        self._deadline_s = deadline_s
        self._loop = asyncio.get_running_loop()
        self._todo: list[Wanted] = []
        self._at = self._size = self._reserved = 0
        self._reading: dict[Wanted, int] = {}
        self._evaluated: dict[Wanted, None] = {}
        self._resolved: set[Wanted] = set()
        self._blocked: Wanted | None = None
        self._filling = self._filling_later = self._urgent = self._answered = self._names_leaders = False

    def _reply_or_park(self) -> None:
        """All due partitions are evaluated: answer, or wait for more."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Stop: nobody waits for the answer."""
        raise NotImplementedError

    def _fail_all(self, error: Exception) -> None:
        """Close the connection: what failed was called by a timer, a log or a task, and no handler answers for it."""
        logger.error("fetch_failed", exc_info=error)
        self._answered = self._urgent = True
        self._call.close(f"Fetch v{self._call.version} failed")
        self.cancel()

    # -- evaluating

    def start(self) -> None:
        """Evaluate what is due; then answer or wait."""
        fetch_set, version = self._set, self._call.context.catalog.version
        if fetch_set.catalog_version != version:
            fetch_set.catalog_version = version
            for wanted in fetch_set.wanted.values():
                if wanted.log is not None:
                    self._locate_again(wanted)
        for wanted in fetch_set.due:
            wanted.result = None
        self._begin()

    def _locate_again(self, wanted: Wanted) -> None:
        """Topics have changed: evaluate the partition again if its log was replaced."""
        if wanted.log is not self._locate(wanted):
            self._set.stop_listening(wanted)
            self._set.due[wanted] = None
            wanted.log = None

    def _begin(self) -> None:
        due = self._set.due
        self._todo, self._at = sorted(due, key=BY_ORDER), 0
        self._evaluated.update(due)
        due.clear()
        self._fill()

    def _fill(self) -> None:
        """Evaluate as many partitions as surely fit into the budget; finish when none is left."""
        if self._filling or self._filling_later or self._answered:
            return
        self._filling = True
        stop = self._at + SLICE
        while self._at < len(self._todo):
            if self._at == stop:
                self._filling, self._filling_later = False, True
                run_slice(self._fill_on)
                return
            wanted, left = self._todo[self._at], self._max_bytes - self._size - self._reserved
            if self._reserved and left < wanted.bytes_max:
                break
            self._at += 1
            self._evaluate(wanted, max(left, 0), None)
        self._filling = False
        if not self._reading and self._at == len(self._todo):
            self._reply_or_park()

    def _fill_on(self) -> None:
        self._filling_later = False
        try:
            self._fill()
        except Exception as error:  # noqa: BLE001 - the client must not wait for ever
            self._fail_all(error)

    def _locate(self, wanted: Wanted) -> FetchedLog | KafkaError | None:
        """The log of a partition; None if the cache has no such topic."""
        context, org, key = self._call.context, self._call.client.org, wanted.key
        topic = context.catalog.get(org, key) if isinstance(key, str) else context.catalog.by_id(org, UUID(bytes=key))
        if topic is None:
            return None
        if not 0 <= wanted.index < topic.partition_count:
            return UnknownTopicOrPartition()
        log = context.logs.partition(topic, wanted.index)
        return self._record_reader(log) if isinstance(log, RecordLog) else log

    def _record_reader(self, log: RecordLog) -> RecordReader:
        """The log as this connection reads it: for its group."""
        client, groups = self._call.client, self._call.context.logs.record_groups
        reader = self._call.client_id or "", f"/{client.host}"
        return groups.reader(log, groups.connection(client.connection_id, reader, client.when_closed))

    async def _find(self, key: str | bytes) -> None:
        catalog, org = self._call.context.catalog, self._call.client.org
        await (catalog.find(org, key) if isinstance(key, str) else catalog.find_by_id(org, UUID(bytes=key)))

    def _evaluate(self, wanted: Wanted, left: int, known: LogOffsets | None) -> None:
        log = wanted.log
        if log is None:
            located = self._locate(wanted)
            if located is None and wanted not in self._resolved:
                self._await_first(wanted, left, self._find(wanted.key))
                return
            if located is None:
                located = UnknownTopicOrPartition() if isinstance(wanted.key, str) else UnknownTopicId()
            if isinstance(located, KafkaError):
                self._fail(wanted, located)
                return
            log = wanted.log = located
        known = log.known() or known
        result = wanted.result
        if result is not None and known is not None and not _changed(result, known):
            return
        if wanted.leader_epoch >= 0 or wanted.last_epoch >= 0:
            if known is None:
                self._await_first(wanted, left, log.ensure())
                return
            if not self._epochs_agree(wanted, log, known, left):
                return
        self._read(wanted, log, known, left)

    def _epochs_agree(self, wanted: Wanted, log: FetchedLog, known: LogOffsets, left: int) -> bool:
        """Whether the client's epochs match this log's (KIP-320, KIP-595); otherwise the answer becomes an error."""
        if 0 <= wanted.leader_epoch != known.leader_epoch:
            if wanted.leader_epoch > known.leader_epoch:
                self._fail(wanted, UnknownLeaderEpoch())
                return False
            self._fail(wanted, FencedLeaderEpoch())
            if self._call.version >= LEADERS_FROM and wanted.result is not None:
                wanted.result.leader = self._leader_of(log, wanted.index), known.leader_epoch
                self._names_leaders = True
            return False
        if wanted.last_epoch < 0 or known.is_current(wanted.offset, wanted.last_epoch):
            return True
        self._await_first(wanted, left, self._verify(wanted, log, known))
        return False

    def _leader_of(self, log: FetchedLog, index: int) -> int:
        """The node id of the leader as Metadata names it; any broker serves the partition."""
        brokers = self._call.context.broker_lease.nameable(self._call.client.listener)
        return leader_of(log.topic.topic_id, index, brokers).node_id

    async def _verify(self, wanted: Wanted, log: FetchedLog, known: LogOffsets) -> None:
        """Check that the client's last epoch ends where ours does; a match is cached until that epoch changes."""
        epoch, end_offset = await log.epoch_end(wanted.last_epoch)
        if epoch < 0:
            raise OffsetOutOfRange(f"there was no leader epoch {wanted.last_epoch}")
        if epoch >= wanted.last_epoch and end_offset >= wanted.offset:
            wanted.last_epoch = -1
            return
        self._urgent = True
        offsets = known.high_watermark, known.last_stable_offset, known.log_start_offset
        wanted.result = FetchPartition(wanted.index, 0, *offsets, diverging=(epoch, end_offset))

    def _await_first(self, wanted: Wanted, left: int, work: Awaitable[Any]) -> None:
        """Await some rare work in a task, then evaluate the partition again."""
        self._resolved.add(wanted)
        self._reading[wanted] = left
        self._reserved += left
        context = self._call.context

        async def run() -> None:
            outcome: Any = None
            try:
                outcome = await work
            except Exception as error:  # noqa: BLE001 - becomes the partition's error
                outcome = error_of(error, "fetch_failed")
            self._reserved -= self._reading.pop(wanted)
            if self._answered:
                return
            try:
                if isinstance(outcome, KafkaError):
                    self._fail(wanted, outcome)
                elif wanted.result is None or wanted.result.diverging is None:
                    self._evaluate(wanted, max(self._max_bytes - self._size - self._reserved, 0), outcome)
                self._fill()
            except Exception as error:  # noqa: BLE001 - the client must not wait for ever
                self._fail_all(error)

        context.tasks.start(run())

    # -- reading

    def _read(self, wanted: Wanted, log: FetchedLog, known: LogOffsets | None, left: int) -> None:
        """Read from the requested offset, or continue after the records read before."""
        result = wanted.result
        if result is not None and result.size:
            budget = min(wanted.bytes_max - result.size, left)
            if budget > 0:
                self._ask(wanted, log, wanted.end_offset, budget, at_least_one=False)
            return
        if known is not None and log.is_at_end(wanted.offset, self._isolation == READ_COMMITTED):
            self._take(wanted, known, [], 0)
            wanted.bases, wanted.end_offset = (), wanted.offset
            return
        budget = min(wanted.bytes_max, left)
        first = self._size == 0 and not self._reading
        if not first and self._call.version < _ONE_MESSAGE_FROM:
            first = left > 0  # a message beyond a partition's limit is cut, and must be read for that
        if budget <= 0 and not first and known is not None and _holds(known, wanted.offset):
            self._take(wanted, known, [], 0)
            self._note_blocked(wanted, known)
            return
        self._ask(wanted, log, wanted.offset, max(budget, 0), at_least_one=first)

    def _ask(self, wanted: Wanted, log: FetchedLog, offset: int, budget: int, *, at_least_one: bool) -> None:
        self._reading[wanted] = budget
        self._reserved += budget
        committed = self._isolation == READ_COMMITTED
        log.read(offset, budget, at_least_one, lambda outcome: self._arrived(wanted, at_least_one, outcome), committed)

    def _arrived(self, wanted: Wanted, at_least_one: bool, outcome: Slice | KafkaError) -> None:
        if wanted not in self._reading:
            return
        self._reserved -= self._reading.pop(wanted)
        if self._answered:
            return
        try:
            if isinstance(outcome, KafkaError):
                self._fail(wanted, outcome)
            elif not (outcome.size and self._call.version < ZSTD_FROM and self._unfit(wanted, at_least_one, outcome)):
                self._found(wanted, at_least_one, outcome)
            self._fill()
        except Exception as error:  # noqa: BLE001 - the client must not wait for ever
            self._fail_all(error)

    def _unfit(self, wanted: Wanted, at_least_one: bool, found: Slice) -> bool:
        """Whether the client's version cannot have the batches, which are then refused or skipped."""
        if self._call.version >= BATCHES_FROM:
            if not holds_zstd(found.buffers):
                return False
            self._fail(wanted, UnsupportedCompressionType("zstd needs Fetch v10"))
            return True
        if found.log_start_offset > wanted.offset or not are_markers(found.buffers):
            return False
        self._skip(wanted, found, at_least_one)
        return True

    def _found(self, wanted: Wanted, at_least_one: bool, found: Slice) -> None:
        before = wanted.result
        if found.log_start_offset > wanted.offset:
            self._fail(wanted, OffsetOutOfRange())
            return
        if before is not None and before.size:
            self._take(wanted, found, [*before.buffers, *found.buffers], before.size + found.size)
            wanted.bases = [*wanted.bases, *found.bases]
        else:
            self._take(wanted, found, found.buffers, found.size)
            wanted.bases = found.bases
        self._size += found.size
        wanted.end_offset = found.end_offset
        if not found.size and not at_least_one:
            self._note_blocked(wanted, found)

    def _skip(self, wanted: Wanted, found: Slice, at_least_one: bool) -> None:
        """Read on after batches without messages: a client that gets nothing would ask for them again at once."""
        wanted.end_offset = found.end_offset
        if wanted.result is not None and wanted.result.size:
            return
        wanted.offset = found.end_offset
        self._take(wanted, found, [], 0)
        if wanted.log is not None and wanted.offset < found.high_watermark:
            budget = min(wanted.bytes_max, self._max_bytes - self._size - self._reserved)
            self._ask(wanted, wanted.log, wanted.offset, max(budget, 0), at_least_one=at_least_one)

    def _note_blocked(self, wanted: Wanted, offsets: Slice | LogOffsets) -> None:
        """Nothing was read: record a batch beyond the budget; the first one is sent if no partition has data."""
        end = offsets.last_stable_offset if self._isolation == READ_COMMITTED else offsets.high_watermark
        if wanted.offset < end and (self._blocked is None or wanted.order < self._blocked.order):
            self._blocked = wanted

    def _take(self, wanted: Wanted, offsets: Slice | LogOffsets, buffers: Sequence[Any], size: int) -> None:
        aborted: list[tuple[int, int]] | None = None
        if self._isolation == READ_COMMITTED:
            found = getattr(offsets, "aborted", ())
            before = (wanted.result.aborted if wanted.result is not None else None) or ()
            aborted = [*(one for one in before if one not in found), *found] if before else list(found)
        wanted.result = FetchPartition(
            wanted.index, 0, offsets.high_watermark, offsets.last_stable_offset, offsets.log_start_offset,
            aborted, buffers, size,
        )  # fmt: skip

    def _fail(self, wanted: Wanted, error: Exception) -> None:
        """Answer the partition with an error; if storage is unavailable, after a pause, so that clients do not spin."""
        if wanted.result is not None:
            self._size -= wanted.result.size
        if isinstance(error, StoreUnavailable | KafkaStorageError):
            error = KafkaStorageError(error.message)
            self._deadline_s = min(self._deadline_s, self._loop.time() + _STORE_AWAY_PAUSE_S)
        else:
            self._urgent = True
        if not isinstance(error, KafkaError):
            logger.error("fetch_failed", exc_info=error)
            error = KafkaError()
        aborted: list[tuple[int, int]] | None = [] if wanted.log is None else None  # as Kafka's, of any isolation level
        wanted.result = FetchPartition(wanted.index, error.code.value, aborted=aborted)


def _changed(result: FetchPartition, known: LogOffsets) -> bool:
    return result.high_watermark != known.high_watermark or result.log_start_offset != known.log_start_offset


def _holds(known: LogOffsets, offset: int) -> bool:
    return known.log_start_offset <= offset <= known.log_end_offset
