"""Searches by timestamp in the archived part of a log (below the local start).

The index of segments excludes segments, their footers exclude row groups, and the batch headers exclude batches.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING

from tidegate.log.archived import segments_from
from tidegate.log.entries import Buffer, read_header
from tidegate.log.timestamp_search import search_records
from tidegate.records.batch import Batch
from tidegate.records.record import iter_heads

if TYPE_CHECKING:
    from tidegate.log.archive_reads import ArchiveReads
    from tidegate.log.cached_log import CachedLog
    from tidegate.log.state import LogState
    from tidegate.records.segments import Segment


async def first_record_at(
    log: CachedLog, archive: ArchiveReads, state: LogState, timestamp_ms: int
) -> tuple[int, int] | None:
    """The first record at or after a time, in offset order, below the local start. Raises KafkaStorageError."""
    async with aclosing(_segments(log, state)) as segments:
        async for segment in segments:
            if segment.max_timestamp < timestamp_ms:
                continue
            async with aclosing(_batches(archive, state, segment, timestamp_ms)) as batches:
                async for base, batch in batches:
                    found = await search_records(
                        [batch], _first_at, base, batch, timestamp_ms, state.log_start, state.local_start
                    )
                    if found is not None:
                        return found
    return None


async def largest_timestamp(log: CachedLog, archive: ArchiveReads, state: LogState) -> int:
    """The largest timestamp from the log start to the local start, ms; -1 for none. Raises KafkaStorageError."""
    largest = -1
    async with aclosing(_segments(log, state)) as segments:
        async for segment in segments:
            if segment.max_timestamp <= largest:
                continue
            if state.log_start <= segment.base_offset and segment.last_offset < state.local_start:
                largest = segment.max_timestamp
                continue
            async with aclosing(_batches(archive, state, segment, largest + 1)) as batches:
                async for base, batch in batches:
                    if base >= state.log_start:
                        largest = max(largest, read_header(batch).max_timestamp)
                    else:
                        largest = max(largest, await search_records([batch], _largest_of, base, batch, state.log_start))
    return largest


async def _segments(log: CachedLog, state: LogState) -> AsyncGenerator[Segment, None]:
    """The segments from the log start to the local start, in order."""
    async with aclosing(segments_from(log, state.log_start)) as segments:
        async for segment in segments:
            if segment.from_offset >= state.local_start:
                return
            yield segment


async def _batches(
    archive: ArchiveReads, state: LogState, segment: Segment, timestamp_ms: int
) -> AsyncGenerator[tuple[int, Buffer], None]:
    """(base offset, bytes) of a segment's batches between log start and local start that reach `timestamp_ms`."""
    at, stop = max(segment.base_offset, state.log_start), min(segment.end_offset, state.local_start)
    while at < stop:
        group = await archive.footer_of_row_group(at, stop)
        if group is None:
            return
        batches = await archive.row_group(at, stop) if group.max_timestamp >= timestamp_ms else None
        if batches is not None:
            for place in range(batches.find(at), bisect_left(batches.bases, stop)):
                if read_header(batches.batch(place)).max_timestamp >= timestamp_ms:
                    yield batches.bases[place], batches.batch(place)
        at = group.last_offset + 1


def _first_at(base: int, batch: Buffer, timestamp_ms: int, start: int, stop: int) -> tuple[int, int] | None:
    """The first record of a batch at or after a time, from `start` to below `stop`."""
    for offset, timestamp in _records(base, batch):
        if timestamp >= timestamp_ms and start <= offset < stop:
            return offset, timestamp
    return None


def _largest_of(base: int, batch: Buffer, start: int) -> int:
    """The largest timestamp of a batch's records at and above `start`; -1 if compaction removed them."""
    return max((timestamp for offset, timestamp in _records(base, batch) if offset >= start), default=-1)


def _records(base: int, batch: Buffer) -> Iterator[tuple[int, int]]:
    """Offset and timestamp of each record of a batch."""
    for head in iter_heads(Batch.parse(batch)):
        yield base + head.offset_delta, head.timestamp
