"""The partition logs of one broker, by topic and index, and the services that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

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
from tidegate.store.slices import slices
from tidegate.store.store import Store
from tidegate.telemetry import declared
from tidegate.telemetry.background_tasks import BackgroundTasks
from tidegate.telemetry.metrics import metrics

if TYPE_CHECKING:
    from tidegate.topics.catalog import Topic

logger = structlog.get_logger()

_SWEEP_MS: Final = 1_000
_AT_ONCE: Final = 500
"""Logs that a background task handles before other work of the event loop: up to 20 us each, with their commands."""
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
        """Close the logs of a removed topic, many in slices; waiting requests receive UnknownTopicOrPartition."""
        self._close_removed([key for key in self.open_logs if key[0] == topic.topic_hex])

    def _close_removed(self, keys: Sequence[tuple[str, int]]) -> None:
        if len(keys) > _AT_ONCE:
            self.loop.call_soon(self._close_removed, keys[_AT_ONCE:])
        for key in keys[:_AT_ONCE]:
            if key in self.open_logs:  # not evicted meanwhile
                self.open_logs.remove(key).close(UnknownTopicOrPartition())

    def drop_states(self, node: Node | None = None) -> None:
        """Void the cached states of a node's logs (or of all): a connection or the broker lease was lost."""
        self._upkeep_known.clear()
        dependent = [log for log in self.open_logs.values() if node is None or log.lanes.depends_on(node)]
        _void(dependent, "connections or lease lost")

    def _logs_moved(self) -> None:
        """Void the states whose node changed: failover epochs are checked per node (design, rule 8)."""
        _void([log for log in self.open_logs.values() if log.lanes.has_moved], "the log is at another node")

    # -- background tasks

    async def _sweep(self) -> None:
        """Each second: write progress and upkeep of what was appended, and end idle subscriptions.

        A log in one of the lists is not evicted meanwhile.
        """
        now_s = self.loop.time()
        async for changed in slices({**self.dirty, **self.moved_starts}, _AT_ONCE):
            self._write(changed)
        new, self.new_record_logs = self.new_record_logs, set()
        async for opened in slices(new, _AT_ONCE):
            self._queue_upkeep(opened)
        async for subscribed in slices(self.is_subscribed, _AT_ONCE):
            for log in subscribed:
                log.guarded(log.subscription.sweep, now_s)
                if log not in self.is_subscribed:  # what other brokers appended made it larger
                    log.guarded(self.open_logs.measure, log)
        self.open_logs.evict(_SWEEP_CHECKS_MAX)

    def _write(self, changed: Sequence[PartitionLog]) -> None:
        """Note what changed, and write the progress of the dirty logs among it. Those stay dirty until now: `close`
        writes what an interrupted sweep has left."""
        dirty = [log for log in changed if log in self.dirty]
        for log in changed:
            self.dirty.pop(log, None)
            self.moved_starts.pop(log, None)
        self._note_changed(changed)
        for log in dirty:
            log.guarded(log.progress.write)
            log.guarded(self.open_logs.measure, log)
        self._queue_upkeep(dirty)

    def _note_changed(self, changed: Iterable[PartitionLog]) -> None:
        """Note logs that changed for the broker that samples lag, which reads others rarely."""
        if self._lag_is_sampled:
            names = (upkeep_item(log.topic, log.index) for log in changed)
            note(self.store.send, self.store.cluster_keys.changed_logs, names)

    def _queue_upkeep(self, used: Iterable[AnyLog]) -> None:
        """Add logs to the upkeep list that this broker has not added yet; at the next sweep if Redis is away."""
        due: dict[str, AnyLog] = {}
        for log in used:
            item = upkeep_item(log.topic, log.index)
            if item not in self._upkeep_known:
                due[item] = log
        if not due:
            return
        self._upkeep_known.update(due)
        args: list[Arg] = ["ZADD", self.store.cluster_keys.upkeep, "NX"]
        for item in due:
            args += (0, item)

        def queued(reply: Any) -> None:
            if not isinstance(reply, int):
                self._upkeep_known.difference_update(due)
                for log in due.values():
                    if isinstance(log, RecordLog):
                        self.new_record_logs.add(log)
                    else:
                        self.dirty[log] = None

        self.store.send(args, queued)

    async def _poll(self) -> None:
        """Cover lost messages: XREAD the subscribed logs that were not verified since the last poll."""
        async for subscribed in slices(self.is_subscribed, _AT_ONCE):
            self._poll_some(subscribed)

    def _poll_some(self, subscribed: Sequence[PartitionLog]) -> None:
        stale: list[PartitionLog] = []
        for log in subscribed:
            if log.subscription.wanted:
                if log.state is None:
                    log.guarded(log.refresher.refresh, _ignore)
                elif self.loop.time() - log.state.verified_at >= self.poll_s:
                    stale.append(log)
        ends = {log.keys.log: f"{log.state.end}-0" for log in stale if log.state is not None}
        logs = {log.keys.log: log for log in stale}
        poll_streams(self.store, ends, lambda key: logs[key].refresher.refresh(_ignore))


def _void(logs: Sequence[AnyLog], reason: str) -> None:
    """Discard the states of logs without a pause: none may be used any more."""
    for log in logs:
        log.void(None)
    if logs:
        logger.debug("log_states_invalidated", logs=len(logs), reason=reason)


def _ignore(_: Any) -> None:
    """Discard the reply; the next refresh reports failures."""
