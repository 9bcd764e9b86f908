"""Records that say where they belong, produced and read back by real clients: each once, in order."""

from __future__ import annotations

import asyncio
import random
import string
import subprocess
import time
from collections.abc import Callable
from typing import Any, Final

from bench.jars import classpath
from bench.kafka_wire import MeasureFailed

_DIGITS: Final = 12
_SILENCE_S: Final = 60.0
_AIOKAFKA_SHARE: Final = 0.1
_PADS: Final = 4_096


class Expected:
    """Each partition's records carry their own offset: `apply_status` raises MeasureFailed on a gap or a double."""

    def __init__(self, ends: list[int]) -> None:
        self._ends = ends
        self._next = [0] * len(ends)
        self.left = sum(ends)

    def apply_status(self, partition: int, offset: int, value: bytes) -> None:
        """One record came."""
        if offset != self._next[partition] or int(value[:_DIGITS]) != offset:
            raise MeasureFailed(f"partition {partition}: {value[:_DIGITS]!r} at {offset}, not {self._next[partition]}")
        self._next[partition] = offset + 1
        self.left -= 1


class Values:
    """Values of `size` bytes for the next records of each partition."""

    def __init__(self, partitions: int, size: int) -> None:
        chance = random.Random(0)
        letters = string.ascii_letters + string.digits
        self._pads = ["".join(chance.choices(letters, k=size - _DIGITS)).encode() for _ in range(_PADS)]
        self.ends = [0] * partitions

    def next(self, partition: int) -> bytes:
        """A value that carries the offset it will have."""
        offset = self.ends[partition]
        self.ends[partition] = offset + 1
        return b"%012d" % offset + self._pads[offset % _PADS]


def produce(bootstrap: str, topic: str, values: Values, count: int, codec: str) -> None:
    """`count` records, round robin: most by librdkafka, then the rest by aiokafka."""
    later = int(count * _AIOKAFKA_SHARE)
    _librdkafka_produces(bootstrap, topic, values, count - later, codec)
    asyncio.run(_aiokafka_produces(bootstrap, topic, values, later, codec))


def _librdkafka_produces(bootstrap: str, topic: str, values: Values, count: int, codec: str) -> None:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 2,
            "compression.type": codec,
            "linger.ms": 20,
            "batch.num.messages": 1_000,
            "enable.idempotence": True,
        }
    )
    for number in range(count):
        partition = number % len(values.ends)
        value = values.next(partition)
        while True:
            try:
                producer.produce(topic, value, partition=partition)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(120):
        raise MeasureFailed("records were not acknowledged in time")


async def _aiokafka_produces(bootstrap: str, topic: str, values: Values, count: int, codec: str) -> None:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        enable_idempotence=True,
        linger_ms=20,
        max_batch_size=128 << 10,
    )
    await producer.start()
    try:
        for number in range(count):
            partition = number % len(values.ends)
            await producer.send(topic, values.next(partition), partition=partition)
        await producer.flush()
    finally:
        await producer.stop()


def aiokafka_reads(bootstrap: str, topic: str, group: str, expected: Expected) -> None:
    """All records, from the beginning, in a group."""
    from aiokafka import AIOKafkaConsumer

    async def read() -> None:
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest")
        await consumer.start()
        try:
            last_contact_s = time.monotonic()
            while expected.left:
                for batch in (await consumer.getmany(timeout_ms=1_000)).values():
                    last_contact_s = time.monotonic()
                    for record in batch:
                        expected.apply_status(record.partition, record.offset, record.value)
                _check_silence(last_contact_s, expected)
        finally:
            await consumer.stop()

    asyncio.run(read())


def librdkafka_reads(bootstrap: str, topic: str, group: str, expected: Expected) -> None:
    """The same by confluent-kafka."""
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        last_contact_s = time.monotonic()
        while expected.left:
            records: list[Any] = consumer.consume(10_000, 0.2)
            for record in records:
                if record.error():
                    raise MeasureFailed(str(record.error()))
                last_contact_s = time.monotonic()
                expected.apply_status(record.partition(), record.offset(), record.value())
            _check_silence(last_contact_s, expected)
    finally:
        consumer.close()


def java_reads(bootstrap: str, topic: str, group: str, expected: Expected) -> None:
    """The same by Kafka's console consumer. Raises PeerUnavailable."""
    command = [
        *("java", "-Xmx512m", "-XX:+UseSerialGC", "-cp", classpath()),
        *("org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", bootstrap, "--topic", topic),
        *("--group", group, "--from-beginning", "--max-messages", str(expected.left)),
        *("--timeout-ms", str(int(_SILENCE_S * 1_000))),
        *("--property", "print.partition=true", "--property", "print.offset=true"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as java:
        assert java.stdout is not None
        for line in java.stdout:
            partition, offset, value = line.split(b"\t")
            expected.apply_status(int(partition[10:]), int(offset[7:]), value)
    if expected.left:
        raise MeasureFailed(f"{expected.left} records did not come")


def _check_silence(last_contact_s: float, expected: Expected) -> None:
    if time.monotonic() - last_contact_s > _SILENCE_S:
        raise MeasureFailed(f"{expected.left} records did not come")


READERS: Final[dict[str, Callable[[str, str, str, Expected], None]]] = {
    "aiokafka": aiokafka_reads,
    "librdkafka": librdkafka_reads,
    "java": java_reads,
}
