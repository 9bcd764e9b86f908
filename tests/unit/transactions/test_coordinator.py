"""Batches of many partitions that ask the coordinator at once whether they are in a transaction of many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from tidegate.errors import InvalidTxnState, KafkaError, StoreUnavailable, UnknownTopicOrPartition
from tidegate.settings import Settings
from tidegate.store.store import Store
from tidegate.transactions.coordinator import Coordinator
from tidegate.transactions.model import State, Transaction, TransactionPartition

MANY = 1_000
ASKED = 200
OLD, NEW, GONE = (UUID(int=number).hex for number in (1, 2, 3))


class Walked(frozenset[TransactionPartition]):
    """Counts the partitions that are walked."""

    walked = 0

    def __iter__(self) -> Iterator[TransactionPartition]:
        for one in super().__iter__():
            Walked.walked += 1
            yield one


class StoredRecord:
    """The records of one transactional id; counts its changes, of which `failure` fails each."""

    def __init__(self, record: Transaction) -> None:
        self.record, self.changes = record, 0
        self.failure: KafkaError | None = None

    async def read(self, keys: Any) -> Transaction:
        return self.record

    async def change(self, keys: Any, decide: Callable[[Transaction | None], Transaction], call: Any) -> Transaction:
        self.changes += 1
        if self.failure is not None:
            raise self.failure
        self.record = decide(self.record)
        return self.record


class Asking:
    """Asks a coordinator of the topic with the id `NEW`; `answers` in order."""

    def __init__(self, added: frozenset[TransactionPartition], state: State = State.ONGOING) -> None:
        store = Store(Settings())
        self.refreshes = 0
        self.stored = StoredRecord(Transaction(9, 0, 60_000, state=state, partitions=added))
        catalog: Any = SimpleNamespace(by_id=lambda org, topic_id: topic_id.hex == NEW or None, refresh=self._refresh)
        logs: Any = SimpleNamespace(durability=SimpleNamespace(confirmed_if_sharded=lambda _: nullcontext()))
        producer_ids: Any = None
        self.coordinator = Coordinator(store, store.settings, catalog, logs, producer_ids, lambda *_: None)
        self.keys = self.coordinator.records.keys("default", "T")
        self.coordinator.records = self.stored  # type: ignore[assignment]
        self.answers: list[KafkaError | None] = []

    async def _refresh(self) -> None:
        self.refreshes += 1

    async def ask(self, partitions: list[TransactionPartition]) -> list[KafkaError | None]:
        """Ask for each as its batch does; the errors in order."""
        for one in partitions:
            self.coordinator.confirm(
                self.keys, 9, 0, one, self.answers.append, adds=False, not_added=lambda: InvalidTxnState("not added")
            )
        await self.coordinator.tasks.wait()
        return self.answers


def partitions_of(topic: str, count: int, topic_hex: str = NEW) -> list[TransactionPartition]:
    return [TransactionPartition(topic, index, topic_hex) for index in range(count)]


async def test_partitions_of_a_large_transaction_are_walked_once_for_many_others() -> None:
    asking = Asking(Walked(partitions_of("t", MANY)))
    Walked.walked = 0

    answers = await asking.ask(partitions_of("other", ASKED))

    assert [type(one) for one in answers] == [InvalidTxnState] * ASKED
    assert Walked.walked <= MANY


async def test_added_partitions_are_confirmed_without_a_walk() -> None:
    asking = Asking(Walked(partitions_of("t", MANY)))
    Walked.walked = 0

    assert await asking.ask(partitions_of("t", ASKED)) == [None] * ASKED
    assert Walked.walked == 0


async def test_partitions_of_a_topic_made_again_are_added_together() -> None:
    asking = Asking(frozenset(partitions_of("t", MANY, OLD)))

    assert await asking.ask(partitions_of("t", ASKED)) == [None] * ASKED
    assert (asking.stored.changes, asking.refreshes) == (1, 1)
    assert asking.stored.record.partitions.issuperset(partitions_of("t", ASKED))


async def test_each_partition_has_its_own_answer() -> None:
    added, made_again, former, other = (
        TransactionPartition(*one) for one in (("a", 0, NEW), ("b", 0, NEW), ("c", 0, GONE), ("d", 0, NEW))
    )
    asking = Asking(frozenset({added, *partitions_of("b", 1, OLD), *partitions_of("c", 1, OLD)}))

    answers = await asking.ask([added, made_again, former, other])

    assert [type(one) for one in answers] == [type(None), type(None), UnknownTopicOrPartition, InvalidTxnState]
    assert made_again in asking.stored.record.partitions
    assert former not in asking.stored.record.partitions


async def test_failed_write_fails_only_what_it_adds() -> None:
    asking = Asking(frozenset({*partitions_of("a", 1), *partitions_of("b", 1, OLD)}))
    asking.stored.failure = StoreUnavailable()

    answers = await asking.ask([*partitions_of("a", 1), *partitions_of("b", 1), *partitions_of("d", 1)])

    assert [type(one) for one in answers] == [type(None), StoreUnavailable, InvalidTxnState]


async def test_partitions_without_an_open_transaction_begin_none() -> None:
    asking = Asking(frozenset(), State.EMPTY)

    answers = await asking.ask(partitions_of("t", 2))

    assert [type(one) for one in answers] == [InvalidTxnState] * 2
    assert asking.stored.changes == 0
