"""Delete records of one partition by time, by size, or on request. `upkeep.py` decides when.

retention.* moves the log start; local.retention.* moves the local start over archived records. The script that
removes entries moves both starts; readers check the starts, not the stream.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from tidegate.errors import OffsetOutOfRange, StoreUnavailable
from tidegate.log.archived import archived_range, segments_from, segments_holding
from tidegate.log.loading import entry_holding, pages
from tidegate.store.scripts import Script

if TYPE_CHECKING:
    from tidegate.log.cached_log import CachedLog
    from tidegate.log.state import LogState
    from tidegate.records.segments import Segment

logger = structlog.get_logger()

TRIM_LOG = Script("log/trim_log")

SLICE_ENTRIES: Final = 1_000
COUNTED_PAGES_MAX: Final = 32
"""Pages of entries below an offset whose bytes DeleteRecords counts; the bytes of more are estimated."""
_TRIES: Final = 2


async def delete_records(log: CachedLog, offset: int) -> int:
    """Move the log start to `offset` (-1: the high watermark); an offset below the present start changes nothing.

    Returns the log start. Raises OffsetOutOfRange, UnknownTopicOrPartition, StoreUnavailable.
    """
    for _ in range(_TRIES):
        state = await log.refresh()
        start = state.high_watermark if offset == -1 else offset
        if not 0 <= start <= state.high_watermark:
            raise OffsetOutOfRange
        if start <= state.log_start:
            return state.log_start
        try:
            return await trim(log, state, Kept(start, start, *await _bytes_below(log, state, start)))
        except OffsetOutOfRange:
            log.void("its snapshot was refused")  # the log has a later failover epoch
    raise StoreUnavailable("the log failed over while its records were deleted")


async def apply_retention(log: CachedLog) -> int:
    """Apply the topic's retention in both tiers; returns the log start.

    Archived records leave Redis by local.retention.*; a broker without the archive leaves tiered topics to others.
    """
    state = await log.refresh()
    config = log.topic.config
    if "delete" not in config.cleanup_policy or state.log_start >= state.high_watermark:
        return state.log_start
    now_ms = log.store.clock.now_ms()
    local_bytes = await _log_bytes(log)
    rule = Rule.of(now_ms, config.retention_ms, config.retention_bytes)
    kept = await _kept_of_all(log, state, rule, local_bytes)
    if config.remote_storage and log.archive_files.present:
        start, end = await archived_range(log)
        if start <= state.local_start < end:
            local = Rule.of(now_ms, config.local_retention_ms, config.local_retention_bytes)
            offset, size = await _first_kept(log, state, local.over(local_bytes), min(end, state.high_watermark))
            if offset > kept.local_start:
                kept = Kept(kept.log_start, offset, size)
    if kept.log_start <= state.log_start and kept.local_start <= state.local_start:
        return state.log_start
    logger.info(
        "log_trimmed", log=log.keys.log, log_start=kept.log_start, before=state.log_start, local_start=kept.local_start,
        bytes=kept.removed_bytes,
    )  # fmt: skip
    return await trim(log, state, kept)


class Kept(NamedTuple):
    """The new log start, the new local start, and the bytes to be removed from Redis, counted or estimated."""

    log_start: int
    local_start: int
    removed_bytes: int
    is_estimate: bool = False


class Rule(NamedTuple):
    """Deletes records older than `oldest_ms`, or above `bytes_max` (None: no limit); `excess` is the bytes above."""

    oldest_ms: int | None
    bytes_max: int | None
    excess: int = 0

    @staticmethod
    def of(now_ms: int, retention_ms: int, retention_bytes: int) -> Rule:
        """The rule for topic configs; -1 is no limit."""
        return Rule(
            now_ms - retention_ms if retention_ms >= 0 else None, retention_bytes if retention_bytes >= 0 else None
        )

    def over(self, size: int) -> Rule:
        """The rule for a log of `size` bytes."""
        return self._replace(excess=size - self.bytes_max if self.bytes_max is not None else 0)

    def takes(self, size: int, max_timestamp: int) -> bool:
        """Whether to delete a prefix of `size` bytes in all whose last records have `max_timestamp`; -1 is no time."""
        return size <= self.excess or (self.oldest_ms is not None and 0 <= max_timestamp < self.oldest_ms)

    def undated(self, max_timestamp: int) -> bool:
        """Whether the age of records is unknown, so that they are as old as the next ones that have a time."""
        return self.oldest_ms is not None and max_timestamp < 0


async def trim(log: CachedLog, state: LogState, kept: Kept) -> int:
    """Raise both starts and remove the entries below, in slices, after saving the snapshot. Returns the log start."""
    await log.save_producers(state, kept.local_start)
    keys = log.keys
    names = [keys.log, keys.meta, keys.times, keys.producers, keys.archive]
    removed = 1
    while removed:
        log_start, _, removed = await log.store.run(
            TRIM_LOG, names, kept.log_start, kept.local_start, SLICE_ENTRIES, kept.removed_bytes, keys.wake,
            int(kept.is_estimate),
        )  # fmt: skip
        await asyncio.sleep(0)
    state = await log.refresh()
    return max(state.log_start, int(log_start))


async def _kept_of_all(log: CachedLog, state: LogState, rule: Rule, local_bytes: int) -> Kept:
    """Apply retention.* to both tiers. Archived records are deleted in whole segments, by the index.

    If the index was reset, the archived part is unknown: it is deleted with the first entries removed from Redis.
    """
    offset = state.log_start
    if offset < state.local_start:
        if not await _is_tiered(log):
            offset = state.local_start  # tiering is off: archived-only records are not served
        else:
            archived = await _archived_bytes(log, state) if rule.bytes_max is not None else 0
            offset, size = await _first_archived_kept(log, state, rule.over(local_bytes + archived))
            local_bytes += archived - size
        if offset < state.local_start and await segments_holding(log, offset, 1):
            return Kept(offset, state.local_start, 0)
    local_start, size = await _first_kept(log, state, rule.over(local_bytes), state.high_watermark)
    return Kept(local_start if local_start > state.local_start else offset, local_start, size)


async def _is_tiered(log: CachedLog) -> bool:
    """Whether the archive is part of the log; a negative cached answer is verified in Redis."""
    if log.topic.config.remote_storage:
        return True
    configs = log.store.cluster_keys.topic(log.topic.org, log.topic.name)
    return bool(await log.store.command("HGET", configs, "remote.storage.enable") == b"true")


async def _archived_bytes(log: CachedLog, state: LogState) -> int:
    """Bytes between the log start and the local start, by the index."""
    size = 0
    async with aclosing(segments_from(log, state.log_start)) as segments:
        async for segment in segments:
            if segment.from_offset >= state.local_start:
                break
            size += _share(segment, state)
    return size


async def _first_archived_kept(log: CachedLog, state: LogState, rule: Rule) -> tuple[int, int]:
    """The end of the last segment to delete, the local start at most, and the bytes deleted.

    Segments without a time are deleted with the next one that is too old.
    """
    offset, size, undated_bytes = state.log_start, 0, 0
    async with aclosing(segments_from(log, state.log_start)) as segments:
        async for segment in segments:
            if segment.from_offset >= state.local_start:
                break
            reached = size + undated_bytes + _share(segment, state)
            if rule.takes(reached, segment.max_timestamp):
                offset, size, undated_bytes = min(segment.end_offset, state.local_start), reached, 0
            elif rule.undated(segment.max_timestamp):
                undated_bytes = reached - size
            else:
                break
    return offset, size


def _share(segment: Segment, state: LogState) -> int:
    """A segment's bytes between the log start and the local start, assuming equal bytes per offset."""
    count = min(segment.end_offset, state.local_start) - max(segment.from_offset, state.log_start)
    return segment.size * max(count, 0) // (segment.end_offset - segment.from_offset)


async def _bytes_below(log: CachedLog, state: LogState, offset: int) -> tuple[int, bool]:
    """Bytes of the entries that end at or below the offset, and whether they are an estimate: they are many."""
    size, page_count = 0, 0
    async with aclosing(pages(log.store, log.keys, state.local_start, state.mean_entry_bytes)) as read:
        async for entries in read:
            for entry in entries:
                if entry.end > offset:
                    return size, False
                size += entry.size
            page_count += 1
            if page_count == COUNTED_PAGES_MAX:
                break
        else:
            return size, False
    log_bytes = int(await log.store.command("HGET", log.keys.meta, "bytes") or 0)
    share = log_bytes * (offset - state.local_start) // (state.end - state.local_start)
    return max(size, share), True


async def _log_bytes(log: CachedLog) -> int:
    """The estimate of the log's bytes in Redis, recounted if it cannot be right.

    Too high an estimate would delete too much: where bytes are limited, what DeleteRecords estimated is counted, too.
    """
    log.write_progress()
    meta, config = log.keys.meta, log.topic.config
    estimate, recount = await log.store.command("HMGET", meta, "bytes", "recount")
    is_limited = config.retention_bytes >= 0 or config.local_retention_bytes >= 0
    if int(estimate or 0) >= 0 and not (recount and is_limited):
        return int(estimate or 0)
    state, counted = await log.refresh(), 0
    async for entries in pages(log.store, log.keys, 0, state.mean_entry_bytes):
        counted += sum(entry.size for entry in entries)
    await log.store.command("HSET", meta, "bytes", counted)
    if recount and await log.store.command("HGET", meta, "recount") == recount:
        await log.store.command("HDEL", meta, "recount")
    return counted


async def _first_kept(log: CachedLog, state: LogState, rule: Rule, end: int) -> tuple[int, int]:
    """The base of the first batch to keep in Redis, and the bytes below it. A batch that ends above `end` is kept.

    A batch is deleted if all before it are, and it is too old or the deleted bytes do not yet cover the excess.
    Batches without a time are deleted with the next one that is too old.
    """
    offset, size, undated_bytes = state.local_start, 0, 0
    first = await entry_holding(log.store, log.keys, offset)
    if first is None or not (rule.takes(1, first.max_timestamp) or rule.undated(first.max_timestamp)):
        return offset, 0
    async with aclosing(pages(log.store, log.keys, first.base, state.mean_entry_bytes)) as read:
        async for entries in read:
            for entry in entries:
                before = size + undated_bytes
                if entry.end > end:
                    return offset, size
                if rule.takes(before + entry.size, entry.max_timestamp):
                    offset, size, undated_bytes = max(offset, entry.end), before + entry.size, 0
                elif rule.undated(entry.max_timestamp):
                    undated_bytes += entry.size
                else:
                    return offset, size
            if undated_bytes:  # a log without any times would be read whole at each check
                return offset, size
    return offset, size
