"""Data written beside a log: estimates, time index, proved high watermark, each second; and the producer snapshot.

No append waits for these writes, and they may be lost with the broker: estimates are approximate, the time index
only shortens a search, a stored high watermark may lag, and an older snapshot only lengthens the next load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tidegate.log.producers_table import to_text
from tidegate.store.link import Arg
from tidegate.store.scripts import Script

if TYPE_CHECKING:
    from tidegate.log.entries import Entry
    from tidegate.log.partition import PartitionLog
    from tidegate.log.state import LogState

NOTE_PROGRESS = Script("log/note_progress")
SAVE_PRODUCERS = Script("log/save_producers")

_INDEX_BYTES: Final = 1 << 20
SNAPSHOT_BYTES: Final = 8 << 20
SNAPSHOT_ENTRIES: Final = 512
"""Appended entries or bytes after which the producer table is saved, to bound the next load."""
_INDEX_ENTRIES: Final = 64
_PRODUCERS_CHEAP: Final = 1_000


class Progress:
    """What one broker appended to one log and has not reported yet."""

    __slots__ = (
        "_base", "_batches", "_bytes", "_dirty", "_log", "_saving", "_since_index_bytes", "_since_index_entries",
        "_timestamp",
    )  # fmt: skip

    def __init__(self, log: PartitionLog, dirty: set[PartitionLog]) -> None:
        self._log = log
        self._dirty = dirty
        self._saving = False
        self._bytes = self._batches = 0
        self.reset()

    def reset(self) -> None:
        """A new state was loaded: discard the pending index entries of the old one."""
        self._base = self._timestamp = -1
        self._since_index_bytes = self._since_index_entries = 0

    def appended(self, view: LogState, entry: Entry) -> None:
        """This broker's entry is in the log and in the state."""
        self._bytes += entry.size
        self._batches += len(entry.batches)
        self._base, self._timestamp = entry.base, view.max_timestamp
        self._since_index_bytes += entry.size
        self._since_index_entries += 1
        self._dirty.add(self._log)
        rarer = 1 + len(view.producers) // _PRODUCERS_CHEAP  # a large table is saved less often
        if view.unsaved_bytes >= SNAPSHOT_BYTES * rarer or view.unsaved_entries >= SNAPSHOT_ENTRIES * rarer:
            self.save(view)

    def write(self) -> None:
        """Write the pending data; called about once a second."""
        base, timestamp = "", -1
        indexed = self._since_index_bytes >= _INDEX_BYTES or self._since_index_entries >= _INDEX_ENTRIES
        if self._log.view is not None and indexed and self._base >= 0:
            base, timestamp = f"{self._base:019d}", self._timestamp
            self._since_index_bytes = self._since_index_entries = 0
        keys = self._log.keys
        args: list[Arg] = [self._bytes, self._batches, base, timestamp, *self._proved()]
        self._bytes = self._batches = 0
        self._log.store.send_script(NOTE_PROGRESS, [keys.meta, keys.times], args, _ignore)

    def _proved(self) -> tuple[Arg, Arg]:
        """The high watermark to be stored, and the failover epoch under which it was proved."""
        view = self._log.view
        if view is None or self._log.durability.immediate or view.high_watermark <= view.stored_high_watermark:
            return "", ""
        view.stored_high_watermark = view.high_watermark
        return view.high_watermark, view.failover_epoch

    def save(self, view: LogState) -> None:
        """Write the producer table as of the state's end."""
        if self._saving:
            return
        self._saving = True
        offset = view.end
        view.unsaved_bytes = view.unsaved_entries = 0

        def saved(reply: Any) -> None:
            self._saving = False
            if not isinstance(reply, Exception) and reply[0] == 0 and reply[1] == 1:
                view.snapshot_offset = max(view.snapshot_offset, offset)

        keys = self._log.keys
        self._log.store.send_script(SAVE_PRODUCERS, [keys.producers, keys.meta], self._snapshot(view), saved)

    async def save_now(self, view: LogState) -> None:
        """As `save`, and wait for the reply. Raises StoreUnavailable, UnknownTopicOrPartition."""
        keys, offset = self._log.keys, view.end
        await self._log.store.run(SAVE_PRODUCERS, [keys.producers, keys.meta], *self._snapshot(view))
        view.snapshot_offset = max(view.snapshot_offset, offset)

    def _snapshot(self, view: LogState) -> list[Arg]:
        clock = self._log.store.clock
        if clock.agrees:
            expired_ms = clock.now_ms() - self._log.settings.producer_id_expiration_ms
            for producer_id in [p for p, state in view.producers.items() if state.last_active_ms < expired_ms]:
                del view.producers[producer_id]
        args: list[Arg] = [view.failover_epoch, view.end, view.max_timestamp, view.max_timestamp_base]
        for producer_id, state in view.producers.items():
            args += (str(producer_id), to_text(state))
        return args


def _ignore(_: Any) -> None:
    """Discard the reply: estimates may be lost."""
