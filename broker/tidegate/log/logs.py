"""The partition logs of one broker, by topic and index, and the services that they share."""

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
"""Upper bound on the delay that a lost notification adds to a waiting fetch."""
_SWEEP_MS: Final = 1_000


class Writer:
    """Names this process in its entries: `<uuid>:<counter>`."""

    __slots__ = ("_counter", "name")

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex.encode()
        self._counter = 0

    def next(self) -> int:
        """The next unused counter."""
        self._counter += 1
        return self._counter


class Logs:
    """Every partition that this broker has used, with the shared cache, writer and durability proofs.

    `find_topic(org, name)` tells retention which topics exist; without it this broker does no retention.
    Raises CannotStart if the archive cannot be opened.
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
        """Start following the connections, sweeping and polling. Raises StoreUnavailable."""
        self.failover_epochs.start()
        await self.failover_epochs.ready()
        self._loops.every("log-poll", POLL_MS, self._poll)
        self._loops.every("log-sweep", _SWEEP_MS, self._sweep)
        if self.retention is not None:
            self.retention.start()

    async def close(self) -> None:
        """Write pending progress and stop."""
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
        """Close the logs of a removed topic; waiting requests receive UnknownTopicOrPartition."""
        for key in [key for key in self._partitions if key[0] == topic.topic_hex]:
            log = self._partitions.pop(key)
            log.close(UnknownTopicOrPartition())

    def drop_views(self, node: Node | None = None) -> None:
        """Void the cached states of a node's logs (or of all): a connection or the broker lease was lost."""
        self._upkeep_known.clear()
        for log in self._partitions.values():
            if node is None or log.lanes.depends_on(node):
                log.void("connections or lease lost")

    def _logs_moved(self) -> None:
        """Void the states whose node changed: failover epochs are checked per node (design, rule 8)."""
        for log in self._partitions.values():
            if log.lanes.has_moved:
                log.void("the log is at another node")

    # -- background tasks

    async def _sweep(self) -> None:
        """Each second: write progress and upkeep of what was appended, and end idle subscriptions."""
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
                    self._upkeep_known.difference_update(due)  # the next sweep adds it again
                    self.dirty.update(dirty)

            self.store.send(args, queued)
        for log in list(self.is_subscribed):
            log.guarded(log.subscription.sweep, now_s)

    async def _poll(self) -> None:
        """Cover lost messages: XREAD the subscribed logs that were not verified since the last poll."""
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
    """Discard the reply; the next refresh reports failures."""
