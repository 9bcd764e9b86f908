"""Acquire, acknowledge and release records of share-partitions: one script a step, for any number of partitions.

The state is in the group's hash tag; the broker brings what the log knows (its start offset, the batches behind the
window), and the script decides what the member gets. A script that has read its rows leaves the other partitions to the
next one: Redis executes nothing else meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidegate.errors import KafkaStorageError, StoreUnavailable
from tidegate.groups.commit_answers import Prove
from tidegate.groups.configs import (
    SHARE_DELIVERY_COUNT_LIMIT,
    SHARE_PARTITION_MAX_RECORD_LOCKS,
    SHARE_RECORD_LOCK_DURATION_MS,
)
from tidegate.groups.share.acknowledgements import Acknowledgement
from tidegate.groups.share.sessions import Acquirer, SharePartition
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.node import Node
from tidegate.store.scripts import Script
from tidegate.store.store import Store

ACQUIRE_RECORDS = Script("share/acquire_records")
ACKNOWLEDGE_RECORDS = Script("share/acknowledge_records")
RELEASE_RECORDS = Script("share/release_records")
READ_PARTITIONS = Script("share/read_partitions")
READ_IN_FLIGHT = Script("share/read_in_flight")

READ_COMMITTED: Final = b"read_committed"
PARTITIONS_PER_SCRIPT: Final = 500
ROWS_PER_SCRIPT: Final = 5_000
"""Rows that one script reads, about; a row takes 6 us. A partition's acknowledgement is never divided."""
_RECORDS_MAX: Final = 1 << 31
_STORED: Final = 0


@dataclass(frozen=True, slots=True)
class Acquired:
    """A range of records that a member has acquired, both offsets inclusive."""

    first: int
    last: int
    delivery_count: int


@dataclass(frozen=True, slots=True)
class Run:
    """Records that are offered together: a batch, or one record with its key and time of delivery (ms, 0 for none)."""

    first: int
    last: int
    is_aborted: bool = False
    key: str = ""
    deliver_at_ms: int = 0

    @property
    def kind(self) -> str:
        """The run as the script reads it."""
        if self.is_aborted:
            return "1"
        return f"0 {self.key or '-'} {self.deliver_at_ms}" if self.key or self.deliver_at_ms else "0"


@dataclass(frozen=True, slots=True)
class Readable:
    """What a broker knows of one share-partition's log: runs of records behind `read_from`."""

    partition: SharePartition
    log_start: int
    read_from: int = -1
    runs: Sequence[Run] = ()


@dataclass(frozen=True, slots=True)
class PartitionAcquired:
    """The outcome for one share-partition; `unlocks_in_ms` is -1 if nothing is locked."""

    epoch: str
    start: int
    end: int
    is_open: bool
    unlocks_in_ms: int
    ranges: Sequence[Acquired]


@dataclass(frozen=True, slots=True)
class Reads:
    """How a group reads: only committed records, one record of a key at a time, not before a record's time."""

    is_committed: bool
    by_key: bool
    by_time: bool

    @classmethod
    def of(cls, text: bytes) -> Reads:
        """From the script's reply."""
        isolation, *others = text.split()
        return cls(isolation == READ_COMMITTED, b"key" in others, b"time" in others)


@dataclass(frozen=True, slots=True)
class AcquiredRecords:
    """What one acquisition did. A share-partition that is not initialised has None."""

    lock_ms: int
    reads: Reads
    record_count: int
    is_full: bool
    partitions: Sequence[PartitionAcquired | None]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a share-partition has come; `start` is -1 if it is not initialised."""

    start: int
    end: int
    unfinished_count: int
    locked_ranges: int
    available_ranges: int

    def lag(self, high_watermark: int) -> int:
        """Records that are not finished; -1 if it is not initialised."""
        return -1 if self.start < 0 else high_watermark - self.end + self.unfinished_count


@dataclass(frozen=True, slots=True)
class InFlight:
    """The records in flight of a share-partition; `by_member` has those that each member has acquired."""

    start: int
    end: int
    unfinished_count: int
    returned_count: int
    waiting_count: int
    delivery_count: int
    redelivered_total: int
    failed_total: int
    dead_lettered_total: int
    """Those of the failed ones that were written to the dead-letter topic."""
    dropped_total: int
    """Those that could not be written to it."""
    unlocks_ms: int | None
    by_member: Mapping[str, int]

    def lag(self, high_watermark: int) -> int:
        """Records that are not finished."""
        return max(high_watermark - self.end, 0) + self.unfinished_count


Batches = tuple[SharePartition, str, Sequence[Acknowledgement]]
"""What is acknowledged of a share-partition, with the epoch of its acquisition, or ""."""


def partitions_after(answered: int) -> int:
    """How many share-partitions the next script is asked for, after one that left the others to it."""
    return min(max(2 * answered, 1), PARTITIONS_PER_SCRIPT)


class ShareRecords:
    """The records in flight of share groups. `prove` is None where `durability` needs no proofs."""

    def __init__(self, store: Store, prove: Prove | None = None) -> None:
        self._store, self.prove = store, prove

    @staticmethod
    def _limits() -> list[Arg]:
        """The first arguments of what changes records: the defaults of the group's configs, and the rows to read."""
        return [
            SHARE_DELIVERY_COUNT_LIMIT,
            SHARE_RECORD_LOCK_DURATION_MS,
            SHARE_PARTITION_MAX_RECORD_LOCKS,
            ROWS_PER_SCRIPT,
        ]

    @staticmethod
    def _keys(keys: GroupKeys, partitions: Iterable[SharePartition]) -> list[str]:
        """The keys of what changes records: those of the group, and four of each share-partition."""
        shard = keys.shard_keys
        return [keys.configs, keys.shares, keys.dead_letters, shard.deadlines, *_partition_keys(keys, partitions)]

    async def acquire(
        self,
        keys: GroupKeys,
        acquirer: Acquirer,
        readable: Sequence[Readable],
        record_count: int,
        *,
        exact: bool,
        batch_size: int,
    ) -> AcquiredRecords:
        """Acquire up to `record_count` records; unless `exact`, whole batches.

        The answer has the first share-partitions, at least one: the others had no part in it. Raises StoreUnavailable.
        """
        args = [*self._limits(), acquirer.member_id, min(record_count, _RECORDS_MAX), int(exact), max(batch_size, 1)]
        args += (keys.ref, acquirer.session_id)
        for one in readable:
            args += (one.log_start, one.read_from, len(one.runs))
            for run in one.runs:
                args += (run.first, run.last, run.kind)
        names = self._keys(keys, (one.partition for one in readable))
        while True:
            lock_ms, isolation, taken, is_full, *found = await self._store.run(ACQUIRE_RECORDS, names, *args)
            if found or not readable:  # else locks of the first share-partition expired, and there are more
                break
        partitions = [_partition_acquired(one) for one in found]
        return AcquiredRecords(lock_ms, Reads.of(isolation), taken, bool(is_full), partitions)

    async def acknowledge(
        self,
        keys: GroupKeys,
        acquirer: Acquirer,
        acknowledged: Sequence[Batches],
    ) -> tuple[int, list[int]]:
        """Acknowledge batches of share-partitions. Raises StoreUnavailable if nothing was acknowledged.

        Returns the lock duration in ms, and the code of each share-partition: KAFKA_STORAGE_ERROR where it is unknown.
        """
        codes: list[int] = []
        lock_ms = 0

        async def acknowledge(first: int, end: int) -> int:
            nonlocal lock_ms
            part = _for_one_script(acknowledged[first:end])
            lock_ms, *found = await self._acknowledge(keys, acquirer, part)
            codes.extend(found)
            return len(found)

        try:
            await _in_parts(len(acknowledged), acknowledge)
        except StoreUnavailable:
            if not codes:
                raise
            codes += [KafkaStorageError.code.value] * (len(acknowledged) - len(codes))
        return lock_ms, codes

    async def _acknowledge(self, keys: GroupKeys, acquirer: Acquirer, part: Sequence[Batches]) -> list[Any]:
        args = [*self._limits(), acquirer.member_id, keys.shard_keys.available, keys.ref, acquirer.session_id]
        for _, epoch, batches in part:
            args += (epoch, len(batches))
            for batch in batches:
                args += (batch.first, batch.last, batch.digits)
        names = self._keys(keys, (partition for partition, _, _ in part))
        return await self._store.run(ACKNOWLEDGE_RECORDS, names, *args)

    async def acknowledge_proved(
        self,
        keys: GroupKeys,
        acquirer: Acquirer,
        acknowledged: Sequence[Batches],
    ) -> tuple[int, list[int]]:
        """As `acknowledge`, once it is proved; what is not proved has the code KAFKA_STORAGE_ERROR."""
        if self.prove is None:
            return await self.acknowledge(keys, acquirer, acknowledged)
        node = self._store.node(keys.configs)
        connection = node.control.failover_epoch
        lock_ms, codes = await self.acknowledge(keys, acquirer, acknowledged)
        if _STORED in codes and not await self._is_proved(self.prove, keys, node, connection):
            codes = [KafkaStorageError.code.value if code == _STORED else code for code in codes]
        return lock_ms, codes

    async def _is_proved(self, prove: Prove, keys: GroupKeys, node: Node, connection: int) -> bool:
        """Whether what a node answered on a connection is proved; on another one, the proof may be another server's."""
        proved: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def on_proved(held: bool) -> None:
            if not proved.done():
                proved.set_result(held and node.control.failover_epoch == connection)

        prove(node, on_proved)
        return await proved and self._store.node(keys.configs) is node

    async def release(self, keys: GroupKeys, acquirer: Acquirer, partitions: Sequence[SharePartition]) -> None:
        """Release what a member has acquired of share-partitions, in any session if none is named.

        Raises StoreUnavailable.
        """
        args = [*self._limits(), acquirer.member_id, keys.shard_keys.available, keys.ref, acquirer.session_id]
        read_from: Arg = 0

        async def release(first: int, end: int) -> int:
            nonlocal read_from
            names = self._keys(keys, partitions[first:end])
            done, read_from = await self._store.run(RELEASE_RECORDS, names, *args, read_from)
            return int(done)

        await _in_parts(len(partitions), release)

    async def progress(self, keys: GroupKeys, partitions: Sequence[SharePartition]) -> list[Progress]:
        """How far share-partitions have come. Raises StoreUnavailable."""
        found: list[Progress] = []
        for at in range(0, len(partitions), PARTITIONS_PER_SCRIPT):
            names = _partition_keys(keys, partitions[at : at + PARTITIONS_PER_SCRIPT])
            reply = await self._store.run(READ_PARTITIONS, names)
            found += [Progress(*reply[place : place + 5]) for place in range(0, len(reply), 5)]
        return found

    async def in_flight(self, keys: GroupKeys, partitions: Sequence[SharePartition]) -> list[InFlight | None]:
        """What is in flight of share-partitions; None for one that is not initialised. Raises StoreUnavailable."""
        found: list[InFlight | None] = []

        async def read(first: int, end: int) -> int:
            names = _partition_keys(keys, partitions[first:end])
            replies = await self._store.run(READ_IN_FLIGHT, names, ROWS_PER_SCRIPT)
            found.extend(map(_in_flight, replies))
            return len(replies)

        await _in_parts(len(partitions), read)
        return found


async def _in_parts(count: int, ask: Callable[[int, int], Awaitable[int]]) -> None:
    """Ask for share-partitions from one to before another, until all are answered; `ask` returns how many were."""
    at, limit = 0, PARTITIONS_PER_SCRIPT
    while at < count:
        answered = await ask(at, min(at + limit, count))
        at, limit = at + answered, partitions_after(answered)


def _for_one_script(acknowledged: Sequence[Batches]) -> Sequence[Batches]:
    """The first share-partitions, at least one, with no more acknowledgements than a script reads rows."""
    count = 0
    for place, (_, _, batches) in enumerate(acknowledged):
        count += sum(len(batch.digits) for batch in batches)
        if place and count > ROWS_PER_SCRIPT:
            return acknowledged[:place]
    return acknowledged


def _partition_keys(keys: GroupKeys, partitions: Iterable[SharePartition]) -> list[str]:
    return [name for one in partitions for name in keys.share(one.topic_id.hex, one.index)]


def _in_flight(reply: Sequence[Any]) -> InFlight | None:
    if not reply:
        return None
    start, end, unfinished, returned, waiting, highest, redelivered, failed, written, dropped, unlocks_ms = reply[:11]
    by_member = {reply[at].decode(): reply[at + 1] for at in range(11, len(reply), 2)}
    totals = redelivered, failed, written, dropped
    unlocks = None if unlocks_ms < 0 else unlocks_ms
    return InFlight(start, end, unfinished, returned, waiting, highest, *totals, unlocks, by_member)


def _partition_acquired(found: Sequence[Any]) -> PartitionAcquired | None:
    epoch, *numbers = found
    if not epoch:
        return None
    start, end, is_open, unlocks_in_ms, *ranges = numbers
    acquired = [Acquired(*ranges[at : at + 3]) for at in range(0, len(ranges), 3)]
    return PartitionAcquired(epoch.decode(), start, end, bool(is_open), unlocks_in_ms, acquired)
