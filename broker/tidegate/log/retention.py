"""Delete records by time, by size, or on request. Any broker takes due partitions from `upkeep`, also without appends.

retention.* moves the log start; local.retention.* moves the local start over archived records. The script that
removes entries moves both starts; readers check the starts, not the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from tidegate.errors import KafkaError, OffsetOutOfRange, StoreUnavailable, UnknownTopicOrPartition
from tidegate.log.archived import archived_range, segments_from, segments_holding
from tidegate.log.loading import entry_holding, pages
from tidegate.store.scripts import Script
from tidegate.store.store import Store

if TYPE_CHECKING:
    from tidegate.log.logs import Logs
    from tidegate.log.partition import PartitionLog
    from tidegate.log.state import LogState
    from tidegate.records.segments import Segment
    from tidegate.topics.catalog import Topic

logger = structlog.get_logger()

TRIM_LOG = Script("log/trim_log")
TAKE_UPKEEP = Script("log/take_upkeep")

SLICE_ENTRIES: Final = 1_000
_TAKE_ITEMS: Final = 100

FindTopic = Callable[[str, str], "Topic | None"]


async def delete_records(log: PartitionLog, offset: int) -> int:
    """Move the log start to `offset` (-1: the high watermark); an offset below the present start changes nothing.

    Returns the log start. Raises OffsetOutOfRange, UnknownTopicOrPartition, StoreUnavailable.
    """
    view = await log.refresh()
    if offset == -1:
        offset = view.high_watermark
    if offset < 0 or offset > view.high_watermark:
        raise OffsetOutOfRange
    if offset <= view.log_start:
        return view.log_start
    return await trim(log, view, Kept(offset, offset, await _bytes_below(log, view, offset)))


async def apply_retention(log: PartitionLog) -> int:
    """Apply the topic's retention in both tiers; returns the log start.

    Archived records leave Redis by local.retention.*; a broker without the archive leaves tiered topics to others.
    """
    view = await log.refresh()
    config = log.topic.config
    if "delete" not in config.cleanup_policy or view.log_start >= view.high_watermark:
        return view.log_start
    now_ms = log.store.clock.now_ms()
    local_bytes = await _log_bytes(log)
    rule = Rule.of(now_ms, config.retention_ms, config.retention_bytes)
    kept = await _kept_of_all(log, view, rule, local_bytes)
    if config.remote_storage and log.archive_files.present:
        start, end = await archived_range(log)
        if start <= view.local_start < end:
            local = Rule.of(now_ms, config.local_retention_ms, config.local_retention_bytes)
            offset, size = await _first_kept(log, view, local.over(local_bytes), min(end, view.high_watermark))
            if offset > kept.local_start:
                kept = Kept(kept.log_start, offset, size)
    if kept.log_start <= view.log_start and kept.local_start <= view.local_start:
        return view.log_start
    logger.info(
        "log_trimmed", log=log.keys.log, log_start=kept.log_start, before=view.log_start, local_start=kept.local_start,
        bytes=kept.removed_bytes,
    )  # fmt: skip
    return await trim(log, view, kept)


class Kept(NamedTuple):
    """The new log start, the new local start, and the bytes to be removed from Redis."""

    log_start: int
    local_start: int
    removed_bytes: int


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
        """Whether to delete a prefix of `size` bytes in all whose last records have `max_timestamp`."""
        return size <= self.excess or (self.oldest_ms is not None and max_timestamp < self.oldest_ms)


async def trim(log: PartitionLog, view: LogState, kept: Kept) -> int:
    """Raise both starts and remove the entries below, in slices, after saving the snapshot. Returns the log start."""
    if view.snapshot_offset < kept.local_start:
        await log.progress.save_now(view)
    keys = log.keys
    names = [keys.log, keys.meta, keys.times, keys.producers, keys.archive]
    removed = 1
    while removed:
        log_start, _, removed = await log.store.run(
            TRIM_LOG, names, kept.log_start, kept.local_start, SLICE_ENTRIES, kept.removed_bytes, keys.wake
        )
        await asyncio.sleep(0)
    view = await log.refresh()
    return max(view.log_start, int(log_start))


async def _kept_of_all(log: PartitionLog, view: LogState, rule: Rule, local_bytes: int) -> Kept:
    """Apply retention.* to both tiers. Archived records are deleted in whole segments, by the index.

    If the index was reset, the archived part is unknown: it is deleted with the first entries removed from Redis.
    """
    offset = view.log_start
    if offset < view.local_start:
        if not await _is_tiered(log):
            offset = view.local_start  # tiering is off: archived-only records are not served
        else:
            archived = await _archived_bytes(log, view) if rule.bytes_max is not None else 0
            offset, size = await _first_archived_kept(log, view, rule.over(local_bytes + archived))
            local_bytes += archived - size
        if offset < view.local_start and await segments_holding(log, offset, 1):
            return Kept(offset, view.local_start, 0)
    local_start, size = await _first_kept(log, view, rule.over(local_bytes), view.high_watermark)
    return Kept(local_start if local_start > view.local_start else offset, local_start, size)


async def _is_tiered(log: PartitionLog) -> bool:
    """Whether the archive is part of the log; a negative cached answer is verified in Redis."""
    if log.topic.config.remote_storage:
        return True
    configs = log.store.cluster_keys.topic(log.topic.org, log.topic.name)
    return bool(await log.store.command("HGET", configs, "remote.storage.enable") == b"true")


async def _archived_bytes(log: PartitionLog, view: LogState) -> int:
    """Bytes between the log start and the local start, by the index."""
    size = 0
    async with aclosing(segments_from(log, view.log_start)) as segments:
        async for segment in segments:
            if segment.from_offset >= view.local_start:
                break
            size += _share(segment, view)
    return size


async def _first_archived_kept(log: PartitionLog, view: LogState, rule: Rule) -> tuple[int, int]:
    """The end of the last segment to delete, the local start at most, and the bytes deleted."""
    offset, size = view.log_start, 0
    async with aclosing(segments_from(log, view.log_start)) as segments:
        async for segment in segments:
            share = _share(segment, view)
            if offset >= view.local_start or not rule.takes(size + share, segment.max_timestamp):
                break
            offset, size = min(segment.end_offset, view.local_start), size + share
    return offset, size


def _share(segment: Segment, view: LogState) -> int:
    """A segment's bytes between the log start and the local start, assuming equal bytes per offset."""
    count = min(segment.end_offset, view.local_start) - max(segment.from_offset, view.log_start)
    return segment.size * max(count, 0) // (segment.end_offset - segment.from_offset)


async def _bytes_below(log: PartitionLog, view: LogState, offset: int) -> int:
    """Bytes of the entries that end at or below the offset; too high a count would delete too much later."""
    size = 0
    async with aclosing(pages(log.store, log.keys, view.local_start, view.mean_entry_bytes)) as read:
        async for entries in read:
            for entry in entries:
                if entry.end > offset:
                    return size
                size += entry.size
    return size


async def _log_bytes(log: PartitionLog) -> int:
    """The estimate of the log's bytes in Redis, recounted if it cannot be right."""
    log.progress.write()
    estimate = int(await log.store.command("HGET", log.keys.meta, "bytes") or 0)
    if estimate >= 0:
        return estimate
    view, counted = await log.refresh(), 0
    async for entries in pages(log.store, log.keys, 0, view.mean_entry_bytes):
        counted += sum(entry.size for entry in entries)
    await log.store.command("HSET", log.keys.meta, "bytes", counted)
    return counted


async def _first_kept(log: PartitionLog, view: LogState, rule: Rule, end: int) -> tuple[int, int]:
    """The base of the first batch to keep in Redis, and the bytes below it. A batch that ends above `end` is kept.

    A batch is deleted if all before it are, and it is too old or the deleted bytes do not yet cover the excess.
    """
    offset, size = view.local_start, 0
    first = await entry_holding(log.store, log.keys, offset)
    if first is None:
        return offset, 0
    if not rule.takes(1, first.max_timestamp):
        return offset, 0
    async with aclosing(pages(log.store, log.keys, first.base, view.mean_entry_bytes)) as read:
        async for entries in read:
            for entry in entries:
                if entry.end > end or not rule.takes(size + entry.size, entry.max_timestamp):
                    return offset, size
                offset, size = max(offset, entry.end), size + entry.size
    return offset, size


class Retention:
    """Takes due partitions from the shared list, every `log_retention_check_interval_ms`."""

    def __init__(self, logs: Logs, find_topic: FindTopic) -> None:
        self._logs = logs
        self._store: Store = logs.store
        self._find_topic = find_topic
        self._interval_ms = logs.settings.log_retention_check_interval_ms
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the periodic check."""
        self._task = asyncio.create_task(self._run(), name="retention")

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            try:
                while await self.run_due():
                    pass
            except StoreUnavailable as error:
                logger.info("retention_waits", reason=str(error))
            except Exception:
                logger.exception("retention_failed")

    async def run_due(self) -> int:
        """Process some due partitions; returns how many. Does nothing if this broker's clock differs from Redis's."""
        if not self._store.clock.agrees:
            return 0
        upkeep = self._store.cluster_keys.upkeep
        items: list[Any]
        (items,) = await self._store.run(TAKE_UPKEEP, [upkeep], _TAKE_ITEMS, self._interval_ms)
        for item in items:
            log = self._log_of(item.decode())
            if log is None:
                await self._store.command("ZREM", upkeep, item)
                continue
            try:
                await apply_retention(log)
            except UnknownTopicOrPartition:
                await self._store.command("ZREM", upkeep, item)
            except KafkaError as error:
                logger.info("retention_later", log=log.keys.log, reason=str(error))
        return len(items)

    def _log_of(self, item: str) -> PartitionLog | None:
        """The log that an item names, if the topic still has that id."""
        name, partition, topic_hex = item.rsplit(":", 2)
        org, topic_name = name.split("/", 1)
        topic = self._find_topic(org, topic_name)
        if topic is None or topic.topic_hex != topic_hex or int(partition) >= topic.partition_count:
            return None
        return self._logs.partition(topic, int(partition))


def upkeep_item(topic: Topic, index: int) -> str:
    """A partition's member name in the upkeep list."""
    return f"{topic.org}/{topic.name}:{index}:{topic.topic_hex}"
