"""Kafka groups on streams of format `record` are Redis consumer groups of the same name.

A member's fetch reads with XREADGROUP, its commit acknowledges with XACK. A Fetch names no group: the partition's
owner is found by the connection's client id and host, in the `owners` that are stored before any member gets its
assignment: by the leader's SyncGroup, or by the heartbeat that answers a member of KIP-848 with partitions. Where
several owners have both, a connection that has read for one of them before stays with it, and an owner that another
open connection reads for is left out. Where that does not decide, or no owner matches, the fetch reads with XRANGE,
and the Redis group is moved when the group commits.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from tidegate.errors import IllegalGeneration, KafkaError
from tidegate.log.owners import Owned, Owner, Reader, note_owner, parse_owners
from tidegate.log.read import OnSlice, Slice
from tidegate.log.record_format.owner_checks import OwnerChecks
from tidegate.records.entry_ids import FIRST_ID
from tidegate.store.calls import gather_each
from tidegate.store.script_lanes import READS
from tidegate.store.scripts import Script
from tidegate.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tidegate.log.record_format.record_log import RecordLog
    from tidegate.log.state import LogOffsets
    from tidegate.topics.model import Topic

READ_GROUP: Final = Script("records/read_group")
ACKNOWLEDGE_RECORDS: Final = Script("records/acknowledge_records")

logger = structlog.get_logger()

_AT_ONCE: Final = 64
_TRIES: Final = 3


@dataclass(slots=True)
class RecordConnection:
    """A client connection that fetches."""

    number: int
    reader: Reader


class RecordReader:
    """One partition of format `record` as one connection reads it; otherwise as `RecordLog`."""

    __slots__ = ("_connection", "_groups", "_log")

    def __init__(self, log: RecordLog, groups: RecordGroups, connection: RecordConnection) -> None:
        self._log = log
        self._groups = groups
        self._connection = connection

    @property
    def topic(self) -> Topic:
        """The topic."""
        return self._log.topic

    def read(self, offset: int, bytes_max: int, at_least_one: bool, on_done: OnSlice, committed: bool = False) -> None:
        """As `RecordLog.read`, for the group in which this client owns the partition."""
        log = self._log
        reading = self._groups.read(log, self._connection, offset, bytes_max, at_least_one)
        log.tasks.start(log.answer_read(reading, on_done))

    def is_at_end(self, offset: int, committed: bool = False) -> bool:
        """False: a group's reads go to Redis."""
        return False

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """As `RecordLog.on_change`."""
        return self._log.on_change(listener)

    def known(self) -> LogOffsets | None:
        """As `RecordLog.known`."""
        return self._log.known()

    def has_offsets(self, high_watermark: int, log_start: int) -> bool:
        """As `PartitionLog.has_offsets`."""
        known = self._log.known()
        return known is not None and (known.high_watermark, known.log_start_offset) == (high_watermark, log_start)

    async def ensure(self) -> LogOffsets:
        """As `RecordLog.ensure`."""
        return await self._log.ensure()

    async def epoch_end(self, epoch: int) -> tuple[int, int]:
        """As `RecordLog.epoch_end`."""
        return await self._log.epoch_end(epoch)


class RecordGroups:
    """The groups that read streams of format `record` through this broker."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._readers: dict[tuple[int, str, int], RecordReader] = {}
        self._bound: dict[tuple[str, str], tuple[int, str]] = {}
        self._owned: dict[tuple[int, str], Owned] = {}
        self._confirmed: dict[tuple[str, str], bytes] = {}
        self._checks = OwnerChecks(store)
        self._connections: dict[int, RecordConnection] = {}

    # -- connections

    def connection(
        self, number: int, reader: Reader, when_closed: Callable[[Callable[[], None]], None]
    ) -> RecordConnection:
        """A client's connection; `when_closed` has it forgotten."""
        found = self._connections.get(number)
        if found is None:
            found = self._connections[number] = RecordConnection(number, reader)
            when_closed(lambda: self._close_connection(number))
        return found

    def reader(self, log: RecordLog, connection: RecordConnection) -> RecordReader:
        """The partition as a connection reads it: the same object until the connection or the log closes."""
        key = connection.number, log.topic.topic_hex, log.index
        found = self._readers.get(key)
        if found is None or found._log is not log:
            found = RecordReader(log, self, connection)
            if self._is_open(connection):
                self._readers[key] = found
        return found

    def _is_open(self, connection: RecordConnection) -> bool:
        return self._connections.get(connection.number) is connection

    def _close_connection(self, number: int) -> None:
        self._connections.pop(number, None)
        for key in [key for key in self._readers if key[0] == number]:
            del self._readers[key]
        for bound in [one for one, (holder, _) in self._bound.items() if holder == number]:
            del self._bound[bound]
        for owned in [one for one in self._owned if one[0] == number]:
            del self._owned[owned]

    # -- reading

    async def read(
        self, log: RecordLog, connection: RecordConnection, offset: int, bytes_max: int, at_least_one: bool
    ) -> Slice:
        """Read for the group in which the connection's client owns the partition, or for none.

        Raises OffsetOutOfRange, UnknownTopicOrPartition, StoreUnavailable.
        """
        key = connection.number, log.keys.log
        for _ in range(_TRIES):
            owned = self._owned.get(key)
            if owned is None or not await self._is_current(log, owned):
                owned = await self._owner_of(log, connection)
            if owned is None:
                break
            try:
                return await self._read_group(log, owned, offset, bytes_max, at_least_one)
            except IllegalGeneration:
                self._owned.pop(key, None)
        return await log.read_range(offset, bytes_max, at_least_one)

    async def _read_group(self, log: RecordLog, owned: Owned, offset: int, bytes_max: int, at_least_one: bool) -> Slice:
        keys, ids, place = log.keys, log.ids, (log.keys.log, owned.group_id)
        committed = FIRST_ID
        if self._confirmed.get(place) != owned.record:  # the first read here: a commit may not be acknowledged yet
            committed = ids.id_before(await self._committed_offset(log, owned.group_id))
        while True:
            read = await log.run_on(
                READS, READ_GROUP, [keys.log, keys.meta, keys.owners, keys.readers],
                owned.group_id, owned.record, owned.owner.member_id, ids.id_before(offset),
                log.entries_of(bytes_max), log.bytes_of(bytes_max), committed,
            )  # fmt: skip
            self._confirmed[place] = owned.record
            found = log.slice_of(offset, read, bytes_max, True)
            if found.size or found.end_offset == offset or not read[2]:
                return found
            offset = found.end_offset  # only entries without an offset

    async def _owner_of(self, log: RecordLog, connection: RecordConnection) -> Owned | None:
        """The owner that a connection reads for; None if there is none, or if it is ambiguous."""
        owners = parse_owners(await self._store.command("HGETALL", log.keys.owners))
        alike = owners.get(connection.reader, [])
        current = [one for one in alike if await self._is_current(log, one)]
        if not self._is_open(connection):
            return None  # closed meanwhile: the member reads through its next connection
        mine = [one for one in current if self._bound.get((log.keys.log, one.group_id)) == self._mark(connection, one)]
        if not mine:
            mine = [one for one in current if not self._is_bound(log, one)]
        if len(mine) != 1:
            self._owned.pop((connection.number, log.keys.log), None)
            return None
        [owned] = mine
        self._bound[log.keys.log, owned.group_id] = self._mark(connection, owned)
        self._owned[connection.number, log.keys.log] = owned
        return owned

    @staticmethod
    def _mark(connection: RecordConnection, owned: Owned) -> tuple[int, str]:
        return connection.number, owned.owner.member_id

    def _is_bound(self, log: RecordLog, owned: Owned) -> bool:
        """Whether an open connection reads for this member."""
        bound = self._bound.get((log.keys.log, owned.group_id))
        return bound is not None and bound[1] == owned.owner.member_id

    async def _is_current(self, log: RecordLog, owned: Owned) -> bool:
        return await self._checks.is_current(log.topic.org, owned, log.topic.topic_hex, log.index)

    async def _committed_offset(self, log: RecordLog, group_id: str) -> int:
        """A group's stored offset; -1 without one. Raises StoreUnavailable."""
        keys = self._store.stored_group_keys(log.topic.org, group_id)
        text = await self._store.command("HGET", keys.offsets, f"{log.topic.name}:{log.index}")
        stored = json.loads(text) if text else {}
        is_of_topic = stored.get("topic_id", "") in ("", log.topic.topic_hex)
        return int(stored.get("offset", -1)) if is_of_topic else -1

    # -- owners, commits

    async def own(self, group_id: str, owners: Iterable[tuple[RecordLog, Owner]]) -> None:
        """Store the owners of partitions, before the members get their assignments. Failures are logged."""
        work = (note_owner(self._store, log.keys, group_id, owner) for log, owner in owners)
        await self._each(work, "owner_not_noted", group_id)

    async def acknowledge(self, group_id: str, commits: Sequence[tuple[RecordLog, int]]) -> None:
        """Acknowledge what a stored commit completes, on Redis Cluster. The next read repairs a failure."""
        work = [
            log.run(
                ACKNOWLEDGE_RECORDS,
                [log.keys.log, log.keys.meta, log.keys.readers],
                group_id,
                log.ids.id_before(offset),
            )
            for log, offset in commits
        ]
        for log, _ in commits:
            self._confirmed.pop((log.keys.log, group_id), None)
        await self._each(work, "commit_not_acknowledged", group_id)

    async def program_offset(self, log: RecordLog, group_id: str) -> int | None:
        """The position of a Redis group that no broker has used: its first pending entry, or the next undelivered.

        None without such a group. Raises StoreUnavailable.
        """
        by_broker, groups = await asyncio.gather(
            self._store.command("HEXISTS", log.keys.readers, group_id),
            self._store.command("XINFO", "GROUPS", log.keys.log),
        )
        found = next((one for one in groups if one[b"name"] == group_id.encode()), None)
        if by_broker or found is None:
            return None
        pending, first, *_ = await self._store.command("XPENDING", log.keys.log, group_id)
        if pending:
            return log.ids.end_of(first) - 1
        return log.ids.end_of(found[b"last-delivered-id"]) or None

    @staticmethod
    async def _each(work: Iterable[Awaitable[Any]], event: str, group_id: str) -> None:
        for outcome in await gather_each(work, _AT_ONCE):
            if isinstance(outcome, KafkaError):
                logger.debug(event, group=group_id, reason=str(outcome))
