"""One partition's log on one broker: its cached state, and the appends, reads, refreshes and listeners using it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from tidegate.errors import KafkaError, KafkaStorageError, StoreUnavailable, UnknownTopicOrPartition
from tidegate.log import archived, positions, retention
from tidegate.log.append import Appends, OnAppended
from tidegate.log.append_subscription import AppendSubscription
from tidegate.log.archive_reads import ArchiveReads
from tidegate.log.cached_log import CachedLog, OnState
from tidegate.log.entries import Entry, StrayEntry, parse_entries
from tidegate.log.high_watermark import HighWatermark
from tidegate.log.loading import LogLost, load_state
from tidegate.log.log_refresh import LogRefresher
from tidegate.log.open_logs import OpenLogs
from tidegate.log.outgoing import InTransaction, KnownTransaction, QueuedBatch
from tidegate.log.producers_table import ProducerState
from tidegate.log.progress import Progress
from tidegate.log.read import OnSlice, Reads
from tidegate.log.record_format.record_log import RecordLog
from tidegate.log.services import LogServices
from tidegate.log.state import EpochEnds, LogOffsets, LogState
from tidegate.memory import shares_of
from tidegate.settings import Settings
from tidegate.store.node import Node
from tidegate.store.store import Store

if TYPE_CHECKING:
    from tidegate.records.batch import Batch
    from tidegate.topics.catalog import Topic

logger = structlog.get_logger()

Outcome = TypeVar("Outcome")

_LOAD_TRIES: Final = 8
_LOG_BYTES: Final = 6_600
"""Memory of a log beside its keys and its state: the components, their queues, its place in the cache."""


class PartitionServices(LogServices):
    """The services of the logs of one broker, and those of its partition logs that await a background task."""

    def __init__(self, store: Store, settings: Settings) -> None:
        super().__init__(store, settings)
        self.is_subscribed: dict[PartitionLog, None] = {}
        """Dicts, not sets, are walked in the same order in every run of a simulation."""
        self.dirty: dict[PartitionLog, None] = {}
        self.moved_starts: dict[PartitionLog, None] = {}
        """Logs whose start moved since the last sweep."""
        self.stray_logs: set[PartitionLog] = set()
        self.open_logs = OpenLogs[PartitionLog | RecordLog](shares_of(settings.memory_max).logs, self.loop.time)


class PartitionLog(CachedLog):
    """The log of one partition. Everything here is a cache or a pending request; losing it loses no data."""

    def __init__(self, services: PartitionServices, topic: Topic, index: int) -> None:
        super().__init__(services, topic, index)
        self._services = services
        self._waiting: list[OnState] = []
        self._loading: asyncio.Task[None] | None = None
        self.stray: StrayEntry | None = None
        self._lost = False
        mark_dirty = partial(services.dirty.setdefault, self)
        self.refresher = LogRefresher(self)
        self.subscription = AppendSubscription(self, self.refresher, self._on_subscription)
        self.progress = Progress(self, mark_dirty)
        self.high_watermark = HighWatermark(self, mark_dirty, self.subscription.notify)
        self.archived_reads = ArchiveReads(self)
        self._appends = Appends(self, self.refresher, self.high_watermark, self.subscription.notify)
        self._reads = Reads(self, self.refresher, self.subscription, self.archived_reads)
        self.pages.on_drop = self._reads.forget

    # -- public operations

    def append(
        self, batch: Batch, on_done: OnAppended, *, acks_all: bool = True, transaction: InTransaction | None = None,
        ended: KnownTransaction | None = None,
    ) -> None:  # fmt: skip
        """Queue a batch for the next entry; `on_done` gets `Appended` or a KafkaError, once, after this returns.

        OutOfOrderSequenceNumber and InvalidProducerEpoch are answered after a refresh; UnknownTopicOrPartition if the
        topic was deleted; StoreUnavailable if the batch was not appended; RequestTimedOut if it may be in the log now
        or later; NotEnoughReplicasAfterAppend if it is in the log but was not proved as `durability` requires
        (acks=all only). A batch whose predecessor from the same producer failed gets the predecessor's answer.
        A transactional batch needs `transaction`. A marker (`records.control`) is appended also to a full Redis; if
        the transaction that it ends has ended here already, nothing is appended and the base offset is -1. With `ended`
        InvalidTxnState if another transaction of its producer is open.
        """
        deadline = self.loop.time() + self.patience_s
        self._appends.append(QueuedBatch(batch, on_done, acks_all, deadline, transaction, ended))

    def read(self, offset: int, bytes_max: int, at_least_one: bool, on_done: OnSlice, committed: bool = False) -> None:
        """Read whole batches from the one that contains `offset`, at most `bytes_max`; `committed`: only stable ones.

        With `at_least_one` the first batch may exceed `bytes_max`. Below the local start they come from the archive.
        Calls back at once if a cache or the known log end suffices. Errors: OffsetOutOfRange (after a refresh),
        UnknownTopicOrPartition, StoreUnavailable, KafkaStorageError.
        """
        self._reads.read(offset, bytes_max, at_least_one, on_done, committed)

    def is_at_end(self, offset: int, committed: bool = False) -> bool:
        """Whether `read` would find nothing at `offset`, and at once; `committed`: no stable records."""
        state = self.state
        if state is None or not state.log_start <= offset <= state.end or state.stray is not None:
            return False
        end = state.last_stable_offset if committed else state.high_watermark
        return offset >= end and self.subscription.is_subscribed

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after appends, trims and deletion by any broker; the result removes it."""
        return self.subscription.on_change(listener)

    def known(self) -> LogOffsets | None:
        """The cached offsets, without I/O; None until a state is loaded."""
        return self.state.known() if self.state is not None else None

    def has_offsets(self, high_watermark: int, log_start: int) -> bool:
        """Whether the cached offsets are these."""
        state = self.state
        return state is not None and state.high_watermark == high_watermark and state.log_start == log_start

    async def ensure(self) -> LogOffsets:
        """Load the state if there is none. Raises UnknownTopicOrPartition, StoreUnavailable."""
        return (await self.load()).known()

    async def end_offset(self) -> LogOffsets:
        """The offsets after a refresh. Raises UnknownTopicOrPartition, StoreUnavailable."""
        return (await self.refresh()).known()

    async def latest(self) -> LogOffsets:
        """The offsets after a refresh, once the high watermark is known. As `end_offset`; also OffsetNotAvailable."""
        state = await self.refresh()
        if not state.high_watermark_known:
            await self.high_watermark.until_known(state)
        return state.known()

    async def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record at or after the time."""
        return await positions.offset_for_timestamp(self, self.archived_reads, timestamp_ms)

    async def max_timestamp(self) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record with the largest timestamp."""
        return await positions.max_timestamp(self, self.archived_reads)

    async def read_producers(self) -> Mapping[int, ProducerState]:
        """The idempotent producers. Raises UnknownTopicOrPartition, StoreUnavailable."""
        return (await self.refresh()).producers

    async def epoch_ends(self, epochs: Iterable[int]) -> EpochEnds:
        """The offsets, and the ends of these epochs, of one state. Raises UnknownTopicOrPartition, StoreUnavailable."""
        state = await self.refresh()
        return state.known(), {epoch: positions.epoch_end(state, epoch) for epoch in epochs}

    async def epoch_end(self, epoch: int) -> tuple[int, int]:
        """(leader epoch, end offset) for OffsetForLeaderEpoch; (-1, -1) where undefined."""
        return (await self.epoch_ends((epoch,)))[1][epoch]

    async def archived_end(self) -> int:
        """The offset after the last archived one; 0 for none."""
        return (await archived.archived_range(self))[1]

    async def delete_records(self, offset: int) -> int:
        """Move the log start to `offset` (-1: the high watermark). Raises OffsetOutOfRange."""
        return await retention.delete_records(self, offset)

    # -- the cached state

    @property
    def high_watermark_known(self) -> bool:
        """Whether no broker can have reported a higher one; False until a state is loaded."""
        return self.state is not None and self.state.high_watermark_known

    def with_state(self, on_state: OnState) -> None:
        """Load the state, then call with it or with the failure. Never calls before it returns."""
        if self._closed is not None:
            self.loop.call_soon(self.guarded, on_state, self._closed)
            return
        self._waiting.append(on_state)
        if self._loading is None:
            self._loading = self.loop.create_task(self._load())

    async def load(self) -> LogState:
        """The state, loaded if necessary. Raises UnknownTopicOrPartition, StoreUnavailable."""
        if self.state is not None:
            return self.state
        future: asyncio.Future[LogState | KafkaError] = self.loop.create_future()
        self.with_state(_into(future))
        loaded = await future
        if isinstance(loaded, KafkaError):
            raise loaded
        return loaded

    async def refresh(self) -> LogState:
        """The state, verified after the call. Raises UnknownTopicOrPartition, StoreUnavailable."""
        for _ in range(_LOAD_TRIES):
            future: asyncio.Future[KafkaError | None] = self.loop.create_future()
            self.refresher.refresh(_into(future))
            failure = await future
            if failure is not None:
                raise failure
            if self.state is not None:
                return self.state
        raise StoreUnavailable("the log state was replaced while it was read")

    async def _load(self) -> None:
        outcome: LogState | KafkaError = StoreUnavailable("the log state was replaced while it was read")
        try:
            for _ in range(_LOAD_TRIES):
                node = self.lanes.bind()
                failover_epoch = await self._services.failover_epochs.ready(node)
                voids = self._voids
                try:
                    state, own, last = await load_state(self.store, self.keys, failover_epoch, self.writer.name)
                    own += await self._entries_at(self._appends.unresolved.bases_below(state.snapshot_offset))
                except StoreUnavailable as error:
                    outcome = error
                    if self._is_as(voids, node, failover_epoch):
                        break  # the command was refused; the connection is intact
                    continue
                await self.high_watermark.load(state)
                self._services.failover_epochs.raise_floor(state.failover_epoch)
                if self._is_as(voids, node, failover_epoch):
                    self._install(state, own, last)
                    outcome = state
                    break
        except (StoreUnavailable, UnknownTopicOrPartition, KafkaStorageError) as error:
            outcome = error
            if isinstance(error, LogLost):
                self._found_lost(error)
        except Exception as error:
            logger.exception("log_state_not_loaded", log=self.keys.log)
            outcome = StoreUnavailable(str(error))
        self._loading = None
        self._notify_waiting(outcome)
        if not isinstance(outcome, StoreUnavailable):
            self.subscription.notify()

    def _notify_waiting(self, outcome: LogState | KafkaError) -> None:
        waiting, self._waiting = self._waiting, []
        for on_state in waiting:
            self.guarded(on_state, outcome)

    def _is_as(self, voids: int, node: Node, failover_epoch: int) -> bool:
        """Whether data read since then is still valid."""
        return self._voids == voids and self._services.failover_epochs.number_at(node) == failover_epoch

    async def _entries_at(self, bases: list[int]) -> list[Entry]:
        """Those of `bases` (entries of unknown outcome below the snapshot) that are in the log."""
        entries: list[Entry] = []
        for base in bases:
            entry_id = f"{base}-1"
            found = await self.store.read_at_owner("XRANGE", self.keys.log, entry_id, entry_id)
            entries += parse_entries(found)[0]
        return entries

    def _install(self, state: LogState, own: list[Entry], last: list[Entry]) -> None:
        state.verified_at = self.loop.time()
        self.state = state
        self.report_truncation(state)
        self.pages.clear()
        self.pages.insert(last)
        self.progress.reset()
        self.high_watermark.installed(state)
        self._services.open_logs.loaded(self)
        for entry in own:
            self._appends.found(entry)
        self._appends.discard_unresolved_below(state.end)
        if state.stray is not None:
            self.found_stray(state, state.stray)
        elif self.stray is not None or self._lost:
            logger.info("log_without_stray_entry", log=self.keys.log, end=state.end)
            self._no_stray()

    def found_stray(self, state: LogState, stray: StrayEntry) -> None:
        """Block appends and reads at the end until the log is repaired. Logged once for each stray entry."""
        state.stray = stray
        if self.stray is None or self.stray.entry_id != stray.entry_id or self.stray.removed != stray.removed:
            logger.error("log_stray_entry", log=self.keys.log, end=state.end, reason=str(stray))
            self.stray = stray
            self._services.stray_logs.add(self)
            self.subscription.notify()

    def _found_lost(self, lost: LogLost) -> None:
        """Log once that `topic repair` must begin a new stream; appends and reads fail until then."""
        if not self._lost:
            logger.error("log_lost", log=self.keys.log, reason=str(lost), command=f"topic repair {self.topic.name}")
            self._lost = True
            self._services.stray_logs.add(self)

    def _no_stray(self) -> None:
        self.stray, self._lost = None, False
        self._services.stray_logs.discard(self)

    def gone(self) -> UnknownTopicOrPartition:
        """Void the state of a deleted partition; returns the error for its callers."""
        self.void("deleted")
        self.subscription.notify()
        return UnknownTopicOrPartition()

    # -- memory

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits here; what awaits a background task is referred to by the services."""
        parts = self.subscription, self.refresher, self._appends, self._reads, self.high_watermark, self.progress
        return self._loading is None and self.archived_reads.is_idle and all(part.is_idle for part in parts)

    @property
    def memory_bytes(self) -> int:
        """Upper bound of the memory beside the pages."""
        return _LOG_BYTES + self.keys.held_bytes + self.state_bytes + self.archived_reads.held_bytes

    def release(self) -> None:
        """See `OpenPartition.release`."""
        self.void("idle")
        self.high_watermark.close()
        self.refresher.close()
        vars(self._appends).clear()  # the judge of its batches refers to it
        super().release()

    def close(self, reason: KafkaError) -> None:
        """Stop; pending and later requests fail with `reason`."""
        self._closed = reason
        self.void(str(reason))
        self.subscription.notify()
        self.subscription.stop()
        self._no_stray()
        self._appends.close(reason)
        self.archived_reads.close()
        if self._loading is not None:
            self._loading.cancel()
            self._notify_waiting(reason)  # a task cancelled before it starts runs no code

    # -- changes

    def _on_subscription(self, begins: bool) -> None:
        """The subscription begins or ends: the poll of lost messages covers this log, or no longer."""
        if begins:
            self._services.is_subscribed[self] = None
        else:
            self._services.is_subscribed.pop(self, None)

    def on_truncation(self, end: int, lost_records: int, failover_epoch: int) -> None:
        """Count and store the records that this broker knew and a fail-over lost; the log ended at `end` then."""
        self._services.lost_records += lost_records
        self.progress.note_truncation(end, lost_records, failover_epoch)

    def write_progress(self) -> None:
        """Write the pending estimates and index entries."""
        self.progress.write()

    async def save_producers(self, state: LogState, offset: int) -> None:
        """See `CachedLog.save_producers`."""
        if int(await self.store.command("HGET", self.keys.producers, "offset") or 0) < offset:
            await self.progress.save_now(state)

    def appended(self, state: LogState, entry: Entry) -> None:
        """This broker's entry is in the log and in the state; `Appends` notifies the listeners."""
        self.pages.append(entry)
        self.progress.appended(state, entry)
        if self.durability.immediate:
            state.high_watermark = state.end
        else:
            self.high_watermark.prove()

    def found(self, state: LogState, entries: list[Entry], log_start: int, local_start: int) -> None:
        """Apply a refresh: the entries that follow the state, the log start and the local start."""
        changed, now_ms = log_start != state.log_start, self.store.clock.now_ms()
        if changed:
            self._services.moved_starts[self] = None
        state.log_start, state.local_start = log_start, max(log_start, local_start)  # a restore lowers them
        for entry in entries:
            state.apply(entry, now_ms)
            self.pages.append(entry)
            self._appends.found(entry)
        if entries:
            self._appends.discard_unresolved_below(state.end)
            self.high_watermark.found(state)
        if changed or (entries and self.durability.immediate):
            self.subscription.notify()


def _into(future: asyncio.Future[Outcome]) -> Callable[[Outcome], None]:
    """A callback that sets the result of `future`, unless it was cancelled."""

    def done(outcome: Outcome) -> None:
        if not future.done():
            future.set_result(outcome)

    return done
