"""An idempotent producer in a process of its own: numbered records, and a journal of what was acknowledged where.

`python -m tests.outside.writer <library> <topic> <partitions> <bootstrap> <journal>`; SIGTERM flushes and ends it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import sys
import threading
from typing import Any

from tests.outside.journal import Journal

EVERY_S = 0.1
PARTITIONS_A_STEP = 6
FLUSH_S = 60


class Writer:
    """Writes `<library>:<partition>:<number>`, numbers rising by one in each partition."""

    def __init__(self, library: str, topic: str, partition_count: int, bootstrap: str, journal: str) -> None:
        self.library, self.topic, self.bootstrap = library, topic, bootstrap
        self.journal = Journal(journal)
        self.stop = threading.Event()
        self._numbers = [itertools.count() for _ in range(partition_count)]
        signal.signal(signal.SIGTERM, lambda *_: self.stop.set())

    def next_records(self) -> list[tuple[int, bytes]]:
        """The next records, each of another partition."""
        chosen = random.sample(range(len(self._numbers)), PARTITIONS_A_STEP)
        return [(index, f"{self.library}:{index}:{next(self._numbers[index])}".encode()) for index in chosen]

    def acknowledged(self, partition: int, offset: int, value: bytes) -> None:
        """One record is in the log."""
        self.journal.note("acknowledged", partition=partition, offset=offset, value=value.decode())

    def failed(self, partition: int, value: bytes, error: object) -> None:
        """One record was given up: none may be."""
        self.journal.note("failed", partition=partition, value=value.decode(), error=repr(error))

    # -- each library's way

    def librdkafka(self) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "log_level": 0})

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                self.acknowledged(message.partition(), message.offset(), message.value())
            else:
                self.failed(message.partition(), message.value(), error)

        while not self.stop.wait(EVERY_S):
            for partition, value in self.next_records():
                producer.produce(self.topic, value, partition=partition, on_delivery=delivered)
            producer.poll(0)
        left = producer.flush(FLUSH_S)
        self.journal.note("stopped", left=left)

    def kafka_python(self) -> None:
        from kafka import KafkaProducer

        producer = KafkaProducer(bootstrap_servers=self.bootstrap.split(","), enable_idempotence=True)
        while not self.stop.wait(EVERY_S):
            for partition, value in self.next_records():
                sent = producer.send(self.topic, value, partition=partition)
                sent.add_callback(
                    lambda reported, value=value: self.acknowledged(reported.partition, reported.offset, value)
                )
                sent.add_errback(lambda error, at=partition, value=value: self.failed(at, value, error))
        producer.flush(timeout=FLUSH_S)
        producer.close()
        self.journal.note("stopped", left=0)

    def aiokafka(self) -> None:
        asyncio.run(self._aiokafka())

    async def _aiokafka(self) -> None:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, enable_idempotence=True)
        await producer.start()
        waiting: set[asyncio.Task[None]] = set()

        async def one(partition: int, value: bytes, sent: asyncio.Future[Any]) -> None:
            try:
                reported = await sent
            except Exception as error:  # noqa: BLE001 - whatever it is, the check must see it
                self.failed(partition, value, error)
            else:
                self.acknowledged(reported.partition, reported.offset, value)

        while not self.stop.is_set():
            await asyncio.sleep(EVERY_S)
            for partition, value in self.next_records():
                sent = await producer.send(self.topic, value, partition=partition)
                task = asyncio.create_task(one(partition, value, sent))
                waiting.add(task)
                task.add_done_callback(waiting.discard)
        await asyncio.gather(*waiting)
        await producer.stop()
        self.journal.note("stopped", left=0)


if __name__ == "__main__":
    _, name, topic, count, bootstrap, path = sys.argv
    getattr(Writer(name, topic, int(count), bootstrap, path), name)()
