"""Delete by time, by size, on request. Runs also when nobody writes: any broker takes due work from `upkeep`.

The log start offset moves first, in the script that removes entries; readers check it, not the stream.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import structlog

from broker.errors import KafkaError, OffsetOutOfRange, StoreUnavailable, UnknownTopicOrPartition
from broker.log.entries import parse_entry
from broker.log.loading import pages
from broker.store.scripts import Script
from broker.store.store import Store

if TYPE_CHECKING:
    from broker.log.logs import Logs
    from broker.log.partition import PartitionLog
    from broker.log.view import View
    from broker.topics.catalog import Topic

logger = structlog.get_logger()

TRIM_LOG = Script("log/trim_log")
TAKE_UPKEEP = Script("log/take_upkeep")

SLICE_ENTRIES: Final = 1_000
_TAKE_ITEMS: Final = 100

FindTopic = Callable[[str, str], "Topic | None"]


async def delete_records(log: PartitionLog, offset: int) -> int:
    """Move the log start to `offset` (-1: the high watermark); below the present start nothing changes.

    Returns the log start. Raises OffsetOutOfRange, UnknownTopicOrPartition, StoreUnavailable.
    """
    view = await log.look()
    if offset == -1:
        offset = view.high_watermark
    if offset < 0 or offset > view.high_watermark:
        raise OffsetOutOfRange
    if offset <= view.log_start:
        return view.log_start
    return await trim(log, view, offset, await _bytes_below(log, view, offset))


async def apply_retention(log: PartitionLog) -> int:
    """Delete what the topic's retention.ms and retention.bytes no longer keep; returns the log start."""
    config = log.topic.config
    view = await log.look()
    if "delete" not in config.cleanup_policy or view.log_start >= view.high_watermark:
        return view.log_start
    oldest_ms = int(time.time() * 1000) - config.retention_ms if config.retention_ms >= 0 else None
    excess = await _log_bytes(log) - config.retention_bytes if config.retention_bytes >= 0 else 0
    offset, removed_bytes = await _first_kept(log, view, oldest_ms, excess)
    if offset <= view.log_start:
        return view.log_start
    logger.info("log_trimmed", log=log.keys.log, log_start=offset, before=view.log_start, bytes=removed_bytes)
    return await trim(log, view, offset, removed_bytes)


async def trim(log: PartitionLog, view: View, offset: int, removed_bytes: int) -> int:
    """Raise the log start to `offset` and remove what lies below, slice by slice; the snapshot goes first."""
    if view.snapshot_offset < offset:
        await log.progress.save_now(view)
    keys = log.keys
    names = [keys.log, keys.meta, keys.times, keys.producers]
    removed = 1
    while removed:
        log_start, removed = await log.store.run(TRIM_LOG, names, offset, SLICE_ENTRIES, removed_bytes, keys.wake)
        await asyncio.sleep(0)
    view = await log.look()
    return max(view.log_start, int(log_start))


async def _bytes_below(log: PartitionLog, view: View, offset: int) -> int:
    """The bytes of the entries that end at or below the offset: counted too high, size would take too much later."""
    size = 0
    async for entries in pages(log.store, log.keys, view.log_start, view.mean_entry_bytes):
        for entry in entries:
            if entry.end > offset:
                return size
            size += entry.size
    return size


async def _log_bytes(log: PartitionLog) -> int:
    """The estimate of what the log holds, counted anew where it cannot be right."""
    log.progress.write()
    estimate = int(await log.store.command("HGET", log.keys.meta, "bytes") or 0)
    if estimate >= 0:
        return estimate
    view, counted = await log.look(), 0
    async for entries in pages(log.store, log.keys, 0, view.mean_entry_bytes):
        counted += sum(entry.size for entry in entries)
    await log.store.command("HSET", log.keys.meta, "bytes", counted)
    return counted


async def _first_kept(log: PartitionLog, view: View, oldest_ms: int | None, excess: int) -> tuple[int, int]:
    """The base of the first batch to keep, and the bytes below it.

    A batch goes when all before it go, and it is too old, or what goes before it does not cover the excess.
    """
    offset, size = view.log_start, 0
    holder = await log.store.read("XREVRANGE", log.keys.log, f"{offset}-1", "-", "COUNT", 1)
    if not holder:
        return offset, 0
    first = parse_entry(holder[0])
    if not (excess > 0 or (oldest_ms is not None and first.max_timestamp < oldest_ms)):
        return offset, 0
    start = first.base
    async for entries in pages(log.store, log.keys, start, view.mean_entry_bytes):
        for entry in entries:
            old = oldest_ms is not None and entry.max_timestamp < oldest_ms
            if entry.end > view.high_watermark or not (old or size + entry.size <= excess):
                return offset, size
            offset, size = max(offset, entry.end), size + entry.size
    return offset, size


class Retention:
    """The upkeep that this broker takes from all brokers' list, every `log_retention_check_interval_ms`."""

    def __init__(self, logs: Logs, find_topic: FindTopic) -> None:
        self._logs = logs
        self._store: Store = logs.store
        self._find_topic = find_topic
        self._interval_ms = logs.settings.log_retention_check_interval_ms
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look for due work."""
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
        """Take some due items and do them; returns how many."""
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
        """The log that an item names, if its topic is still that one."""
        name, partition, topic_hex = item.rsplit(":", 2)
        org, topic_name = name.split("/", 1)
        topic = self._find_topic(org, topic_name)
        if topic is None or topic.topic_hex != topic_hex or int(partition) >= topic.partition_count:
            return None
        return self._logs.partition(topic, int(partition))


def upkeep_item(topic: Topic, index: int) -> str:
    """A partition's name in the upkeep list."""
    return f"{topic.org}/{topic.name}:{index}:{topic.topic_hex}"
