"""Carry out a decided transaction: a marker in each of its partitions, its offsets in each group, then complete.

The decision is in Redis, so any broker can do this, and several may at once: a marker is appended at most once for each
partition and transaction (`log.admission`), and the last write names the version that it read. Partitions of topics
that were deleted meanwhile are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final
from uuid import UUID

import structlog

from tidegate.errors import InvalidProducerEpoch, KafkaError, UnknownTopicOrPartition
from tidegate.groups import staged_offsets
from tidegate.groups.staged_offsets import AppliedOffset
from tidegate.log.append import Appended
from tidegate.log.outgoing import KnownTransaction
from tidegate.log.record_format.record_log import RecordLog
from tidegate.records.control import Marker, MarkerType, build_marker
from tidegate.store.batching import SingleFlight
from tidegate.store.calls import gather_each, result_of
from tidegate.store.keys import GroupKeys, TransactionKeys
from tidegate.store.slices import slices
from tidegate.store.store import Store
from tidegate.topics.model import Topic
from tidegate.transactions import transitions
from tidegate.transactions.model import State, Transaction, TransactionPartition, in_order
from tidegate.transactions.records import Records

if TYPE_CHECKING:
    from tidegate.log.logs import Logs
    from tidegate.topics.catalog import Catalog

logger = structlog.get_logger()

PARTITIONS_AT_ONCE: Final = 200
"""Markers and groups of one transaction that are under way at the same time."""
_REPORTED_AT_ONCE: Final = 1_000
_TRIES: Final = 5
_PAUSE_S: Final = 0.1

OnCommitted = Callable[[GroupKeys, str, list[tuple[Topic, int, int]]], None]
"""Called with a group, a transactional id, and offsets that its transaction committed there, by topic and partition: of
each once at least, and with others of the group where a broker continued what another had begun."""


class Completion:
    """Completes decided transactions on this broker; one run for each transactional id at a time."""

    def __init__(self, store: Store, records: Records, catalog: Catalog, logs: Logs, on_committed: OnCommitted) -> None:
        self._store = store
        self._records = records
        self._catalog = catalog
        self._logs = logs
        self._on_committed = on_committed
        self._running: SingleFlight[str] = SingleFlight()

    async def complete(
        self, keys: TransactionKeys, one: Transaction | None = None, *, is_confirmed: bool = False
    ) -> None:
        """Complete the transaction of an id if it is decided; `one` is its record if the caller just wrote it.

        `is_confirmed`: the record is as durable as `durability` says. Raises KafkaError if that was not possible yet.
        """
        decided = one if one is not None else await self._records.read(keys)
        if decided is not None and decided.state.is_prepared:
            await self._running.do(decided.version, lambda: self._complete(keys, decided, is_confirmed))

    async def close(self) -> None:
        """Stop; other brokers complete what is left."""
        await self._running.close()

    async def _complete(self, keys: TransactionKeys, one: Transaction, is_confirmed: bool) -> None:
        reported: set[str] = set()
        for attempt in range(1, _TRIES + 1):
            try:
                await self._carry_out(keys, one, is_confirmed, reported)
                await self._records.write(keys, one, transitions.complete(one))  # refused: another broker has done it
                return
            except KafkaError as error:
                if attempt == _TRIES:
                    logger.warning("transaction_not_completed", transaction=keys.ref, reason=str(error))
                    raise
                await asyncio.sleep(_PAUSE_S * attempt)

    async def _carry_out(self, keys: TransactionKeys, one: Transaction, is_confirmed: bool, reported: set[str]) -> None:
        """One attempt; `reported` are the groups whose committed offsets an earlier one has reported."""
        is_commit = one.state is State.PREPARE_COMMIT
        kind = MarkerType.COMMIT if is_commit else MarkerType.ABORT
        marker = Marker(one.producer_id, one.epoch, kind, one.ended_ms)
        if not is_confirmed:
            async with self._logs.durability.confirmed_if_sharded(self._store.node(keys.transaction)):
                pass  # the decision, before what follows it
        groups = (self._end_group(keys, group, one, reported) for group in sorted(one.groups))
        partitions = (self._mark(keys.org, partition, marker) for partition in in_order(one.partitions))
        results = await gather_each(chain(groups, partitions), PARTITIONS_AT_ONCE)
        for failure in filter(None, results):  # after all: in Redis Cluster those of other nodes do not wait for it
            raise failure

    async def _end_group(self, of: TransactionKeys, group_id: str, one: Transaction, reported: set[str]) -> None:
        keys, is_commit = self._store.stored_group_keys(of.org, group_id), one.state is State.PREPARE_COMMIT
        async with self._logs.durability.confirmed_if_sharded(self._store.node(keys.group)):
            ended = await staged_offsets.end(self._store, keys, one.producer_id, one.ended_ms, is_commit)
        if is_commit and (ended.is_all or group_id not in reported):
            offsets = ended.applied if ended.is_all else await staged_offsets.committed(self._store, keys)
            await self._report(of, keys, offsets)
            reported.add(group_id)

    async def _report(self, of: TransactionKeys, keys: GroupKeys, offsets: Sequence[AppliedOffset]) -> None:
        """Report committed offsets, and acknowledge those of topics of format record in their Redis groups."""
        acknowledged: list[tuple[RecordLog, int]] = []
        async for part in slices(offsets, _REPORTED_AT_ONCE):
            moved = [
                (topic, one.partition, one.offset)
                for one in part
                if (topic := self._catalog.get(keys.org, one.topic)) is not None and topic.topic_hex == one.topic_hex
            ]
            if moved:
                self._on_committed(keys, of.transactional_id, moved)
            for topic, index, offset in moved:
                log = self._logs.partition(topic, index) if topic.config.is_record else None
                if isinstance(log, RecordLog):
                    acknowledged.append((log, offset))
        if acknowledged:
            await self._logs.record_groups.acknowledge(keys.group_id, acknowledged)

    async def _mark(self, org: str, partition: TransactionPartition, marker: Marker) -> None:
        topic_id = UUID(hex=partition.topic_hex)
        topic = await self._catalog.find_by_id(org, topic_id)
        if topic is not None and partition.partition >= topic.partition_count:  # another broker has added it
            await self._catalog.refresh()
            topic = self._catalog.by_id(org, topic_id)
        if topic is None:
            return
        try:
            await append_marker(self._logs, topic, partition.partition, marker)
        except UnknownTopicOrPartition:
            return
        except InvalidProducerEpoch:  # an administrator ended the transaction there with a later epoch
            logger.warning(
                "marker_fenced", topic=partition.topic, partition=partition.partition, epoch=marker.producer_epoch
            )


async def append_marker(
    logs: Logs, topic: Topic, index: int, marker: Marker, ended: KnownTransaction | None = None
) -> Appended:
    """Append a marker to a partition's log; `ended`: if no other transaction is open there. Raises KafkaError."""
    batch = build_marker(marker, logs.store.clock.now_ms())
    return await result_of(partial(logs.partition(topic, index).append, batch, ended=ended))
