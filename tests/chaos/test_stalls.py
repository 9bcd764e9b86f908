"""Redis stands still for longer than a command may take, again and again, under idempotent producers of librdkafka.

An append whose reply did not come in time may be in the log all the same. What the broker answers then decides
whether librdkafka sends it again under the same sequence number, or under a new epoch, which stores it twice.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter, defaultdict
from functools import partial
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.cluster import Cluster
from tests.support.broker_logs import tracebacks

BROKERS = 2
TOPIC, PARTITIONS = "stalls", 2
PRODUCERS, PER_SECOND = 6, 80
STALLS = 5
STALLED_S = (5.4, 7.9)
"""A command to Redis may take 5 s, and a connection to it 2 s: some stalls are longer than both."""
BETWEEN_S = (1.5, 3.0)


class Writer:
    """One producer with five requests in flight, and a thread that gives it numbered records."""

    def __init__(self, bootstrap: str, name: str, partitions: int = PARTITIONS) -> None:
        self.name = name
        self._partitions = partitions
        self.acknowledged: set[tuple[str, int, int]] = set()
        self.failures: list[str] = []
        self._sent: Counter[int] = Counter()
        self._over = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "max.in.flight.requests.per.connection": 5,
                "linger.ms": 1,
                "log_level": 0,
                "error_cb": self._on_error,
            }
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """Send no more."""
        self._over.set()

    def wait(self) -> None:
        """Wait until everything that was sent is answered."""
        self._thread.join()

    @property
    def sent(self) -> int:
        """How many records there are."""
        return self._sent.total()

    def _run(self) -> None:
        while not self._over.is_set():
            partition = self.sent % self._partitions
            key = (self.name, partition, self._sent[partition])
            self._sent[partition] += 1
            value = f"{key[0]}:{key[1]}:{key[2]}"
            self._producer.produce(TOPIC, value, partition=partition, on_delivery=partial(self._on_delivery, key))
            self._producer.poll(0)
            self._over.wait(1 / PER_SECOND)
        left = self._producer.flush(60)
        if left:
            self.failures.append(f"{self.name}: {left} records without an answer")

    def _on_delivery(self, key: tuple[str, int, int], error: KafkaError | None, _: Any) -> None:
        if error is None:
            self.acknowledged.add(key)
        else:
            self.failures.append(f"{key}: {error}")

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self.failures.append(f"{self.name}: fatal: {error}")


def end_of(consumer: Consumer, place: TopicPartition, deadline: float) -> int:
    """The end of a partition, also where a broker was just left out of the metadata."""
    while True:
        try:
            return int(consumer.get_watermark_offsets(place, timeout=30)[1])
        except KafkaException:
            if time.monotonic() > deadline:
                raise


def stored(bootstrap: str, partitions: int = PARTITIONS) -> dict[tuple[str, int], list[int]]:
    """The numbers of every writer and partition, in the order of the log."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "log_level": 0})
    places = [TopicPartition(TOPIC, index, OFFSET_BEGINNING) for index in range(partitions)]
    deadline = time.monotonic() + 60
    left = {place.partition: end_of(consumer, place, deadline) for place in places}
    consumer.assign(places)
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    while any(left.values()):
        assert time.monotonic() < deadline, f"the log could not be read to its end: {left} are missing"
        message = consumer.poll(0.5)
        if message is None:
            continue
        assert message.error() is None, message.error()
        left[message.partition()] -= 1
        name, partition, number = message.value().decode().split(":")
        found[name, int(partition)].append(int(number))
    consumer.close()
    return found


def stall(cluster: Cluster, seconds: float) -> None:
    """Redis stands still for a while."""
    os.kill(cluster.redis_pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(cluster.redis_pid, signal.SIGCONT)


@pytest.mark.timeout(300)
def test_stalls_idempotent_producers_store_every_record_once(rng: random.Random) -> None:
    with Cluster(brokers=BROKERS) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
        writers = [Writer(cluster.bootstrap, f"writer-{number}") for number in range(PRODUCERS)]
        try:
            for _ in range(STALLS):
                time.sleep(rng.uniform(*BETWEEN_S))
                stall(cluster, rng.uniform(*STALLED_S))
        finally:
            for writer in writers:
                writer.stop()
            for writer in writers:
                writer.wait()
        found = stored(cluster.bootstrap)

        acknowledged = {key for writer in writers for key in writer.acknowledged}
        failures = [failure for writer in writers for failure in writer.failures]
        twice = [(*key, n) for key, numbers in found.items() for n, times in Counter(numbers).items() if times > 1]
        disorder = [key for key, numbers in found.items() if numbers != sorted(numbers)]
        lost = acknowledged - {(*key, number) for key, numbers in found.items() for number in numbers}
        print(
            f"{sum(writer.sent for writer in writers)} records, {len(acknowledged)} acknowledged, {STALLS} stalls: "
            f"{len(twice)} twice, {len(disorder)} sequences out of order, {len(lost)} lost, {len(failures)} failures"
        )
        assert not failures, failures[:5]
        assert not twice, twice[:5]
        assert not lost, sorted(lost)[:5]
        assert not disorder, disorder[:5]
        assert len(acknowledged) > 1_000, "hardly any load"
        assert not tracebacks(cluster)
