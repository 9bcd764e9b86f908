"""The logs of one broker: a partition's log by topic and index, and what all of them share."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any, Final

from tidegate.errors import StoreUnavailable, UnknownTopicOrPartition
from tidegate.log.archive_files import ArchiveFiles
from tidegate.log.durability import Durability
from tidegate.log.failover_epoch import FailoverEpochs
from tidegate.log.partition import PartitionLog
from tidegate.log.retention import FindTopic, Retention, upkeep_item
from tidegate.log.tail import TailCache
from tidegate.log.usage import Usage
from tidegate.settings import Settings
from tidegate.store.key_lanes import poll_streams
from tidegate.store.link import Arg
from tidegate.store.node import Node
from tidegate.store.store import Store
from tidegate.telemetry import declared
from tidegate.telemetry.background_tasks import BackgroundTasks
from tidegate.telemetry.metrics import metrics

if TYPE_CHECKING:
    from tidegate.topics.catalog import Topic

POLL_MS: Final = 500
"""Longest that a lost notification delays a waiting fetch."""
_SWEEP_MS: Final = 1_000


class Writer:
    """This process's mark on its entries: `<uuid>:<counter>`."""

    __slots__ = ("_counter", "name")

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex.encode()
        self._counter = 0

    def next(self) -> int:
        """A counter that was not used before."""
        self._counter += 1
        return self._counter


class Logs:
    """Every partition that this broker has touched, with the cache, marks and proofs that they share.

    `find_topic(org, name)` tells retention which topics there are; without it this broker does no retention.
    Raises CannotStart where the archive cannot be opened.
    """

    def __init__(self, store: Store, settings: Settings, find_topic: FindTopic | None = None) -> None:
        self.store = store
        self.settings = settings
        self.loop = asyncio.get_event_loop()
        self.writer = Writer()
        self.usage = Usage()
        self.poll_s = POLL_MS / 1000
        self.cache = TailCache(settings.log_tail_cache_bytes)
        self.archive_files = ArchiveFiles(settings)
        self.durability = Durability(store)
        self.failover_epochs = FailoverEpochs(store)
        self.is_subscribed: set[PartitionLog] = set()
        self.dirty: set[PartitionLog] = set()
        self.stray_logs: set[PartitionLog] = set()
        self.retention = Retention(self, find_topic) if find_topic is not None else None
        self._partitions: dict[tuple[str, int], PartitionLog] = {}
        self._upkeep_known: set[str] = set()
        self._loops = BackgroundTasks()
        self.failover_epochs.on_lost.append(self.drop_views)
        store.on_moved.append(self._logs_moved)
        metrics.sample(declared.STRAY_LOGS, lambda: {(): len(self.stray_logs)})

    async def start(self) -> None:
        """Begin to follow the connections and to sweep. Raises StoreUnavailable."""
        self.failover_epochs.start()
        await self.failover_epochs.ready()
        self._loops.every("log-poll", POLL_MS, self._poll)
        self._loops.every("log-sweep", _SWEEP_MS, self._sweep)
        if self.retention is not None:
            self.retention.start()

    async def close(self) -> None:
        """Write what has gathered and stop."""
        await self._loops.close()
        for log in self.dirty:
            log.guarded(log.progress.write)
        if self.retention is not None:
            await self.retention.close()
        for log in list(self._partitions.values()):
            log.close(StoreUnavailable("the broker closes"))
        self.failover_epochs.close()
        self.archive_files.close()

    # -- partitions

    def partition(self, topic: Topic, index: int) -> PartitionLog:
        """The log of a partition; `index` is below the topic's partition count."""
        log = self._partitions.get((topic.topic_hex, index))
        if log is None:
            log = self._partitions[topic.topic_hex, index] = PartitionLog(self, topic, index)
        elif log.topic is not topic:
            log.topic = topic  # its configs may have changed
        return log

    def forget_topic(self, topic: Topic) -> None:
        """The topic was removed: those who wait for its partitions find out."""
        for key in [key for key in self._partitions if key[0] == topic.topic_hex]:
            log = self._partitions.pop(key)
            log.close(UnknownTopicOrPartition())

    def drop_views(self, node: Node | None = None) -> None:
        """Nothing that is known of a node (of any) may be relied on: a connection was cut, or the lease is lost."""
        self._upkeep_known.clear()
        for log in self._partitions.values():
            if node is None or log.lanes.depends_on(node):
                log.void("connections or lease lost")

    def _logs_moved(self) -> None:
        """A view belongs to the node that it is from (design, rule 8): another one's life was not asked for it."""
        for log in self._partitions.values():
            if log.lanes.has_moved:
                log.void("the log is at another node")

    # -- what runs beside

    async def _sweep(self) -> None:
        """Each second: estimates, time index and upkeep of what was appended; stop hearing what nobody hears."""
        dirty, now_s = list(self.dirty), self.loop.time()
        self.dirty.clear()
        due: list[str] = []
        for log in dirty:
            log.guarded(log.progress.write)
            item = upkeep_item(log.topic, log.index)
            if item not in self._upkeep_known:
                self._upkeep_known.add(item)
                due.append(item)
        if due:
            args: list[Arg] = ["ZADD", self.store.cluster_keys.upkeep, "NX"]
            for item in due:
                args += (0, item)

            def queued(reply: Any) -> None:
                if isinstance(reply, Exception):
                    self._upkeep_known.difference_update(due)  # the next sweep files it again
                    self.dirty.update(dirty)

            self.store.send(args, queued)
        for log in list(self.is_subscribed):
            log.guarded(log.subscription.sweep, now_s)

    async def _poll(self) -> None:
        """The net under lost messages: XREAD of what is heard and was not proved since the last poll."""
        stale: list[PartitionLog] = []
        for log in list(self.is_subscribed):
            if log.subscription.wanted:
                if log.view is None:
                    log.guarded(log.refresher.refresh, _ignore)
                elif self.loop.time() - log.view.verified_at >= self.poll_s:
                    stale.append(log)
        ends = {log.keys.log: f"{log.view.end}-0" for log in stale if log.view is not None}
        logs = {log.keys.log: log for log in stale}
        poll_streams(self.store, ends, lambda key: logs[key].refresher.refresh(_ignore))


def _ignore(_: Any) -> None:
    """Hints and housekeeping: whoever needs to know finds out at the next look."""
