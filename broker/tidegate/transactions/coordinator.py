"""The coordinator of transactions: what InitProducerId, AddPartitionsToTxn, EndTxn and transactional batches ask.

Every broker is the coordinator of every transactional id: the record is in Redis (`records.py`), its transitions are
pure (`transitions.py`), and a decided transaction is completed by whichever broker finds it (`completion.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

import structlog

from tidegate.errors import KafkaError, UnknownTopicOrPartition
from tidegate.settings import Settings
from tidegate.store.calls import error_of
from tidegate.store.clocks import clock_of
from tidegate.store.keys import TransactionKeys
from tidegate.store.store import Store
from tidegate.store.tasks import TaskSet
from tidegate.transactions import transitions
from tidegate.transactions.completion import Completion, OnCommitted
from tidegate.transactions.errors import ConcurrentTransactions
from tidegate.transactions.model import NO_PRODUCER_ID, State, Transaction, TransactionPartition
from tidegate.transactions.producers import ProducerIds
from tidegate.transactions.records import Decide, Records

if TYPE_CHECKING:
    from tidegate.groups.decision_queue import PendingCall
    from tidegate.log.logs import Logs
    from tidegate.log.outgoing import OnConfirmed
    from tidegate.topics.catalog import Catalog

logger = structlog.get_logger()

COMPLETE_BEFORE_REPLY_S: Final = 0.5
"""How long EndTxn waits for the markers. The decision is durable before; a reply after them saves the client's next
request the error CONCURRENT_TRANSACTIONS."""


class _Asked(NamedTuple):
    """A partition that a batch waits for; `not_added` makes the error if it is not in the transaction."""

    partition: TransactionPartition
    on_confirmed: OnConfirmed
    not_added: Callable[[], KafkaError]


class Coordinator:
    """The transactions of every organisation, as served by this broker."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        catalog: Catalog,
        logs: Logs,
        producer_ids: ProducerIds,
        on_committed: OnCommitted,
    ) -> None:
        self.records = Records(store, settings)
        self.completion = Completion(store, self.records, catalog, logs, on_committed)
        self._store = store
        self._catalog = catalog
        self._logs = logs
        self._producer_ids = producer_ids
        self.tasks = TaskSet()
        self._asked: dict[tuple[str, int, int, bool], list[_Asked]] = {}
        """By key, producer id, epoch and `adds`: one access serves all that asked during the one before."""

    async def close(self) -> None:
        """Stop; other brokers complete what is left."""
        await self.tasks.close()
        await self.completion.close()

    # -- requests of producers

    # `call` is the request: it is refused if its producer may have continued at another broker (`records.py`).

    async def initialise(
        self, call: PendingCall, keys: TransactionKeys, timeout_ms: int, producer_id: int, epoch: int
    ) -> tuple[int, int]:
        """InitProducerId: the producer's id and epoch. Raises ConcurrentTransactions while one is being ended."""
        new_producer_id = await self._producer_ids.take()

        def decide(one: Transaction | None) -> Transaction:
            if one is None:
                return Transaction(new_producer_id, 0, timeout_ms)
            return transitions.initialise(one, timeout_ms, producer_id, epoch, new_producer_id)

        async with self._confirmed(keys):
            one = await self._change(keys, decide, call)
            if one.state.is_prepared:
                self.complete_soon(keys, one)
                raise ConcurrentTransactions("the open transaction is being aborted")
        return one.producer_id, one.epoch

    async def add(
        self, call: PendingCall, keys: TransactionKeys, producer_id: int, epoch: int,
        partitions: Collection[TransactionPartition] = (), groups: Collection[str] = (),
    ) -> None:  # fmt: skip
        """AddPartitionsToTxn, AddOffsetsToTxn: add them to the producer's transaction; begins it."""
        async with self._confirmed(keys):
            await self._add(keys, producer_id, epoch, partitions, groups, call)

    async def add_with(
        self, keys: TransactionKeys, producer_id: int, epoch: int,
        partitions: Collection[TransactionPartition] = (), groups: Collection[str] = (),
    ) -> Transaction:  # fmt: skip
        """Add what a request writes to in the transaction that its epoch names (KIP-890). Returns the record.

        What it writes then is confirmed, and on one server this with it.
        """
        async with self._logs.durability.confirmed_if_sharded(self._store.node(keys.transaction)):
            return await self._add(keys, producer_id, epoch, partitions, groups)

    async def _add(
        self, keys: TransactionKeys, producer_id: int, epoch: int,
        partitions: Collection[TransactionPartition], groups: Collection[str], call: PendingCall | None = None,
    ) -> Transaction:  # fmt: skip
        def decide(one: Transaction | None) -> Transaction:
            return transitions.add(transitions.check_producer(one, producer_id, epoch), partitions, groups)

        return await self._change(keys, decide, call)

    async def find(self, keys: TransactionKeys, producer_id: int, epoch: int) -> Transaction:
        """The record, checked as for `add`; changes nothing."""
        one = await self.records.read(keys)
        try:
            return transitions.check_producer(one, producer_id, epoch)
        except ConcurrentTransactions:
            self.complete_soon(keys)
            raise

    async def end(
        self, call: PendingCall, keys: TransactionKeys, producer_id: int, epoch: int, *, is_commit: bool, bumps: bool
    ) -> tuple[int, int]:
        """EndTxn: decide, then write the markers. Returns producer id and epoch of the next transaction.

        `bumps` is version 2 of the protocol (KIP-890): each transaction has its own epoch.
        """
        new_producer_id = await self._producer_ids.take() if bumps else NO_PRODUCER_ID

        def decide(one: Transaction | None) -> Transaction:
            if bumps:
                return transitions.end_and_bump(one, producer_id, epoch, new_producer_id, is_commit=is_commit)
            return transitions.end(one, producer_id, epoch, is_commit=is_commit)

        async with self._confirmed(keys):
            one = await self._change(keys, decide, call)
        if one.state.is_prepared:
            task = self.tasks.start(self._complete(keys, one, is_confirmed=True))
            await asyncio.wait([task], timeout=COMPLETE_BEFORE_REPLY_S)
        return transitions.next_identity(one)

    # -- transactional batches

    def confirm(
        self, keys: TransactionKeys, producer_id: int, epoch: int, partition: TransactionPartition,
        on_confirmed: OnConfirmed, *, adds: bool, not_added: Callable[[], KafkaError],
    ) -> None:  # fmt: skip
        """Confirm that a partition is in the producer's open transaction; with `adds` add it (KIP-890).

        Requests of one producer that arrive together are served together. `not_added` makes the error otherwise.
        """

        key = (keys.transaction, producer_id, epoch, adds)
        asked = self._asked.get(key)
        if asked is None:
            asked = self._asked[key] = []
            self.tasks.start(self._answer_all(keys, producer_id, epoch, adds))
        asked.append(_Asked(partition, on_confirmed, not_added))

    async def _answer_all(self, keys: TransactionKeys, producer_id: int, epoch: int, adds: bool) -> None:
        key = (keys.transaction, producer_id, epoch, adds)
        access = self._add_all if adds else self._verify_all
        await asyncio.sleep(0)  # the other partitions of the same request
        while asked := self._asked[key]:
            self._asked[key] = []
            try:
                failures = await access(keys, producer_id, epoch, asked)
            except Exception as error:  # noqa: BLE001 - becomes the batches' error
                failures = [error_of(error, "transaction_not_confirmed")] * len(asked)
            for one, failure in zip(asked, failures, strict=True):
                try:
                    one.on_confirmed(failure)
                except Exception:
                    logger.exception("transaction_callback_failed", transaction=keys.ref)
        del self._asked[key]

    async def _add_all(
        self, keys: TransactionKeys, producer_id: int, epoch: int, asked: list[_Asked]
    ) -> list[KafkaError | None]:
        await self.add_with(keys, producer_id, epoch, {one.partition for one in asked})
        return [None] * len(asked)

    async def _verify_all(
        self, keys: TransactionKeys, producer_id: int, epoch: int, asked: list[_Asked]
    ) -> list[KafkaError | None]:
        found = await self.find(keys, producer_id, epoch)
        missing = {one.partition for one in asked}.difference(_added(found))
        names, failure = _names(found) if missing else set(), None
        if any(partition[:2] in names for partition in missing):
            try:
                found = await self._add_made_again(keys, producer_id, epoch, missing)
                names = _names(found)
            except Exception as error:  # noqa: BLE001 - becomes the batches' error
                failure = error_of(error, "transaction_not_confirmed")
        added = _added(found)

        def failure_of(one: _Asked) -> KafkaError | None:
            if one.partition in added:
                return None
            if one.partition[:2] not in names:
                return one.not_added()
            return failure or UnknownTopicOrPartition("the topic was deleted, and made again")

        return [failure_of(one) for one in asked]

    async def _add_made_again(
        self, keys: TransactionKeys, producer_id: int, epoch: int, missing: Collection[TransactionPartition]
    ) -> Transaction:
        """Add partitions of topics that were made again after they were added: Kafka's transactions know them by name.

        Those of former topics, or without such a name, are left out. Returns the record.
        """

        def decide(one: Transaction | None) -> Transaction:
            found = transitions.check_producer(one, producer_id, epoch)
            names = _names(found)
            named = [partition for partition in missing if partition[:2] in names]
            present = [one for one in named if self._catalog.by_id(keys.org, UUID(hex=one.topic_hex)) is not None]
            return transitions.add(found, present) if present else found

        await self._catalog.refresh()
        async with self._logs.durability.confirmed_if_sharded(self._store.node(keys.transaction)):
            return await self._change(keys, decide)

    # -- completing

    async def handle_deadline(self, keys: TransactionKeys) -> None:
        """Abort an overdue transaction, begin to complete a decided one, forget an id that was not used for long.

        Not while the clocks differ: that of Redis, which says how long, may be wrong.
        """
        one = await self.records.read(keys)
        if one is None or one.is_idle:
            if one is None:
                await self.records.report_lost(keys)
            if one is None or clock_of(self._store, keys.transaction).agrees:
                await self.records.forget(keys, one)
            return
        if one.state is State.ONGOING:
            aborted = await self.records.write(keys, one, transitions.fence(one), only_if_overdue=True)
            if aborted is None:
                return  # it is not overdue any more
            logger.info("transaction_timed_out", transaction=keys.ref, producer_id=one.producer_id)
            one = aborted
        self.complete_soon(keys, one)  # its partitions may be unavailable for long; other deadlines do not wait

    def complete_soon(self, keys: TransactionKeys, one: Transaction | None = None) -> None:
        """Complete a decided transaction in the background."""
        self.tasks.start(self._complete(keys, one))

    async def _complete(self, keys: TransactionKeys, one: Transaction | None, *, is_confirmed: bool = False) -> None:
        with suppress(KafkaError):  # logged there; the sweep tries again
            await self.completion.complete(keys, one, is_confirmed=is_confirmed)

    async def _change(self, keys: TransactionKeys, decide: Decide, call: PendingCall | None = None) -> Transaction:
        try:
            return await self.records.change(keys, decide, call)
        except ConcurrentTransactions:
            self.complete_soon(keys)  # the broker that decided may be gone
            raise

    def _confirmed(self, keys: TransactionKeys) -> AbstractAsyncContextManager[None]:
        """Ends once the record is as durable as `durability` says. Raises StoreUnavailable."""
        return self._logs.durability.confirmed(self._store.node(keys.transaction))


def _added(one: Transaction) -> frozenset[TransactionPartition]:
    """The partitions of the open transaction."""
    return one.partitions if one.state is State.ONGOING else frozenset()


def _names(one: Transaction) -> set[tuple[str, int]]:
    """Topic and index of each: the same for a topic that was made again."""
    return {(partition.topic, partition.partition) for partition in _added(one)}
