"""A producer of transactions and a reader of what they committed, which note what they do in a history."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AiokafkaPartition
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import KafkaError, KafkaException, Producer

from tests.kit.history import Outcome, Poll, TransactionEnd, now_ns, records_of
from tests.kit.writers import FLUSH_S, Session, Writer, started

TRANSACTION_S: Final = 60.0
"""A longer one is aborted by its coordinator, which fences its producer."""
_EVERY_S: Final = 0.2
_RECORDS_MAX: Final = 6
_ABORTED: Final = 5
"""One of so many is aborted on purpose."""
_CALL_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class LostProducer:
    """A producer met an error that ended it; its last transaction began before."""

    began: int
    ended: int
    error: str


class TransactionalWriter(Writer):
    """confluent_kafka's Producer with transactions, in a thread."""

    def __init__(self, session: Session, name: str, rng: random.Random) -> None:
        super().__init__(session, name)
        self._rng, self._over = rng, threading.Event()
        self._began, self._deadline_s = now_ns(), math.inf
        self.lost: list[LostProducer] = []
        self._transactions = itertools.count(1)
        self._thread = threading.Thread(target=self._run, name=name)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """No more transactions; returns when none is open, or they are given up."""
        self._deadline_s = time.monotonic() + FLUSH_S
        self._over.set()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while not self._has_ended():
            if time.monotonic() > self._deadline_s:
                self.session.fatal.append(f"{self.name}: a transaction is open {FLUSH_S:.0f} s after the faults")
                return

    def _has_ended(self) -> bool:
        """Work with a new producer, which aborts what the former one left open; False where it must not go on."""
        producer = Producer(
            {
                "bootstrap.servers": self.session.bootstrap,
                "client.id": self.name,
                "transactional.id": self.name,
                "transaction.timeout.ms": int(TRANSACTION_S * 1000),
                "linger.ms": 2,
                "log_level": 0,
            }
        )
        try:
            self._repeat(producer.init_transactions)
            while not self._over.wait(_EVERY_S):
                self._transact(producer)
        except KafkaException as error:
            self.lost.append(LostProducer(self._began, now_ns(), f"{self.name}: {error.args[0]}"))
            return False
        finally:
            producer.purge()
            with suppress(KafkaException):  # again the error that ended it
                producer.flush(1)
        return True

    def _repeat(self, call: Callable[[float], Any]) -> None:
        """Until it is answered. Raises KafkaException."""
        while True:
            try:
                call(_CALL_S)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > self._deadline_s:
                    raise

    def _transact(self, producer: Producer) -> None:
        number = next(self._transactions)
        name, self._began = f"{self.name}-{number}", now_ns()
        producer.begin_transaction()
        for index in self._rng.choices(range(self.session.partition_count), k=self._rng.randint(2, _RECORDS_MAX)):
            value = self.next_value(index)
            on_delivery = partial(self._delivered, name, index, value, now_ns())
            producer.produce(self.session.topic, value, partition=index, on_delivery=on_delivery)
        if number % _ABORTED != 2:
            self._commit(producer, name)
        else:
            producer.flush(_CALL_S)
            self._end(name, producer.abort_transaction, committed=False)

    def _commit(self, producer: Producer, name: str) -> None:
        try:
            self._end(name, producer.commit_transaction, committed=True)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._repeat(producer.abort_transaction)

    def _end(self, name: str, call: Callable[[float], Any], *, committed: bool) -> None:
        """Note how a transaction ended. Raises KafkaException."""
        began, outcome = now_ns(), Outcome.UNKNOWN
        try:
            self._repeat(call)
            outcome = Outcome.OK
        finally:
            self.session.history.add(TransactionEnd(self.name, began, now_ns(), name, committed, outcome))

    def _delivered(self, name: str, index: int, value: str, began: int, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self.session.resets.append(f"{now_ns()} {value} of {name}: {error}")
            self.note(index, value, began, None, code=error.code(), transaction=name)
        else:
            self.note(index, value, began, message.offset(), transaction=name)


class CommittedReader:
    """aiokafka's consumer of no group, which reads every partition under read_committed."""

    def __init__(self, session: Session, name: str) -> None:
        self.session, self.name = session, name

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.session.bootstrap,
            client_id=self.name,
            request_timeout_ms=10_000,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        )
        await started(consumer)
        try:
            consumer.assign([AiokafkaPartition(self.session.topic, i) for i in range(self.session.partition_count)])
            while True:
                await self._read(consumer)
        finally:
            await consumer.stop()

    async def _read(self, consumer: AIOKafkaConsumer) -> None:
        began = now_ns()
        try:
            found = await consumer.getmany(timeout_ms=500)
        except AiokafkaError:
            await asyncio.sleep(0.1)
            return
        for tp, records in found.items():
            values = records_of((one.offset, one.value.decode()) for one in records)
            self.session.history.add(Poll(self.name, began, now_ns(), self.session.partition(tp.partition), values))
