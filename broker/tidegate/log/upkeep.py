"""The upkeep of all partitions. Any broker takes due partitions from the shared list, also without appends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import structlog

from tidegate.errors import KafkaError, StoreUnavailable, UnknownTopicOrPartition
from tidegate.log.compaction_requests import CompactionRequests, Refresh
from tidegate.log.compactor import Compactor
from tidegate.log.partition import PartitionLog
from tidegate.log.record_format import record_retention
from tidegate.log.record_format.record_log import RecordLog
from tidegate.log.retention import apply_retention
from tidegate.log.retention_check import check_retention
from tidegate.settings import Settings
from tidegate.store.outcome import FaultyKeys
from tidegate.store.scripts import Script
from tidegate.store.store import Store
from tidegate.store.tasks import TaskSet

if TYPE_CHECKING:
    from tidegate.topics.catalog import Topic

logger = structlog.get_logger()

TAKE_UPKEEP = Script("log/take_upkeep")

CHECK_INTERVAL_MS: Final = 30_000
"""Interval between two checks for records whose retention is over."""
_TAKE_ITEMS: Final = 100

FindTopic = Callable[[str, str], "Topic | None"]
FindLog = Callable[["Topic", int], PartitionLog | RecordLog]


async def no_refresh() -> None:
    """For topics that are never outdated."""


class Retention:
    """Takes due partitions from the shared list, every CHECK_INTERVAL_MS."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        find_topic: FindTopic,
        find_log: FindLog,
        refresh_topics: Refresh = no_refresh,
    ) -> None:
        self._store = store
        self._find_topic = find_topic
        self._find_log = find_log
        self._interval_ms = CHECK_INTERVAL_MS
        self._tasks = TaskSet()
        self._compactor = Compactor(self._store, self._interval_ms)
        self._requests = CompactionRequests(self._store, self._log_of, refresh_topics)

    def start(self) -> None:
        """Start the periodic check."""
        self._tasks.start(self._run(), "retention")
        self._compactor.start()
        self._requests.start()

    async def close(self) -> None:
        """Stop."""
        await self._requests.close()
        await self._compactor.close()
        await self._tasks.close()

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
        taken: list[Any]
        (taken,) = await self._store.run(TAKE_UPKEEP, [upkeep], _TAKE_ITEMS, self._interval_ms)
        items = [item for item in taken if _parse(item) is not None]
        for item in set(taken).difference(items):
            logger.warning("foreign_upkeep_removed", item=repr(item))
            await self._store.command("ZREM", upkeep, item)
        for item, is_due in zip(items, await asyncio.gather(*map(self._is_due, items)), strict=True):
            if is_due:
                await self._process(item)
        return len(taken)

    async def _is_due(self, item: bytes) -> bool:
        """Whether the log must be loaded, or its item removed; False if Redis does not answer: it is checked later."""
        found = self._partition_of(item.decode())
        if found is None or found[0].config.is_record:
            return True
        topic, index = found
        keys = self._store.log_keys(topic.org, topic.name, index, topic.topic_hex)
        try:
            return (await check_retention(self._store, keys)).is_due(topic.config, self._store.clock.now_ms())
        except StoreUnavailable:
            return False
        except KafkaError:
            return True

    async def _process(self, item: bytes) -> None:
        """Apply retention to a log, or remove its item if it does not exist. Raises StoreUnavailable."""
        upkeep = self._store.cluster_keys.upkeep
        log = self._log_of(item.decode())
        if log is None:
            if not await self._exists(item.decode()):
                await self._store.command("ZREM", upkeep, item)
            return
        try:
            if isinstance(log, RecordLog):
                await record_retention.apply_retention(log)
            else:
                await apply_retention(log)
                self._compactor.offer(log, item)
        except UnknownTopicOrPartition:
            await self._store.command("ZREM", upkeep, item)
        except KafkaError as error:
            logger.info("retention_later", log=log.keys.log, reason=str(error))

    async def _exists(self, item: str) -> bool:
        """Whether the partition is in Redis: another broker may just have made it. Raises StoreUnavailable."""
        parsed = _parse(item.encode())
        if parsed is None:
            return False
        try:
            return bool(await self._store.command("HGET", self._store.log_keys(*parsed).meta, "state") == b"ready")
        except FaultyKeys:
            return True

    def _log_of(self, item: str) -> PartitionLog | RecordLog | None:
        """The log that an item names, if the topic still has that id."""
        found = self._partition_of(item)
        return self._find_log(*found) if found is not None else None

    def _partition_of(self, item: str) -> tuple[Topic, int] | None:
        """The partition that an item names, if the topic still has that id."""
        parsed = _parse(item.encode())
        if parsed is None:
            return None
        org, name, partition, topic_hex = parsed
        topic = self._find_topic(org, name)
        if topic is None or topic.topic_hex != topic_hex or partition >= topic.partition_count:
            return None
        return topic, partition


def _parse(item: bytes) -> tuple[str, str, int, str] | None:
    """Organisation, topic, partition and topic id of an item of `upkeep_item`; None if no broker wrote it."""
    try:
        name, partition, topic_hex = item.decode().rsplit(":", 2)
        org, topic_name = name.split("/", 1)
        return org, topic_name, int(partition), topic_hex
    except ValueError:
        return None


def upkeep_item(topic: Topic, index: int) -> str:
    """A partition's member name in the upkeep list."""
    return f"{topic.org}/{topic.name}:{index}:{topic.topic_hex}"
