"""Read whole batches from the one that contains an offset: from the tail cache, by XRANGE, or from the archive.

Base offset and leader epoch are written when batches are served. Concurrent reads of one offset share one XRANGE. If
the cached state is old, the requested records may have been trimmed: a gap before the first entry counts only after a
refresh.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import structlog

from tidegate.errors import KafkaError, KafkaStorageError, OffsetOutOfRange, StoreUnavailable
from tidegate.log.archive_reads import ArchivedRead
from tidegate.log.entries import Buffer, Entry, parse_entries, until_torn
from tidegate.log.loading import REPLY_BYTES, page_entries
from tidegate.store.batching import fail_waiter
from tidegate.store.link import Arg
from tidegate.store.outcome import Failure, Ok, Unknown

if TYPE_CHECKING:
    from tidegate.log.append_subscription import AppendSubscription
    from tidegate.log.archive_reads import ArchiveReads
    from tidegate.log.cached_log import CachedLog
    from tidegate.log.log_refresh import LogRefresher
    from tidegate.log.state import LogState

_TRIES: Final = 4
_READ_BYTES_MIN: Final = 1 << 20
_KEPT_BYTES_MAX: Final = 64 << 10
_ARCHIVE_ENTRY_BYTES: Final = 65_536.0
_BATCHES_MAX: Final = 16_384
"""A slice ends with the entry that reaches it: about 20 ms of the event loop, and 1 MiB of the smallest batches."""

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Slice:
    """Whole batches, ready to send; `end_offset` is the next offset after them (the requested one if empty).

    `bases` are the base offsets of their entries.
    """

    buffers: list[Buffer]
    size: int
    end_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    bases: Sequence[int] = ()
    aborted: Sequence[tuple[int, int]] = ()
    """(producer id, first offset) of the aborted transactions with records in it; only of committed reads."""


OnSlice = Callable[[Slice | KafkaError], None]


@dataclass(slots=True)
class _Asked:
    offset: int
    bytes_max: int
    at_least_one: bool
    on_done: OnSlice
    committed: bool
    refreshed: bool = False
    tries: int = 0


class Reads:
    """The reads of one partition on this broker."""

    __slots__ = (
        "_archive", "_archive_entry_bytes", "_fetching", "_last", "_last_key", "_log", "_refresher", "_subscription",
    )  # fmt: skip

    def __init__(
        self, log: CachedLog, refresher: LogRefresher, subscription: AppendSubscription, archive: ArchiveReads
    ) -> None:
        self._log = log
        self._refresher = refresher
        self._subscription = subscription
        self._archive = archive
        self._fetching: dict[int, list[_Asked]] = {}
        self._last_key: tuple[int, int, bool, bool, int, int] | None = None
        self._last: Slice | None = None
        self._archive_entry_bytes = _ARCHIVE_ENTRY_BYTES

    @property
    def is_idle(self) -> bool:
        """Whether no read is under way."""
        return not self._fetching

    def read(self, offset: int, bytes_max: int, at_least_one: bool, on_done: OnSlice, committed: bool) -> None:
        """See PartitionLog.read."""
        self._go_on(_Asked(offset, bytes_max, at_least_one, on_done, committed))

    def forget(self) -> None:
        """Drop the cached slice: the state is void."""
        self._last = self._last_key = None

    def _go_on(self, asked: _Asked) -> None:
        state = self._log.state
        if state is None:
            self._log.with_state(lambda loaded: self._with_state(asked, loaded))
            return
        offset = asked.offset
        if offset < state.log_start and not asked.refreshed:
            self._refresh(asked)  # a restore may have lowered it
        elif offset < state.log_start:
            asked.on_done(OffsetOutOfRange(f"{offset} is below the log start offset {state.log_start}"))
        elif offset >= (state.last_stable_offset if asked.committed else state.high_watermark):
            if offset <= state.end and state.stray is None and (asked.refreshed or self._subscription.is_subscribed):
                asked.on_done(_slice([], 0, offset, state))
            else:
                self._read_at_end(state, asked)
        elif not asked.refreshed and not self._is_fresh(state):
            self._refresh(asked)  # the log may have been trimmed or deleted elsewhere
        else:
            found = self._cached(state, asked)
            if found is not None:
                asked.on_done(found)
            elif offset < state.local_start:
                self._fetch_archive(state, asked)
            else:
                self._fetch(state, asked)

    def _is_fresh(self, state: LogState) -> bool:
        """Whether the log start and the topic's existence were notified or verified within the poll interval."""
        return self._subscription.is_subscribed or self._log.loop.time() - state.verified_at < self._log.poll_s

    def _read_at_end(self, state: LogState, asked: _Asked) -> None:
        offset = asked.offset
        if not asked.refreshed and (
            offset > state.end or state.stray is not None or not self._subscription.is_subscribed
        ):
            self._refresh(asked)
        elif offset > state.end:
            asked.on_done(OffsetOutOfRange(f"{offset} is above the log end offset {state.end}"))
        elif offset == state.end and state.stray is not None and not state.stray.removed:
            asked.on_done(state.stray)
        else:
            asked.on_done(_slice([], 0, offset, state))

    def _with_state(self, asked: _Asked, loaded: LogState | KafkaError) -> None:
        try:
            if isinstance(loaded, KafkaError):
                asked.on_done(loaded)
            else:
                self._go_on(asked)
        except Exception:  # noqa: BLE001 - logged
            fail_waiter(asked.on_done, _failed_read())

    def _refresh(self, asked: _Asked) -> None:
        def refreshed(failure: KafkaError | None) -> None:
            asked.refreshed = True
            try:
                if failure is None:
                    self._go_on(asked)
                else:
                    self._failed(asked, failure)
            except Exception:  # noqa: BLE001 - logged
                fail_waiter(asked.on_done, _failed_read())

        self._refresher.refresh(refreshed)

    def _failed(self, asked: _Asked, failure: KafkaError) -> None:
        asked.tries += 1
        if isinstance(failure, StoreUnavailable) and asked.tries < _TRIES and self._log.lanes.up:
            self._go_on(asked)
        else:
            asked.on_done(failure)

    # -- the cache

    def _cached(self, state: LogState, asked: _Asked) -> Slice | None:
        key = (
            asked.offset, asked.bytes_max, asked.at_least_one, asked.committed, state.high_watermark, state.log_start,
        )  # fmt: skip
        if key == self._last_key and self._last is not None:
            return self._last
        pages = self._log.pages
        found = pages.find(asked.offset)
        if found is None:
            return None

        def entries() -> Iterator[Entry]:
            page, place = found
            while True:
                pages.touch(page)
                yield from page.entries[place:]
                following = pages.follow(page)
                if following is None:
                    return
                page, place = following, 0

        if asked.committed:
            gathered = _committed(state, entries(), asked)
        else:
            gathered = gather(state, entries(), asked.offset, asked.bytes_max, asked.at_least_one, state.high_watermark)
        if gathered.size <= _KEPT_BYTES_MAX:  # many consumers at the tail request the same slice
            self._last_key, self._last = key, gathered
        return gathered

    # -- reads from Redis

    def _fetch(self, state: LogState, asked: _Asked) -> None:
        waiting = self._fetching.get(asked.offset)
        if waiting is not None:
            waiting.append(asked)
            return
        count = page_entries(self._archive_entry_bytes, max(_READ_BYTES_MIN, min(asked.bytes_max, REPLY_BYTES)))
        command: list[Arg] = ["XRANGE", self._log.keys.log, f"{asked.offset}-0", "+", "COUNT", count]
        if state.transactions.aborted:
            self._fetch_of_version(state, asked.offset, command)
        else:
            self._log.lanes.read(command, lambda outcome: self._fetched(state, asked.offset, outcome))
        self._fetching[asked.offset] = [asked]

    def _fetch_of_version(self, state: LogState, offset: int, command: list[Arg]) -> None:
        """Read, and verify the log version: a later stream may lack the markers of the state's aborted transactions."""
        log = self._log

        def answered(replies: list[Any], failure: Failure | None) -> None:
            if failure is None and log.state is state and int(replies[1] or 0) != state.log_version:
                log.void("the stream is another one")
            self._fetched(state, offset, failure or Ok(replies[0]))

        log.lanes.read_all([command, ["HGET", log.keys.meta, "log_version"]], answered)

    def _fetched(self, state: LogState, offset: int, outcome: Ok | Failure) -> None:
        """Serve the entries of an XRANGE; if none starts at the offset, also read the entry that contains it."""
        if isinstance(outcome, Failure):
            self._fetch_failed(state, offset, outcome)
            return
        if self._log.state is not state:
            self._arrived(state, offset, None, [])
            return
        entries = until_torn(*parse_entries(outcome.value))
        if entries and entries[0].base == offset:
            self._arrived(state, offset, None, entries)
        else:
            self._fetch_holder(state, offset, f"{offset}-1", entries)

    def _fetch_holder(self, state: LogState, offset: int, last_id: str, entries: list[Entry]) -> None:
        command: list[Arg] = ["XREVRANGE", self._log.keys.log, last_id, "-", "COUNT", 1]
        self._log.lanes.read(command, lambda outcome: self._held(state, offset, outcome, entries))

    def _held(self, state: LogState, offset: int, outcome: Ok | Failure, entries: list[Entry]) -> None:
        if isinstance(outcome, Failure):
            self._fetch_failed(state, offset, outcome)
            return
        holders, strays = parse_entries(outcome.value)
        if strays and strays[0].takes_offset:
            self._arrived(state, offset, strays[0], [])
        elif strays:  # it takes no offset: the entry below contains this one
            self._fetch_holder(state, offset, f"({outcome.value[0][0].decode()}", entries)
        else:
            self._arrived(state, offset, None, [entry for entry in holders if entry.end > offset] + entries)

    def _fetch_failed(self, state: LogState, offset: int, failure: Failure) -> None:
        if not isinstance(failure, Unknown):  # refused: the state may be from another server
            self._log.void(failure.text)
        self._deliver(state, offset, failure.error, [])

    def _arrived(self, state: LogState, offset: int, failure: KafkaError | None, entries: list[Entry]) -> None:
        if failure or not entries or entries[0].base <= offset:
            self._deliver(state, offset, failure, entries)
        else:  # a hole left by compaction, or trimmed elsewhere
            self._refresher.refresh(lambda failure: self._deliver(state, offset, failure, entries))

    def _deliver(self, state: LogState, offset: int, failure: KafkaError | None, entries: list[Entry]) -> None:
        waiting = self._fetching.pop(offset, [])
        current = self._log.state is state
        trimmed = bool(entries) and entries[0].base > offset and offset < state.local_start
        if current and not failure:
            try:
                entries = [entry for entry in entries if entry.base < state.end]
                self._log.pages.insert(entries)
                if entries:  # the entry size of old data may differ from the current one
                    self._archive_entry_bytes = sum(entry.size for entry in entries) / len(entries)
            except Exception:
                logger.exception("read_not_cached", log=self._log.keys.log)
                failure = _failed_read()
        for asked in waiting:
            try:
                if isinstance(failure, KafkaError):
                    self._failed(asked, failure)
                elif not current or not entries or trimmed or offset < state.log_start:
                    asked.tries += 1
                    if asked.tries < _TRIES:
                        asked.refreshed = False
                        self._refresh(asked)  # trimmed, deleted, or the state changed
                    else:
                        asked.on_done(StoreUnavailable("the log does not hold the offset it should"))
                else:
                    asked.on_done(_gathered(state, entries, asked))
            except Exception:  # noqa: BLE001 - logged; the other reads are answered
                fail_waiter(asked.on_done, _failed_read())

    # -- the archive

    def _fetch_archive(self, state: LogState, asked: _Asked) -> None:
        limit = min(state.local_start, state.last_stable_offset if asked.committed else state.high_watermark)

        def arrived(found: ArchivedRead | KafkaError) -> None:
            try:
                go_on(found)
            except Exception:  # noqa: BLE001 - logged
                fail_waiter(asked.on_done, _failed_read())

        def go_on(found: ArchivedRead | KafkaError) -> None:
            current = self._log.state
            if isinstance(found, KafkaStorageError) and not asked.refreshed:
                self._refresh(asked)  # the log start may have passed the offset
            elif isinstance(found, KafkaError):
                self._failed(asked, found)
            elif current is None or asked.offset < current.log_start:
                self._go_on(asked)
            elif found.size or found.end_offset == asked.offset:
                found_slice = _slice(found.buffers, found.size, found.end_offset, current)
                asked.on_done(_with_aborted(found_slice, current, asked.offset) if asked.committed else found_slice)
            else:
                asked.offset = found.end_offset
                self._go_on(asked)

        self._archive.read(asked.offset, limit, asked.bytes_max, asked.at_least_one, arrived)


def _failed_read() -> KafkaError:
    """The answer to a read that raised: its caller waits for one."""
    return StoreUnavailable("the read failed")


def _slice(buffers: list[Buffer], size: int, end_offset: int, state: LogState, bases: Sequence[int] = ()) -> Slice:
    return Slice(buffers, size, end_offset, state.high_watermark, state.last_stable_offset, state.log_start, bases)


def _with_aborted(found: Slice, state: LogState, offset: int) -> Slice:
    """Name the aborted transactions in a slice that was read from `offset`."""
    if not found.size or not state.transactions.aborted:
        return found
    return replace(found, aborted=state.transactions.aborted_between(offset, found.end_offset))


def _gathered(state: LogState, entries: Iterable[Entry], asked: _Asked) -> Slice:
    if asked.committed:
        return _committed(state, entries, asked)
    return gather(state, entries, asked.offset, asked.bytes_max, asked.at_least_one, state.high_watermark)


def _committed(state: LogState, entries: Iterable[Entry], asked: _Asked) -> Slice:
    limit = state.last_stable_offset
    found = gather(state, entries, asked.offset, asked.bytes_max, asked.at_least_one, limit)
    return _with_aborted(found, state, asked.offset)


def gather(
    state: LogState, entries: Iterable[Entry], offset: int, bytes_max: int, at_least_one: bool, limit: int
) -> Slice:
    """Whole batches from the one that contains `offset`, below `limit`, within `bytes_max`; of many, the first ones."""
    buffers: list[Buffer] = []
    bases: list[int] = []
    size, end_offset, batch_count = 0, offset, 0
    for entry in entries:
        if entry.base >= limit or batch_count >= _BATCHES_MAX:
            break
        batch_count += len(entry.ends)
        epoch = state.epoch_at(entry.base)
        if entry.base >= offset and entry.end <= limit and size + entry.size <= bytes_max:
            buffers.extend(entry.whole(epoch))
            bases.append(entry.base)
            size += entry.size
            end_offset = entry.end
            continue
        pieces = entry.served(epoch)
        for i in range(bisect_right(entry.ends, offset), len(pieces)):
            batch_size = len(entry.batches[i])
            if entry.ends[i] > limit or (size + batch_size > bytes_max and (size or not at_least_one)):
                return _slice(buffers, size, end_offset, state, bases)
            if not bases or bases[-1] != entry.base:
                bases.append(entry.base)
            buffers.extend(pieces[i])
            size += batch_size
            end_offset = entry.ends[i]
    return _slice(buffers, size, end_offset, state, bases)
