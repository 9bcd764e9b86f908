"""Producers of real client libraries inside this process, which note every record and how it was answered in a history.

They are idempotent with five requests in flight, and number their records. librdkafka's have a thread each, aiokafka's
live in the event loop. What a client could not send is unknown, unless its error excludes that it is stored: a retry
inside it may still be under way.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from functools import partial
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import KafkaError, Producer

from tests.kit.history import History, Outcome, Send, now_ns

EVERY_S: Final = 0.02
IN_FLIGHT_MAX: Final = 400
FLUSH_S: Final = 90.0
REFUSALS: Final = frozenset(
    {
        KafkaError._PURGE_QUEUE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    }
)
"""Errors of a send that was surely not done: it never left its producer, or each try of it is refused."""


class Session:
    """What all clients of a run share."""

    def __init__(self, history: History, bootstrap: str, topic: str, partition_count: int) -> None:
        self.history, self.bootstrap, self.topic, self.partition_count = history, bootstrap, topic, partition_count
        self.fatal: list[str] = []
        """What clients call the end of them, which no fault may be."""
        self.resets: list[str] = []
        """What librdkafka's clients did about their positions beside reading on, and why."""

    def partition(self, index: int) -> str:
        """A partition's name in the history."""
        return f"{self.topic}-{index}"


def acknowledged_ends(session: Session) -> dict[str, int]:
    """Partition -> behind the last record of it that was acknowledged."""
    names = set(map(session.partition, range(session.partition_count)))
    ends: Counter[str] = Counter()
    for one in session.history.operations[:]:
        if isinstance(one, Send) and one.outcome is Outcome.OK and one.partition in names:
            ends[one.partition] = max(ends[one.partition], one.offset + 1)
    return dict(ends)


class Writer:
    """A producer's half of the history."""

    is_idempotent = True

    def __init__(self, session: Session, name: str) -> None:
        self.session, self.name = session, name
        self._numbers = [itertools.count() for _ in range(session.partition_count)]

    def next_value(self, index: int) -> str:
        return f"{self.name}:{index}:{next(self._numbers[index])}"

    def note(
        self,
        index: int,
        value: str,
        began: int,
        offset: int | None,
        *,
        code: int = 0,
        transaction: str | None = None,
    ) -> None:
        """A record is answered; `offset` is None where it failed, and -1 where only that it is there is known."""
        outcome = Outcome.OK if offset is not None else Outcome.FAILED if code in REFUSALS else Outcome.UNKNOWN
        where = -1 if offset is None or offset < 0 else offset
        name = self.session.partition(index)
        self.session.history.add(
            Send(self.name, began, now_ns(), name, value, outcome, where, self.is_idempotent, transaction)
        )


class LibrdkafkaWriter(Writer):
    """confluent_kafka's Producer, in a thread."""

    pause_s = EVERY_S / 2

    def __init__(self, session: Session, name: str) -> None:
        super().__init__(session, name)
        self._over = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": session.bootstrap,
                "client.id": name,
                "enable.idempotence": self.is_idempotent,
                "max.in.flight.requests.per.connection": 5,
                "linger.ms": 2,
                "log_level": 0,
                "error_cb": self._on_error,
            }
        )
        self._thread = threading.Thread(target=self._run, name=name)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """No more records; returns when all are answered, or given up."""
        self._over.set()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        for index in itertools.cycle(range(self.session.partition_count)):
            if self._over.wait(self.pause_s):
                break
            if len(self._producer) < IN_FLIGHT_MAX:
                self._produce(index)
            self._producer.poll(0)
        if left := self._producer.flush(FLUSH_S):
            self.session.fatal.append(f"{self.name}: {left} records without an answer {FLUSH_S:.0f} s after the faults")

    def _produce(self, index: int) -> None:
        self._send(index)

    def _send(self, index: int, **more: Any) -> None:
        value = self.next_value(index)
        on_delivery = partial(self._delivered, index, value, now_ns())
        self._producer.produce(self.session.topic, value, partition=index, on_delivery=on_delivery, **more)

    def _delivered(self, index: int, value: str, began: int, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self.note(index, value, began, None, code=error.code())
        else:
            self.note(index, value, began, message.offset())

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self.session.fatal.append(f"{self.name}: fatal: {error}")


async def started(client: Any) -> None:
    """Start a client of aiokafka, which gives up at once where every broker is down."""
    while True:
        try:
            return await client.start()  # type: ignore[no-any-return]
        except KafkaConnectionError:
            await asyncio.sleep(0.2)


class AiokafkaWriter(Writer):
    """aiokafka's producer."""

    def start(self) -> None:
        self._over = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """No more records; returns when all are answered, or given up."""
        self._over.set()
        try:
            await asyncio.wait_for(self._task, FLUSH_S)
        except TimeoutError:
            self.session.fatal.append(f"{self.name}: records without an answer {FLUSH_S:.0f} s after the faults")

    async def _run(self) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.session.bootstrap, client_id=self.name, enable_idempotence=True, linger_ms=2
        )
        await started(producer)
        waiting: set[asyncio.Task[None]] = set()
        for index in itertools.cycle(range(self.session.partition_count)):
            if self._over.is_set():
                break
            await asyncio.sleep(EVERY_S / 2)
            if len(waiting) >= IN_FLIGHT_MAX:
                continue
            value, began = self.next_value(index), now_ns()
            try:
                sent = await producer.send(self.session.topic, value.encode(), partition=index)
            except AiokafkaError as error:
                self.note(index, value, began, None, code=getattr(error, "errno", 0))
                continue
            task = asyncio.create_task(self._answered(index, value, began, sent))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
        await asyncio.gather(*waiting)
        await producer.stop()

    async def _answered(self, index: int, value: str, began: int, sent: asyncio.Future[Any]) -> None:
        try:
            offset = (await sent).offset
        except AiokafkaError as error:
            self.note(index, value, began, None, code=getattr(error, "errno", 0))
        else:
            self.note(index, value, began, offset)
