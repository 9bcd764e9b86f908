"""Numbered records from two idempotent producers, read by two groups: a load under which brokers are harmed.

One producer and one group are aiokafka's, the others librdkafka's. Every record says who wrote it and is numbered
per producer and partition, so that loss, doubling and disorder show, in the log and with the groups.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from bench.cluster import BrokerProcess

PARTITIONS: Final = 6
TOPIC: Final = "load"
_PAUSE_S: Final = 0.02
_IN_FLIGHT_MAX: Final = 50

Key = tuple[str, int, int]
"""Producer, partition, number."""


def _value(producer: str, partition: int, number: int) -> bytes:
    return f"{producer}:{partition}:{number}".encode() + b" " * 40


def _key(value: bytes) -> Key:
    producer, partition, number = value.decode().split(":")
    return producer, int(partition), int(number)


@dataclass(slots=True)
class Read:
    """What a group was given, and how often its members' generation changed."""

    observed: Counter[Key] = field(default_factory=Counter)
    assigned: int = 0
    generation: int = -1


class Load:
    """Runs while its `async with` block does; `check` then reads the log and compares."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: set[Key] = set()
        self.failures: list[str] = []
        """Sends that failed for good, and fatal errors: none may be."""
        self.aiokafka_read, self.librdkafka_read = Read(), Read()
        self._bootstrap = bootstrap
        self._stop = asyncio.Event()
        self._stop_threads = threading.Event()
        self._stop_reading = threading.Event()
        self._writers: list[asyncio.Future[None]] = []
        self._readers: list[asyncio.Future[None]] = []

    async def __aenter__(self) -> Load:
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it logs every lost connection
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
        await admin.close()
        loop = asyncio.get_running_loop()
        self._consumer = AIOKafkaConsumer(
            TOPIC, bootstrap_servers=self._bootstrap, group_id="aiokafka", auto_offset_reset="earliest"
        )
        await self._consumer.start()
        self._readers.append(asyncio.ensure_future(self._read_aiokafka()))
        self._readers.append(loop.run_in_executor(None, self._read_librdkafka))
        await self._until(lambda: self.librdkafka_read.assigned > 0, 120, "librdkafka's consumer is assigned nothing")
        self.aiokafka_read.generation = self._consumer._coordinator.generation
        self._writers.append(asyncio.ensure_future(self._write_aiokafka()))
        self._writers.append(loop.run_in_executor(None, self._write_librdkafka))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._stop_threads.set()
        if kind is None:
            await asyncio.wait_for(asyncio.gather(*self._writers), 120)
            await self._until(self._all_read, 120, "the groups do not see the end")
        self._stop_reading.set()
        self.rebalances = self._consumer._coordinator.generation - self.aiokafka_read.generation
        for future in [*self._writers, *self._readers]:
            if isinstance(future, asyncio.Task):
                future.cancel()
        await asyncio.gather(*self._writers, *self._readers, return_exceptions=True)
        async with asyncio.timeout(60):  # it waits for its coordinator, which a failed test may have lost
            await self._consumer.stop()

    async def _until(self, condition: Any, timeout_s: float, failure: str) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            lost = [len(self.acknowledged - set(one.observed)) for one in (self.aiokafka_read, self.librdkafka_read)]
            raise AssertionError(f"{failure}: {len(self.acknowledged)} acknowledged, unseen {lost}") from None

    def _all_read(self) -> bool:
        return all(self.acknowledged <= one.observed.keys() for one in (self.aiokafka_read, self.librdkafka_read))

    # -- aiokafka

    async def _write_aiokafka(self) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self._bootstrap, enable_idempotence=True, linger_ms=5)
        await producer.start()
        gate = asyncio.Semaphore(_IN_FLIGHT_MAX)

        async def one(key: Key, sent: asyncio.Future[Any]) -> None:
            try:
                await sent
                self.acknowledged.add(key)
            except Exception as error:  # noqa: BLE001 - whatever it is, the test reports it
                self.failures.append(f"{key}: {error!r}")
            finally:
                gate.release()

        waiting = set()
        for number in itertools.count():
            if self._stop.is_set():
                break
            for partition in range(PARTITIONS):
                await gate.acquire()
                key = ("aiokafka", partition, number)
                # One after another: calls of `send` that wait for metadata together continue in any order.
                sent = await producer.send(TOPIC, _value(*key), partition=partition)
                waiting.add(asyncio.ensure_future(one(key, sent)))
            await asyncio.sleep(_PAUSE_S)
        await asyncio.gather(*waiting)
        await producer.stop()

    async def _read_aiokafka(self) -> None:
        async for record in self._consumer:
            self.aiokafka_read.observed[_key(record.value)] += 1

    # -- librdkafka

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self.failures.append(f"fatal: {error}")

    def _on_delivery(self, key: Key, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.acknowledged.add(key)
        else:
            self.failures.append(f"{key}: {error}")

    def _write_librdkafka(self) -> None:
        settings = {"enable.idempotence": True, "linger.ms": 5, "log_level": 0, "error_cb": self._on_error}
        producer = Producer({"bootstrap.servers": self._bootstrap, **settings})
        for number in itertools.count():
            if self._stop_threads.is_set():
                break
            for partition in range(PARTITIONS):
                key = ("librdkafka", partition, number)
                producer.produce(TOPIC, _value(*key), partition=partition, on_delivery=partial(self._on_delivery, key))
            producer.poll(0)
            while len(producer) > _IN_FLIGHT_MAX and not self._stop_threads.is_set():
                producer.poll(0.05)
            self._stop_threads.wait(_PAUSE_S)
        left = producer.flush(100)
        if left:
            self.failures.append(f"{left} records were not delivered")

    def _read_librdkafka(self) -> None:
        read = self.librdkafka_read

        def assigned(_: Any, partitions: list[Any]) -> None:
            read.assigned += 1

        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "librdkafka",
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        consumer.subscribe([TOPIC], on_assign=assigned)
        while not self._stop_reading.is_set():
            message = consumer.poll(0.1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                read.observed[_key(message.value())] += 1
            elif error.fatal():
                self.failures.append(f"consumer: {error}")
        try:
            consumer.close()
        except KafkaException as error:
            self.failures.append(f"consumer: {error}")

    # -- what must hold

    async def is_alive(self, brokers: Sequence[BrokerProcess]) -> None:
        """Brokers get ready again by themselves, and so do the producers."""
        for broker in brokers:
            await asyncio.to_thread(broker.wait_ready)
        before = len(self.acknowledged)
        await self._until(lambda: len(self.acknowledged) > before, 120, "producers did not continue by themselves")
        await asyncio.sleep(4)

    async def check(self) -> str:
        """Compare the log, the acknowledgements and what the groups saw; a line that says how much there was."""
        assert not self.failures, f"{len(self.failures)} failures: {self.failures[:5]}"
        stored, offsets = await self._stored()
        for partition, found in offsets.items():
            assert found == list(range(len(found))), f"offsets of partition {partition} have gaps or repeats"
        for (producer, partition), numbers in stored.items():
            assert len(numbers) == len(set(numbers)), f"{producer}/{partition}: doubled {_doubled(numbers)}"
            assert numbers == sorted(numbers), f"{producer}/{partition}: {_disorder(numbers)}"
        is_delayed = {(producer, partition, n) for (producer, partition), numbers in stored.items() for n in numbers}
        lost = self.acknowledged - is_delayed
        assert not lost, f"{len(lost)} acknowledged records are lost: {sorted(lost)[:5]}"
        for name, read in (("aiokafka", self.aiokafka_read), ("librdkafka", self.librdkafka_read)):
            unseen = self.acknowledged - read.observed.keys()
            assert not unseen, f"group {name} never saw {len(unseen)}: {sorted(unseen)[:5]}"
            rebalances = self.rebalances if name == "aiokafka" else read.assigned - 1
            twice = {key for key, times in read.observed.items() if times > 1}
            assert rebalances or not twice, f"group {name} saw {len(twice)} twice: {sorted(twice)[:5]}"
        writers = Counter(producer for producer, _, _ in self.acknowledged)
        assert min(writers["aiokafka"], writers["librdkafka"]) > 500, f"hardly any load: {writers}"
        again = self.librdkafka_read.assigned - 1
        return f"{dict(writers)} acknowledged; rebalances: aiokafka {self.rebalances}, librdkafka {again}"

    async def _stored(self) -> tuple[dict[tuple[str, int], list[int]], dict[int, list[int]]]:
        """Numbers by producer and partition, offsets by partition, as a new consumer reads them from 0."""
        consumer = AIOKafkaConsumer(bootstrap_servers=self._bootstrap)
        await consumer.start()
        partitions = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
        ends = await consumer.end_offsets(partitions)
        consumer.assign(partitions)
        await consumer.seek_to_beginning()
        stored: dict[tuple[str, int], list[int]] = defaultdict(list)
        offsets: dict[int, list[int]] = defaultdict(list)
        async with asyncio.timeout(120):
            while any(len(offsets[tp.partition]) < ends[tp] for tp in partitions):
                for tp, records in (await consumer.getmany(timeout_ms=500)).items():
                    for record in records:
                        producer, _, number = _key(record.value)
                        stored[producer, tp.partition].append(number)
                        offsets[tp.partition].append(record.offset)
        await consumer.stop()
        return stored, offsets


def _doubled(numbers: list[int]) -> list[int]:
    return [number for number, times in Counter(numbers).items() if times > 1][:5]


def _disorder(numbers: list[int]) -> str:
    at = next(i for i in range(1, len(numbers)) if numbers[i] < numbers[i - 1])
    return f"out of order: {numbers[max(0, at - 5) : at + 5]}"
