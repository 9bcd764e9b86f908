"""What the components of one partition's log share: the broker's services, the cached state, and its invalidation.

`PartitionLog` completes this class and builds the components. A component receives the log as `CachedLog`, and the
other components that it needs as arguments, so that no module of this package depends on one that is built upon it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import structlog

from tidegate.errors import KafkaError, UnknownTopicOrPartition
from tidegate.log.entries import Entry, StrayEntry
from tidegate.log.open_partition import OpenPartition
from tidegate.log.services import LogServices
from tidegate.log.state import LogState
from tidegate.log.tail import LogPages

if TYPE_CHECKING:
    from tidegate.topics.catalog import Topic

logger = structlog.get_logger()

OnState = Callable[["LogState | KafkaError"], None]


class KnownEnd(NamedTuple):
    """What a state that became void knew of the end of the log, and the newest leader epoch of its records."""

    end: int
    log_version: int
    record_epoch: int


class CachedLog(OpenPartition, ABC):
    """The cached state of one partition on one broker. Losing it loses no data."""

    def __init__(self, services: LogServices, topic: Topic, index: int) -> None:
        super().__init__(services, topic, index)
        self.usage = services.usage
        self.archive_files = services.archive_files
        self.poll_s = services.poll_s
        self.state: LogState | None = None
        self.pages = LogPages(services.cache)
        self._before: KnownEnd | None = None
        """Of the last state that became void."""
        self._voids = 0

    @property
    def voids(self) -> int:
        """How often the state became void; callers compare it to detect that a reply is out of date."""
        return self._voids

    @property
    def used_s(self) -> float:
        """When the state was last verified; 0 without one."""
        return self.state.verified_at if self.state is not None else 0.0

    @property
    def state_bytes(self) -> int:
        """Upper bound of the state's memory."""
        return self.state.memory_bytes if self.state is not None else 0

    def void(self, reason: str | None) -> None:
        """Discard the state and the caches that depend on it: it may be wrong from now on.

        Without a reason the caller logs it, once for many logs: a line takes 4 us even where none is written.
        """
        self._voids += 1
        if self.state is not None:
            if reason is not None:
                logger.debug("log_state_invalidated", log=self.keys.log, reason=reason)
            self._before = KnownEnd(self.state.end, self.state.log_version, self.state.record_epoch)
            self.state = None
            self.pages.clear()
            self.pages.on_drop()

    def report_truncation(self, state: LogState) -> None:
        """Report once what the log had before its server failed over, and lacks now: log, metric, meta.

        The log ended where the first leader epoch that this broker did not know begins: other brokers may have
        appended since.
        """
        before, self._before = self._before, None
        if before is None or state.log_version > before.log_version:
            return
        end = min([state.end, *(start for epoch, start in state.epochs if epoch > before.record_epoch)])
        lost_records = before.end - end
        if lost_records > 0:
            logger.error(
                "log_truncated", log=self.keys.log, end=end, lost_records=lost_records,
                failover_epoch=state.failover_epoch,
            )  # fmt: skip
            self.on_truncation(end, lost_records, state.failover_epoch)

    @abstractmethod
    def on_truncation(self, end: int, lost_records: int, failover_epoch: int) -> None:
        """Count and store the records that this broker knew and a fail-over lost; the log ended at `end` then."""

    @abstractmethod
    def with_state(self, on_state: OnState) -> None:
        """Load the state, then call with it or with the failure. Never calls before it returns."""

    @abstractmethod
    async def refresh(self) -> LogState:
        """The state, verified after the call. Raises UnknownTopicOrPartition, StoreUnavailable."""

    @abstractmethod
    def appended(self, state: LogState, entry: Entry) -> None:
        """This broker's entry is in the log and in the state; `Appends` notifies the listeners."""

    @abstractmethod
    def found(self, state: LogState, entries: list[Entry], log_start: int, local_start: int) -> None:
        """Apply a refresh: the entries that follow the state, the log start and the local start."""

    @abstractmethod
    def found_stray(self, state: LogState, stray: StrayEntry) -> None:
        """Block appends and reads at the end until the log is repaired. Logged once for each stray entry."""

    @abstractmethod
    def gone(self) -> UnknownTopicOrPartition:
        """Void the state of a deleted partition; returns the error for its callers."""

    @abstractmethod
    def write_progress(self) -> None:
        """Write the pending estimates and index entries."""

    @abstractmethod
    async def save_producers(self, state: LogState, offset: int) -> None:
        """Save the producer table as of the state's end, unless Redis has one of `offset` or above.

        Raises StoreUnavailable, UnknownTopicOrPartition.
        """
