"""The stream of one partition of format `record` on one broker: its keys, its epoch, and who waits for its changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import structlog

from tidegate.errors import UnknownTopicOrPartition
from tidegate.log.open_partition import OpenPartition
from tidegate.log.partitions import create_partition
from tidegate.log.services import LogServices
from tidegate.log.state import LogOffsets
from tidegate.records.entry_ids import FIRST_ID, RecordIds
from tidegate.store.keys import RECORD_FORMAT
from tidegate.store.link import Arg
from tidegate.store.node import Lane
from tidegate.store.script_lanes import run_on
from tidegate.store.scripts import Script

if TYPE_CHECKING:
    from tidegate.topics.catalog import Topic

logger = structlog.get_logger()


class RecordStream(OpenPartition):
    """What appends, transactions and reads of the partition share."""

    def __init__(self, services: LogServices, topic: Topic, index: int) -> None:
        super().__init__(services, topic, index, RECORD_FORMAT)
        self.ids = RecordIds(topic.config.sequence_bits)
        self.state: None = None
        self.stray: None = None
        self.high_watermark_known = True
        self.last_id = FIRST_ID
        """The stream's last id as of the last read, for the poll."""
        self._services = services
        self._listeners: dict[int, Callable[[], None]] = {}
        self._next_id = 0
        self._known: LogOffsets | None = None

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after appends, trims and deletion by anyone; the result removes it."""
        listener_id = self._next_id = self._next_id + 1
        if not self._listeners:
            self.store.pubsub.listen(self.keys.wake, self._message)
            self._services.record_poll.add(self)
        self._listeners[listener_id] = listener

        def remove() -> None:
            if self._listeners.pop(listener_id, None) is not None and not self._listeners:
                self._stop_listening()

        return remove

    @property
    def leader_epoch(self) -> int:
        """The failover epoch less 1, as Metadata reports it for every partition.

        What is appended after a fail-over that lost entries has later ids, so no offset is used twice, and every epoch
        ends at the end of the log.
        """
        return max(self._services.failover_epochs.last_number - 1, 0)

    async def run(self, script: Script, keys: Sequence[str], *args: Arg) -> list[Any]:
        """As `Store.run`; a meta that was deleted by hand is stored again."""
        return await self._with_meta(lambda: self.store.run(script, keys, *args))

    async def run_on(self, lane: Lane, script: Script, keys: Sequence[str], *args: Arg) -> list[Any]:
        """As `run`, on a data lane."""
        return await self._with_meta(lambda: run_on(self.store, lane, script, keys, *args))

    async def _with_meta(self, call: Callable[[], Awaitable[list[Any]]]) -> list[Any]:
        try:
            return await call()
        except UnknownTopicOrPartition:
            await self._restore_meta()
        return await call()

    async def _restore_meta(self) -> None:
        """Store the meta of a stream that exists; the log then starts at its first entry.

        Raises UnknownTopicOrPartition if the topic was deleted.
        """
        if not await self.store.command("EXISTS", self.keys.log):
            raise UnknownTopicOrPartition
        await create_partition(self.store, self.keys)
        logger.error("log_meta_rebuilt", log=self.keys.log)

    def appended(self) -> None:
        """This broker appended: its waiting fetches read again."""
        self.notify()

    def lost_staged(self, producer_id: int, records: int) -> None:
        """A transaction was committed without so many of its records: somebody deleted what was staged."""
        self._services.lost_records += records
        logger.warning(
            "staged_records_lost", org=self.topic.org, topic=self.topic.name, partition=self.index,
            producer_id=producer_id, records=records,
        )  # fmt: skip

    def notify(self) -> None:
        """Something changed: drop the known offsets and call every listener."""
        self._known = None
        self._call_listeners()

    def _call_listeners(self) -> None:
        for listener in list(self._listeners.values()):
            self.guarded(listener)

    def _message(self, payload: bytes | None) -> None:
        if payload is None or payload.rpartition(b":")[2] != self.writer.name:
            self.notify()

    def _stop_listening(self) -> None:
        self.store.pubsub.forget(self.keys.wake, self._message)
        self._services.record_poll.remove(self)

    def void(self, reason: str | None) -> None:
        """A connection was lost, or the log moved: nothing cached is used."""
        self._known = None
