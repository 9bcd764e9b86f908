"""Searches in a log: by timestamp, by largest timestamp, by leader epoch (ListOffsets, OffsetForLeaderEpoch).

The part below the local start is searched in the archive first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from tidegate.log import archive_positions
from tidegate.log.entries import Entry, read_header
from tidegate.log.loading import entry_holding, pages
from tidegate.log.timestamp_search import search_records
from tidegate.records.batch import Batch
from tidegate.records.record import iter_heads

if TYPE_CHECKING:
    from tidegate.log.archive_reads import ArchiveReads
    from tidegate.log.cached_log import CachedLog
    from tidegate.log.state import LogState


_NO_EPOCH: Final = -1


async def offset_for_timestamp(log: CachedLog, archive: ArchiveReads, timestamp_ms: int) -> tuple[int, int] | None:
    """The first record at or after `timestamp_ms` in the first batch whose largest timestamp reaches it.

    The time index gives the entry where the scan starts: up to there every timestamp is smaller.
    """
    state = await log.refresh()
    if state.max_timestamp < timestamp_ms:
        return None
    if state.log_start < state.local_start:
        archived = await archive_positions.first_record_at(log, archive, state, timestamp_ms)
        if archived is not None:
            return archived
    start = await _indexed_below(log, timestamp_ms)
    async for entries in pages(log.store, log.keys, start, state.mean_entry_bytes):
        for entry in entries:
            found = await search_records(entry.batches, _first_at, entry, timestamp_ms, state.local_start)
            if found is not None:
                return found if found[0] < state.high_watermark else None
    return None


async def max_timestamp(log: CachedLog, archive: ArchiveReads) -> tuple[int, int] | None:
    """The first record with the largest timestamp, between log start and log end."""
    state = await log.refresh()
    if state.log_start >= state.high_watermark or state.max_timestamp < 0:
        return None
    local = await _largest_local(log, state)
    if state.log_start == state.local_start:
        return local
    archived_ms = await archive_positions.largest_timestamp(log, archive, state)
    if archived_ms < 0 or (local is not None and local[1] > archived_ms):
        return local
    return await archive_positions.first_record_at(log, archive, state, archived_ms)


async def _largest_local(log: CachedLog, state: LogState) -> tuple[int, int] | None:
    """The same for the part at and above the local start."""
    if state.max_timestamp_base >= state.local_start:
        async for entries in pages(log.store, log.keys, state.max_timestamp_base, state.mean_entry_bytes):
            found = await search_records(
                entries[0].batches, _first_at, entries[0], state.max_timestamp, state.local_start
            )
            if found is not None and found[0] < state.high_watermark:
                return found
            break
    largest: tuple[int, Entry] | None = None  # trimmed, or above the high watermark: search the rest
    base = await _base_holding(log, state.local_start)
    async for entries in pages(log.store, log.keys, base, state.mean_entry_bytes):
        for entry in entries:
            if state.local_start < entry.end <= state.high_watermark:
                timestamp = await search_records(entry.batches, _largest_of, entry, state.local_start)
                if largest is None or timestamp > largest[0]:
                    largest = timestamp, entry
    if largest is None:
        return None
    return await search_records(largest[1].batches, _first_at, largest[1], largest[0], state.local_start)


def epoch_end(state: LogState, epoch: int) -> tuple[int, int]:
    """(leader epoch, end offset): the largest epoch at or below the requested one, and the start of the next."""
    if epoch == _NO_EPOCH or epoch > state.leader_epoch:
        return -1, -1
    if epoch == state.leader_epoch:
        return epoch, state.end
    earlier = [i for i, (known, _) in enumerate(state.epochs) if known <= epoch]
    if not earlier:
        return epoch, state.epochs[0][1]
    at = earlier[-1]
    return state.epochs[at][0], state.epochs[at + 1][1] if at + 1 < len(state.epochs) else state.end


async def _indexed_below(log: CachedLog, timestamp_ms: int) -> int:
    """The highest indexed base below which no batch reaches the timestamp."""
    found: list[Any] = await log.store.read(
        "ZREVRANGEBYSCORE", log.keys.times, f"({timestamp_ms}", "-inf", "LIMIT", 0, 1
    )
    return int(found[0]) if found else 0


async def _base_holding(log: CachedLog, offset: int) -> int:
    found = await entry_holding(log.store, log.keys, offset)
    return found.base if found is not None else offset


def _largest_of(entry: Entry, start: int) -> int:
    """The largest timestamp of an entry's records at and above `start`."""
    if entry.base >= start:
        return entry.max_timestamp
    return max((timestamp for offset, timestamp in _records(entry) if offset >= start), default=-1)  # compacted


def _records(entry: Entry) -> Iterator[tuple[int, int]]:
    """(offset, timestamp) of each record of an entry."""
    for batch, base in zip(entry.batches, (entry.base, *entry.ends), strict=False):
        for head in iter_heads(Batch.parse(batch)):
            yield base + head.offset_delta, head.timestamp


def _first_at(entry: Entry, timestamp_ms: int, start: int) -> tuple[int, int] | None:
    """The first record of an entry at or after a time, searched within its batch."""
    if entry.max_timestamp < timestamp_ms or entry.end <= start:
        return None
    base = entry.base
    for batch, end in zip(entry.batches, entry.ends, strict=True):
        header = read_header(batch)
        if header.max_timestamp >= timestamp_ms and end > start:
            for head in iter_heads(Batch.parse(batch)):
                if head.timestamp >= timestamp_ms and base + head.offset_delta >= start:
                    return base + head.offset_delta, head.timestamp
        base = end
    return None
