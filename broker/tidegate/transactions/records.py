"""Read and write the records of transactional ids: read, decide in Python, write if nobody wrote meanwhile.

The state is in Redis alone, so any broker serves any transactional id. A write names the version that it read; another
broker's write in between makes it fail, and the caller decides again.

A producer that is not answered asks another broker, and continues there with the same epoch. What it had asked here
would then fence it, or begin or end its next transaction: a request whose client has left, or that is late and behind
which the record was changed, is refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import structlog

from tidegate.errors import CoordinatorNotAvailable
from tidegate.log.offload import Offload
from tidegate.settings import Settings
from tidegate.store.clocks import clock_of
from tidegate.store.keys import TransactionKeys
from tidegate.store.scripts import Script
from tidegate.store.store import Store
from tidegate.transactions.errors import ConcurrentTransactions
from tidegate.transactions.model import State, Transaction, fields_of, parse

if TYPE_CHECKING:
    from tidegate.groups.decision_queue import PendingCall

WRITE_TRANSACTION: Final = Script("transactions/write_transaction")
FORGET_TRANSACTION: Final = Script("transactions/forget_transaction")

FINISH_WITHIN_MS: Final = 2_000
"""How long after a decision other brokers wait for the broker that decided to write the markers."""
TRANSACTIONAL_ID_EXPIRATION_MS: Final = 604_800_000
"""Kafka's default of `transactional.id.expiration.ms`: 7 days."""
LATE_S: Final = 2.0
"""Age of a request, s, from which on its client may have asked another broker and not closed its connection.

Younger ones may wait for the proof of another request of their producer, which changed the record."""
_CLOCK_ERROR_MS: Final = 5
"""Of what this broker takes for the time of the server that has the record."""
_TRIES_MAX: Final = 20
_LARGE: Final = 2_000
"""Partitions of a record that is parsed and formatted in a thread: fewer take less than 5 ms."""
_LARGE_BYTES: Final = 40 * _LARGE
RECORDS: Final = Offload("transactions")
"""Large records."""
_OPEN: Final = (State.ONGOING.value, *(state.value for state in State if state.is_prepared))

logger = structlog.get_logger()

Decide = Callable[[Transaction | None], Transaction]
"""The next record. Returning the same object changes nothing; a KafkaError goes to the client."""


class Records:
    """The records of transactional ids, as one broker reads and writes them."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._shards = settings.coordinator_shards
        self.used_shards: set[int] = set()
        """Shards in which this broker made a transactional id."""

    def keys(self, org: str, transactional_id: str) -> TransactionKeys:
        """The keys of a transactional id."""
        return TransactionKeys.of(self._store.prefix, self._shards, org, transactional_id)

    def keys_of_ref(self, ref: str) -> TransactionKeys:
        """The keys of a transactional id from its name in the shard's keys."""
        org, _, encoded = ref.partition("/")
        return self.keys(org, unquote(encoded))

    async def read(self, keys: TransactionKeys) -> Transaction | None:
        """The record, None for an unknown transactional id. Raises StoreUnavailable."""
        reply: Any = await self._store.command("HGETALL", keys.transaction)
        fields = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
        is_large = len(fields.get(b"partitions", b"")) > _LARGE_BYTES
        return await RECORDS.run(parse, fields) if is_large else parse(fields)

    async def change(self, keys: TransactionKeys, decide: Decide, call: PendingCall | None = None) -> Transaction:
        """Read, decide, write; again if another broker wrote in between. Returns the record as it is stored.

        Raises CoordinatorNotAvailable if `call`, which asks for it, is late.
        """
        for _ in range(_TRIES_MAX):
            before = await self.read(keys)
            if call is not None:
                self.refuse_late(keys, call, -1 if before is None else before.update_ms)
            after = decide(before)
            if after is before:
                return after
            written = await self.write(keys, before, after)
            if written is not None:
                return written
        raise ConcurrentTransactions("other requests change the transactional id all the time")

    async def write(
        self, keys: TransactionKeys, before: Transaction | None, after: Transaction, *, only_if_overdue: bool = False
    ) -> Transaction | None:
        """Replace the record `before` (None: there is none); None if another one is stored by now.

        With `only_if_overdue` also None if the transaction's time-out has not passed by Redis's clock.
        """
        if before is None:
            await self.report_lost(keys)
            await self._store.command("HSET", self._store.cluster_keys.transaction_shards, keys.shard, "")
            self.used_shards.add(keys.shard)
        version = uuid.uuid4().hex
        change, deadline_ms = _effects(before, after)
        is_large = len(after.partitions) > _LARGE
        fields = await RECORDS.run(fields_of, after) if is_large else fields_of(after)
        stored, *times = await self._store.run(
            WRITE_TRANSACTION,
            [keys.transaction, keys.transactions, keys.deadlines],
            keys.ref, "" if before is None else before.version, version, change, deadline_ms, int(only_if_overdue),
            *fields,
        )  # fmt: skip
        if not stored:
            return None
        start_ms, update_ms, ended_ms = map(int, times)
        return replace(after, start_ms=start_ms, update_ms=update_ms, ended_ms=ended_ms, version=version)

    def refuse_late(
        self, keys: TransactionKeys, call: PendingCall, changed_ms: int, *, at_any_age: bool = False
    ) -> None:
        """Raise CoordinatorNotAvailable for a request that its producer may have given up.

        Its client has left, or it is late and the record was changed behind it, at `changed_ms` by Redis's clock.
        """
        if call.client.closed:
            raise CoordinatorNotAvailable("the client has left")
        clock = clock_of(self._store, keys.transaction)
        if not clock.is_known or not (at_any_age or perf_counter() - call.arrived_s > LATE_S):
            return
        if changed_ms > (call.arrived_s + clock.offset_s) * 1000 - _CLOCK_ERROR_MS:
            raise CoordinatorNotAvailable("the transactional id was changed after the request had come")

    async def report_lost(self, keys: TransactionKeys) -> None:
        """Log a transaction that was open when Redis lost its record: its partitions wait for a marker.

        A person ends it: no broker knows any more which partitions it has. Raises StoreUnavailable.
        """
        listed = await self._store.command("HGET", keys.transactions, keys.ref)
        state, producer_id, *_ = (listed or b" ").decode().split(" ")
        if state in _OPEN:
            command = "txn find-hanging"
            logger.error("transaction_lost", transaction=keys.ref, producer_id=int(producer_id), command=command)

    async def forget(self, keys: TransactionKeys, one: Transaction | None) -> bool:
        """Forget a transactional id that was not used for a week, or that has no record; returns whether it was."""
        names = [keys.transaction, keys.transactions, keys.deadlines]
        (forgotten,) = await self._store.run(
            FORGET_TRANSACTION, names, keys.ref, one.version if one is not None else "", TRANSACTIONAL_ID_EXPIRATION_MS
        )
        return bool(forgotten)


def _effects(before: Transaction | None, after: Transaction) -> tuple[str, int | str]:
    """What the write is to the transaction's times, and the next deadline in ms from now; "" to leave it."""
    if after.state is State.ONGOING:
        if before is not None and before.state is State.ONGOING:
            return "", ""
        return "begin", after.timeout_ms
    if after.state.is_prepared:
        return "decide", FINISH_WITHIN_MS
    return "idle" if after.state is State.EMPTY else "", TRANSACTIONAL_ID_EXPIRATION_MS
