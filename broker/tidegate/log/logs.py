"""The partition logs of one broker, by topic and index, and the services that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tidegate.errors import InvalidTxnState, StoreUnavailable, UnknownTopicOrPartition
from tidegate.log.compaction_requests import Refresh
from tidegate.log.failover_epoch import FailoverEpochs
from tidegate.log.partition import PartitionLog, PartitionServices
from tidegate.log.record_format.record_groups import RecordGroups, RecordReader
from tidegate.log.record_format.record_log import RecordLog
from tidegate.log.services import POLL_MS
from tidegate.log.upkeep import FindTopic, Retention, no_refresh, upkeep_item
from tidegate.settings import Settings
from tidegate.store.changed_groups import note
from tidegate.store.key_lanes import poll_streams
from tidegate.store.link import Arg
from tidegate.store.node import Node
from tidegate.store.store import Store
from tidegate.telemetry import declared
from tidegate.telemetry.background_tasks import BackgroundTasks
from tidegate.telemetry.metrics import metrics

if TYPE_CHECKING:
    from tidegate.topics.catalog import Topic

_SWEEP_MS: Final = 1_000
_SWEEP_CHECKS_MAX: Final = 2_000
"""Logs that a sweep checks, 2 us each, while there are too many."""

AnyLog = PartitionLog | RecordLog
FetchedLog = PartitionLog | RecordReader


class Logs(PartitionServices):
    """Every partition that this broker has used, with the shared cache, writer and durability proofs.

    `find_topic(org, name)` gives retention the topics that exist, and `refresh_topics` brings them up to date; without
    the former this broker does no retention.
    `on_failover_handled` gets the failover epoch whenever it becomes known.
    Raises CannotStart if the archive cannot be opened.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        find_topic: FindTopic | None = None,
        on_failover_handled: Callable[[int], None] | None = None,
        refresh_topics: Refresh = no_refresh,
    ) -> None:
        super().__init__(store, settings)
        self.failover_epochs = FailoverEpochs(store, self.drop_states, on_failover_handled)
        self.record_groups = RecordGroups(store)
        self.new_record_logs: set[RecordLog] = set()
        self.retention: Retention | None = None
        if find_topic is not None:
            self.retention = Retention(store, settings, find_topic, self.partition, refresh_topics)
        self._upkeep_known: set[str] = set()
        self._lag_is_sampled = settings.lag_sample_interval_ms > 0
        self._loops = BackgroundTasks()
        store.on_moved.append(self._logs_moved)
        metrics.sample(declared.STRAY_LOGS, lambda: {(): len(self.stray_logs)})
        metrics.sample(declared.LOGS_EVICTED, lambda: {(): self.open_logs.evictions})
        metrics.sample(declared.LOST_RECORDS, lambda: {(): self.lost_records})
        metrics.sample(declared.RECORDS_WITHOUT_OFFSET, lambda: {(): self.records_without_offset})

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
        for dirty in self.dirty:
            dirty.guarded(dirty.progress.write)
        if self.retention is not None:
            await self.retention.close()
        for log in list(self.open_logs.values()):
            log.close(StoreUnavailable("the broker closes"))
        self.record_poll.close()
        self.failover_epochs.close()
        self.archive_files.close()

    # -- partitions

    def partition(self, topic: Topic, index: int) -> AnyLog:
        """The log of a partition; `index` is below the topic's partition count."""
        log: AnyLog | None = self.open_logs.get((topic.topic_hex, index))
        if log is None:
            log = self._open(topic, index)
        elif log.topic is not topic:
            log.topic = topic  # its configs may have changed
        return log

    def _open(self, topic: Topic, index: int) -> AnyLog:
        log_of_format = RecordLog if topic.config.is_record else PartitionLog
        log = self.open_logs.add((topic.topic_hex, index), partial(log_of_format, self, topic, index))
        if isinstance(log, RecordLog):
            self.new_record_logs.add(log)
        return log

    def batch_log(self, topic: Topic, index: int) -> PartitionLog:
        """The log of a partition of format batch. Raises InvalidTxnState for one of format record."""
        log = self.partition(topic, index)
        if isinstance(log, RecordLog):
            raise InvalidTxnState("the topic has format record")
        return log

    def forget_topic(self, topic: Topic) -> None:
        """Close the logs of a removed topic; waiting requests receive UnknownTopicOrPartition."""
        for key in [key for key in self.open_logs if key[0] == topic.topic_hex]:
            self.open_logs.remove(key).close(UnknownTopicOrPartition())

    def drop_states(self, node: Node | None = None) -> None:
        """Void the cached states of a node's logs (or of all): a connection or the broker lease was lost."""
        self._upkeep_known.clear()
        for log in self.open_logs.values():
            if node is None or log.lanes.depends_on(node):
                log.void("connections or lease lost")

    def _logs_moved(self) -> None:
        """Void the states whose node changed: failover epochs are checked per node (design, rule 8)."""
        for log in self.open_logs.values():
            if log.lanes.has_moved:
                log.void("the log is at another node")

    # -- background tasks

    async def _sweep(self) -> None:
        """Each second: write progress and upkeep of what was appended, and end idle subscriptions."""
        dirty, now_s = list(self.dirty), self.loop.time()
        self.dirty.clear()
        self._note_changed(dirty)
        due: list[str] = []
        for log in dirty:
            log.guarded(log.progress.write)
            log.guarded(self.open_logs.measure, log)
        new, self.new_record_logs = self.new_record_logs, set()
        used: list[AnyLog] = [*dirty, *new]
        for one in used:
            item = upkeep_item(one.topic, one.index)
            if item not in self._upkeep_known:
                self._upkeep_known.add(item)
                due.append(item)
        if due:
            args: list[Arg] = ["ZADD", self.store.cluster_keys.upkeep, "NX"]
            for item in due:
                args += (0, item)

            def queued(reply: Any) -> None:
                if not isinstance(reply, int):
                    self._upkeep_known.difference_update(due)  # the next sweep adds it again
                    self.dirty.update(dict.fromkeys(dirty))
                    self.new_record_logs.update(new)

            self.store.send(args, queued)
        for log in list(self.is_subscribed):
            log.guarded(log.subscription.sweep, now_s)
            if log not in self.is_subscribed:  # what other brokers appended made it larger
                log.guarded(self.open_logs.measure, log)
        self.open_logs.evict(_SWEEP_CHECKS_MAX)

    def _note_changed(self, appended: Iterable[PartitionLog]) -> None:
        """Note logs that changed for the broker that samples lag, which reads others rarely."""
        changed, self.moved_starts = dict.fromkeys((*appended, *self.moved_starts)), {}
        if changed and self._lag_is_sampled:
            names = (upkeep_item(log.topic, log.index) for log in changed)
            note(self.store.send, self.store.cluster_keys.changed_logs, names)

    async def _poll(self) -> None:
        """Cover lost messages: XREAD the subscribed logs that were not verified since the last poll."""
        stale: list[PartitionLog] = []
        for log in list(self.is_subscribed):
            if log.subscription.wanted:
                if log.state is None:
                    log.guarded(log.refresher.refresh, _ignore)
                elif self.loop.time() - log.state.verified_at >= self.poll_s:
                    stale.append(log)
        ends = {log.keys.log: f"{log.state.end}-0" for log in stale if log.state is not None}
        logs = {log.keys.log: log for log in stale}
        poll_streams(self.store, ends, lambda key: logs[key].refresher.refresh(_ignore))


def _ignore(_: Any) -> None:
    """Discard the reply; the next refresh reports failures."""
