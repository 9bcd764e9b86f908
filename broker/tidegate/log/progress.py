"""Data written beside a log: estimates, time index, proved high watermark, each second; and the producer snapshot.

What a fail-over lost is written each second until Redis has it.

No append waits for these writes, and they may be lost with the broker: estimates are approximate, the time index
only shortens a search, a stored high watermark may lag, and an older snapshot only lengthens the next load.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from tidegate.log import open_transactions
from tidegate.log.open_transactions import Aborted
from tidegate.log.producers_table import PRODUCER_ID_EXPIRATION_MS, ProducerState, to_text
from tidegate.store.link import Arg
from tidegate.store.outcome import Failure
from tidegate.store.scripts import Script
from tidegate.store.tasks import TaskSet

if TYPE_CHECKING:
    from tidegate.log.cached_log import CachedLog
    from tidegate.log.entries import Entry
    from tidegate.log.state import LogState

NOTE_PROGRESS = Script("log/note_progress")
NOTE_TRUNCATION = Script("log/note_truncation")
SAVE_PRODUCERS = Script("log/save_producers")

T = TypeVar("T")

_INDEX_BYTES: Final = 1 << 20
SNAPSHOT_BYTES: Final = 8 << 20
SNAPSHOT_ENTRIES: Final = 512
"""Appended entries or bytes after which the producer table is saved, to bound the next load."""
_INDEX_ENTRIES: Final = 64
_PRODUCERS_CHEAP: Final = 1_000
_PRODUCERS_PER_SLICE: Final = 500
"""Producer states formatted before the event loop runs other work: about 3 ms."""


class _Snapshot(NamedTuple):
    """The state of a log as of now; its items are immutable."""

    head: list[Arg]
    """The first arguments of the script."""
    aborted: list[Aborted]
    producers: list[tuple[int, ProducerState]]


class Progress:
    """What one broker appended to one log and has not reported yet."""

    __slots__ = (
        "_base", "_batches", "_bytes", "_formatting", "_log", "_mark_dirty", "_saving", "_since_index_bytes",
        "_since_index_entries", "_timestamp", "_truncation",
    )  # fmt: skip

    def __init__(self, log: CachedLog, mark_dirty: Callable[[], None]) -> None:
        self._log = log
        self._mark_dirty = mark_dirty
        self._saving = False
        self._formatting = TaskSet()
        self._bytes = self._batches = 0
        self._truncation: tuple[int, int, int] | None = None
        self.reset()

    @property
    def is_idle(self) -> bool:
        """Whether no write is under way, and no truncation has to be written; what else is pending marks the log."""
        return not self._saving and self._truncation is None

    def reset(self) -> None:
        """A new state was loaded: discard the pending index entries of the old one."""
        self._base = self._timestamp = -1
        self._since_index_bytes = self._since_index_entries = 0

    def appended(self, state: LogState, entry: Entry) -> None:
        """This broker's entry is in the log and in the state."""
        self._bytes += entry.size
        self._batches += len(entry.batches)
        self._base, self._timestamp = entry.base, state.max_timestamp
        self._since_index_bytes += entry.size
        self._since_index_entries += 1
        self._mark_dirty()
        rarer = (
            1 + (len(state.producers) + len(state.transactions.aborted)) // _PRODUCERS_CHEAP
        )  # a large table is saved less often
        if state.unsaved_bytes >= SNAPSHOT_BYTES * rarer or state.unsaved_entries >= SNAPSHOT_ENTRIES * rarer:
            self.save(state)

    def note_truncation(self, end: int, lost_records: int, failover_epoch: int) -> None:
        """A fail-over left the log with this end, and without records that were known here."""
        self._truncation = (end, lost_records, failover_epoch)
        self._mark_dirty()

    def write(self) -> None:
        """Write the pending data; called about once a second."""
        if self._truncation is not None:
            self._write_truncation(self._truncation)
        base, timestamp = "", -1
        indexed = self._since_index_bytes >= _INDEX_BYTES or self._since_index_entries >= _INDEX_ENTRIES
        if self._log.state is not None and indexed and self._base >= 0:
            base, timestamp = f"{self._base:019d}", self._timestamp
            self._since_index_bytes = self._since_index_entries = 0
        keys = self._log.keys
        args: list[Arg] = [self._bytes, self._batches, base, timestamp, *self._proved()]
        self._bytes = self._batches = 0
        self._log.store.send_script(NOTE_PROGRESS, [keys.meta, keys.times], args, _ignore)

    def _write_truncation(self, truncation: tuple[int, int, int]) -> None:
        def written(reply: Any) -> None:
            if isinstance(reply, Failure):
                self._mark_dirty()  # the next sweep writes it again
            elif self._truncation == truncation:
                self._truncation = None

        self._log.store.send_script(NOTE_TRUNCATION, [self._log.keys.meta], list(truncation), written)

    def _proved(self) -> tuple[Arg, Arg]:
        """The high watermark to be stored, and the failover epoch under which it was proved."""
        state = self._log.state
        if state is None or self._log.durability.immediate or state.high_watermark <= state.stored_high_watermark:
            return "", ""
        state.stored_high_watermark = state.high_watermark
        return state.high_watermark, state.failover_epoch

    def save(self, state: LogState) -> None:
        """Write the producer table as of the state's end."""
        if self._saving:
            return
        self._saving = True
        state.unsaved_bytes = state.unsaved_entries = 0

        def saved(_: Any) -> None:
            self._saving = False

        keys, snapshot = self._log.keys, self._snapshot(state)

        def send(args: list[Arg]) -> None:
            self._log.store.send_script(SAVE_PRODUCERS, [keys.producers, keys.meta, keys.log], args, saved)

        if len(snapshot.producers) <= _PRODUCERS_PER_SLICE and len(snapshot.aborted) <= open_transactions.PER_SLICE:
            send(snapshot.head + _aborted_field(_aborted_texts(snapshot.aborted)) + _texts(snapshot.producers))
            return

        async def format_and_send() -> None:
            try:
                send(await _formatted(snapshot))
            except BaseException:
                self._saving = False
                raise

        self._formatting.start(format_and_send())

    async def save_now(self, state: LogState) -> None:
        """As `save`, and wait for the reply. Raises StoreUnavailable, UnknownTopicOrPartition."""
        keys = self._log.keys
        args = await _formatted(self._snapshot(state))
        await self._log.store.run(SAVE_PRODUCERS, [keys.producers, keys.meta, keys.log], *args)

    def _snapshot(self, state: LogState) -> _Snapshot:
        clock = self._log.store.clock
        if clock.agrees:
            expired_ms = clock.now_ms() - PRODUCER_ID_EXPIRATION_MS
            for producer_id, producer in list(state.producers.items()):
                if producer.last_active_ms < expired_ms and producer.transaction_start < 0:
                    del state.producers[producer_id]
        state.transactions.discard_below(state.log_start)
        head: list[Arg] = [state.failover_epoch, state.end, state.max_timestamp, state.max_timestamp_base]
        return _Snapshot(head, list(state.transactions.aborted), list(state.producers.items()))


def _texts(producers: Sequence[tuple[int, ProducerState]]) -> list[Arg]:
    return [text for producer_id, producer in producers for text in (str(producer_id), to_text(producer))]


def _aborted_texts(aborted: Sequence[Aborted]) -> list[str]:
    return [open_transactions.to_text(one) for one in aborted]


def _aborted_field(texts: list[str]) -> list[Arg]:
    return ["aborted", ",".join(texts)] if texts else []


async def _formatted(snapshot: _Snapshot) -> list[Arg]:
    """All arguments of the script, in slices between which the event loop runs other work."""
    texts: list[str] = []
    for aborted in _slices(snapshot.aborted, open_transactions.PER_SLICE):
        texts += _aborted_texts(aborted)
        await asyncio.sleep(0)
    args = snapshot.head + _aborted_field(texts)
    for producers in _slices(snapshot.producers, _PRODUCERS_PER_SLICE):
        args += _texts(producers)
        await asyncio.sleep(0)
    return args


def _slices(items: Sequence[T], count: int) -> Iterator[Sequence[T]]:
    return (items[start : start + count] for start in range(0, len(items), count))


def _ignore(_: Any) -> None:
    """Discard the reply: estimates may be lost."""
