"""One partition's log on one broker: its cached state, and the appends, reads, refreshes and listeners using it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from tidegate.errors import KafkaStorageError, StoreUnavailable, UnknownTopicOrPartition
from tidegate.log import archived, positions, retention
from tidegate.log.append import Appends, OnAppended
from tidegate.log.append_subscription import AppendSubscription
from tidegate.log.archive_reads import ArchiveReads
from tidegate.log.entries import Entry, StrayEntry, parse_entries
from tidegate.log.high_watermark import HighWatermark
from tidegate.log.loading import load_view
from tidegate.log.log_refresh import LogRefresher
from tidegate.log.progress import Progress
from tidegate.log.read import OnSlice, Reads
from tidegate.log.state import LogOffsets, LogState
from tidegate.log.tail import LogPages
from tidegate.store.key_lanes import KeyLanes
from tidegate.store.node import Node

if TYPE_CHECKING:
    from tidegate.log.logs import Logs
    from tidegate.records.batch import Batch
    from tidegate.topics.catalog import Topic

logger = structlog.get_logger()

Outcome = TypeVar("Outcome")
OnView = Callable[["LogState | Exception"], None]

_LOAD_TRIES: Final = 8
_LOG_APPEND_TIME: Final = "LogAppendTime"


class PartitionLog:
    """The log of one partition. Everything here is a cache or a pending request; losing it loses no data."""

    def __init__(self, logs: Logs, topic: Topic, index: int) -> None:
        self.store = logs.store
        self.settings = logs.settings
        self.loop = logs.loop
        self.writer = logs.writer
        self.usage = logs.usage
        self.durability = logs.durability
        self.archive_files = logs.archive_files
        self.subscribed_logs = logs.is_subscribed
        self.patience_s = logs.settings.redis_command_timeout_ms / 1000
        self.topic = topic
        self.index = index
        self.keys = logs.store.log_keys(topic.org, topic.name, index, topic.topic_hex)
        self.view: LogState | None = None
        self.lanes = KeyLanes(self.store, self.keys.log)
        self.pages = LogPages(logs.cache)
        self.refresher = LogRefresher(self)
        self.subscription = AppendSubscription(self)
        self.progress = Progress(self, logs.dirty)
        self._logs = logs
        self.poll_s = logs.poll_s
        self._waiting: list[OnView] = []
        self._loading: asyncio.Task[None] | None = None
        self._voids = 0
        self._closed: Exception | None = None
        self.stray: StrayEntry | None = None
        self.high_watermark = HighWatermark(self, logs.dirty)
        self.archived_reads = ArchiveReads(self)
        self._appends = Appends(self)
        self._reads = Reads(self)

    # -- public operations

    def append(self, batch: Batch, on_done: OnAppended, *, acks_all: bool = True) -> None:
        """Queue a batch for the next entry; `on_done` gets `Appended` or a KafkaError, once, after this returns.

        OutOfOrderSequenceNumber and InvalidProducerEpoch are answered after a refresh; UnknownTopicOrPartition if the
        topic was deleted; StoreUnavailable if the batch was not appended; RequestTimedOut if it may be in the log now
        or later; NotEnoughReplicasAfterAppend if it is in the log but was not proved as `durability` requires
        (acks=all only). A batch whose predecessor from the same producer failed gets the predecessor's answer.
        """
        self._appends.append(batch, on_done, acks_all)

    def read(self, offset: int, bytes_max: int, at_least_one: bool, on_done: OnSlice) -> None:
        """Read whole batches from the one that contains `offset`, at most `bytes_max`.

        With `at_least_one` the first batch may exceed `bytes_max`. Below the local start they come from the archive.
        Calls back at once if a cache or the known log end suffices. Errors: OffsetOutOfRange (after a refresh),
        UnknownTopicOrPartition, StoreUnavailable, KafkaStorageError.
        """
        self._reads.read(offset, bytes_max, at_least_one, on_done)

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after appends, trims and deletion by any broker; the result removes it."""
        return self.subscription.on_change(listener)

    def known(self) -> LogOffsets | None:
        """The cached offsets, without I/O; None until a state is loaded."""
        return self.view.known() if self.view is not None else None

    async def ensure(self) -> LogOffsets:
        """Load the state if there is none. Raises UnknownTopicOrPartition, StoreUnavailable."""
        return (await self.load()).known()

    async def end_offset(self) -> LogOffsets:
        """The offsets after a refresh. Raises UnknownTopicOrPartition, StoreUnavailable."""
        return (await self.refresh()).known()

    async def latest(self) -> LogOffsets:
        """The offsets after a refresh, once the high watermark is known. As `end_offset`; also OffsetNotAvailable."""
        view = await self.refresh()
        if not view.high_watermark_known:
            await self.high_watermark.until_known(view)
        return view.known()

    async def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record at or after the time."""
        return await positions.offset_for_timestamp(self, timestamp_ms)

    async def max_timestamp(self) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record with the largest timestamp."""
        return await positions.max_timestamp(self)

    async def epoch_end(self, epoch: int) -> tuple[int, int]:
        """(leader epoch, end offset) for OffsetForLeaderEpoch; (-1, -1) where undefined."""
        return positions.epoch_end(await self.refresh(), epoch)

    async def archived_end(self) -> int:
        """The offset after the last archived one; 0 for none."""
        return (await archived.archived_range(self))[1]

    async def delete_records(self, offset: int) -> int:
        """Move the log start to `offset` (-1: the high watermark). Raises OffsetOutOfRange."""
        return await retention.delete_records(self, offset)

    # -- the cached state

    @property
    def log_append_time(self) -> bool:
        """Whether the topic uses LogAppendTime."""
        return bool(self.topic.config.message_timestamp_type == _LOG_APPEND_TIME)

    @property
    def closed(self) -> bool:
        """Whether the log is closed."""
        return self._closed is not None

    @property
    def high_watermark_known(self) -> bool:
        """Whether no broker can have reported a higher one; False until a state is loaded."""
        return self.view is not None and self.view.high_watermark_known

    def is_fresh(self, view: LogState) -> bool:
        """Whether the log start and the topic's existence were notified or verified within the poll interval."""
        return self.subscription.is_subscribed or self.loop.time() - view.verified_at < self.poll_s

    def with_view(self, on_view: OnView) -> None:
        """Load the state, then call with it or with the failure. Never calls before it returns."""
        if self._closed is not None:
            self.loop.call_soon(self.guarded, on_view, self._closed)
            return
        self._waiting.append(on_view)
        if self._loading is None:
            self._loading = self.loop.create_task(self._load())

    async def load(self) -> LogState:
        """The state, loaded if necessary. Raises UnknownTopicOrPartition, StoreUnavailable."""
        if self.view is not None:
            return self.view
        future: asyncio.Future[LogState | Exception] = self.loop.create_future()
        self.with_view(_into(future))
        loaded = await future
        if isinstance(loaded, Exception):
            raise loaded
        return loaded

    async def refresh(self) -> LogState:
        """The state, verified after the call. Raises UnknownTopicOrPartition, StoreUnavailable."""
        for _ in range(_LOAD_TRIES):
            future: asyncio.Future[Exception | None] = self.loop.create_future()
            self.refresher.refresh(_into(future))
            failure = await future
            if failure is not None:
                raise failure
            if self.view is not None:
                return self.view
        raise StoreUnavailable("the view of the log does not last")

    async def _load(self) -> None:
        outcome: LogState | Exception = StoreUnavailable("the view of the log does not last")
        try:
            for _ in range(_LOAD_TRIES):
                node = self.lanes.bind()
                failover_epoch = await self._logs.failover_epochs.ready(node)
                voids = self._voids
                try:
                    view, own, last = await load_view(self.store, self.keys, failover_epoch, self.writer.name)
                    own += await self._entries_at(self._appends.unresolved.bases_below(view.snapshot_offset))
                except StoreUnavailable as error:
                    outcome = error
                    if self._is_as(voids, node, failover_epoch):
                        break  # the command was refused; the connection is intact
                    continue
                await self.high_watermark.load(view)
                self._logs.failover_epochs.raise_floor(view.failover_epoch)
                if self._is_as(voids, node, failover_epoch):
                    self._install(view, own, last)
                    outcome = view
                    break
        except (StoreUnavailable, UnknownTopicOrPartition, KafkaStorageError) as error:
            outcome = error
        except Exception as error:
            logger.exception("log_state_not_loaded", log=self.keys.log)
            outcome = StoreUnavailable(str(error))
        self._loading = None
        self._notify_waiting(outcome)
        if not isinstance(outcome, StoreUnavailable):
            self.subscription.notify()

    def _notify_waiting(self, outcome: LogState | Exception) -> None:
        waiting, self._waiting = self._waiting, []
        for on_view in waiting:
            self.guarded(on_view, outcome)

    @property
    def voids(self) -> int:
        """How often the state became void; callers compare it to detect that a reply is out of date."""
        return self._voids

    def _is_as(self, voids: int, node: Node, failover_epoch: int) -> bool:
        """Whether data read since then is still valid."""
        return self._voids == voids and self._logs.failover_epochs.number_at(node) == failover_epoch

    async def _entries_at(self, bases: list[int]) -> list[Entry]:
        """Those of `bases` (entries of unknown outcome below the snapshot) that are in the log."""
        entries: list[Entry] = []
        for base in bases:
            entry_id = f"{base}-1"
            found = await self.store.read_at_owner("XRANGE", self.keys.log, entry_id, entry_id)
            entries += parse_entries(found)[0]
        return entries

    def _install(self, view: LogState, own: list[Entry], last: list[Entry]) -> None:
        view.verified_at = self.loop.time()
        self.view = view
        self.pages.clear()
        self.pages.insert(last)
        self.progress.reset()
        self.high_watermark.installed(view)
        for entry in own:
            self._appends.found(entry)
        self._appends.discard_unresolved_below(view.end)
        if view.stray is not None:
            self.found_stray(view, view.stray)
        elif self.stray is not None:
            logger.info("log_without_stray_entry", log=self.keys.log, end=view.end)
            self._no_stray()

    def found_stray(self, view: LogState, stray: StrayEntry) -> None:
        """Block appends and reads at the end until the log is repaired. Logged once for each stray entry."""
        view.stray = stray
        if self.stray is None or self.stray.entry_id != stray.entry_id or self.stray.removed != stray.removed:
            logger.error("log_stray_entry", log=self.keys.log, end=view.end, reason=str(stray))
            self.stray = stray
            self._logs.stray_logs.add(self)
            self.subscription.notify()

    def _no_stray(self) -> None:
        self.stray = None
        self._logs.stray_logs.discard(self)

    def void(self, reason: str) -> None:
        """Discard the state and the caches that depend on it: it may be wrong from now on."""
        self._voids += 1
        if self.view is not None:
            logger.debug("log_state_invalidated", log=self.keys.log, reason=reason)
            self.view = None
            self.pages.clear()
            self._reads.forget()

    def gone(self) -> UnknownTopicOrPartition:
        """Void the state of a deleted partition; returns the error for its callers."""
        self.void("deleted")
        self.subscription.notify()
        return UnknownTopicOrPartition()

    def close(self, reason: Exception) -> None:
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

    def appended(self, view: LogState, entry: Entry) -> None:
        """This broker's entry is in the log and in the state; `Appends` notifies the listeners."""
        self.pages.append(entry)
        self.progress.appended(view, entry)
        if self.durability.immediate:
            view.high_watermark = view.end
        else:
            self.high_watermark.prove()

    def found(self, view: LogState, entries: list[Entry], log_start: int, local_start: int) -> None:
        """Apply a refresh: the entries that follow the state, the log start and the local start."""
        changed, now_ms = log_start != view.log_start, self.store.clock.now_ms()
        view.log_start, view.local_start = log_start, max(log_start, local_start)  # a restore lowers them
        for entry in entries:
            view.apply(entry, now_ms)
            self.pages.append(entry)
            self._appends.found(entry)
        if entries:
            self._appends.discard_unresolved_below(view.end)
            self.high_watermark.found(view)
        if changed or (entries and self.durability.immediate):
            self.subscription.notify()

    def guarded(self, callback: Callable[..., Any], *args: Any) -> None:
        """Call; log an exception, so that one failing listener does not affect the others."""
        try:
            callback(*args)
        except Exception:
            logger.exception("log_callback_failed", log=self.keys.log)


def _into(future: asyncio.Future[Outcome]) -> Callable[[Outcome], None]:
    """A callback that sets the result of `future`, unless it was cancelled."""

    def done(outcome: Outcome) -> None:
        if not future.done():
            future.set_result(outcome)

    return done
