"""Unmodified clients with transactions: what read_committed consumers get is exactly what was committed."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

from bench.cluster import Cluster

TRANSACTIONS = 30
PER_TRANSACTION = 20
PARTITIONS = 3
WAIT_S = 60


def is_committed(number: int) -> bool:
    """Every third transaction is aborted."""
    return number % 3 != 2


def expected() -> list[str]:
    """The values of the committed transactions."""
    numbers = [number for number in range(TRANSACTIONS) if is_committed(number)]
    return sorted(f"{number}:{i}" for number in numbers for i in range(PER_TRANSACTION))


async def _create(cluster: Cluster, *topics: str) -> None:
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics])
    await admin.close()


async def _consumed(cluster: Cluster, topic: str) -> list[str]:
    """All values that a read_committed consumer of aiokafka gets, up to the stable end of each partition."""
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(
        bootstrap_servers=cluster.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    await consumer.start()
    partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    consumer.assign(partitions)
    ends = await consumer.end_offsets(partitions)
    values: list[str] = []
    async with asyncio.timeout(WAIT_S):
        while any([await consumer.position(one) < ends[one] for one in partitions]):
            for records in (await consumer.getmany(timeout_ms=500)).values():
                values += [record.value.decode() for record in records]
    await consumer.stop()
    return values


def some(consumer: Any, limit: int) -> list[Any]:
    """The next records of a librdkafka consumer, as soon as there are some."""
    deadline = time.monotonic() + WAIT_S
    while not (found := [one for one in consumer.consume(limit, 1) if one.error() is None]):
        assert time.monotonic() < deadline, "nothing more is read"
    return found


async def test_aiokafka_transactions_read_committed(cluster: Cluster) -> None:
    from aiokafka import AIOKafkaProducer

    topic = f"txn-{uuid.uuid4().hex[:8]}"
    await _create(cluster, topic)
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id=f"{topic}-producer")
    await producer.start()
    for number in range(TRANSACTIONS):
        await producer.begin_transaction()
        for i in range(PER_TRANSACTION):
            await producer.send(topic, f"{number}:{i}".encode(), partition=i % PARTITIONS)
        await (producer.commit_transaction() if is_committed(number) else producer.abort_transaction())
    await producer.stop()

    assert sorted(await _consumed(cluster, topic)) == expected()


async def test_librdkafka_transactions_read_committed(cluster: Cluster) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    topic = f"txn-{uuid.uuid4().hex[:8]}"
    await _create(cluster, topic)

    def produce() -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": f"{topic}-producer"})
        producer.init_transactions(WAIT_S)
        for number in range(TRANSACTIONS):
            producer.begin_transaction()
            for i in range(PER_TRANSACTION):
                producer.produce(topic, f"{number}:{i}".encode(), partition=i % PARTITIONS)
            if is_committed(number):
                producer.commit_transaction(WAIT_S)
            else:
                producer.flush(WAIT_S)
                producer.abort_transaction(WAIT_S)

    def consume() -> list[str]:
        consumer = Consumer(
            {"bootstrap.servers": cluster.bootstrap, "group.id": topic, "isolation.level": "read_committed"}
        )
        consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
        values: list[str] = []
        while len(values) < len(expected()):
            message = consumer.poll(WAIT_S)
            assert message is not None, f"only {len(values)} records"
            assert message.error() is None, message.error()
            values.append(message.value().decode())
        rest = consumer.poll(1)
        consumer.close()
        return [*values, rest.value().decode()] if rest is not None and rest.error() is None else values

    await asyncio.to_thread(produce)
    assert sorted(await asyncio.to_thread(consume)) == expected()
    assert sorted(await _consumed(cluster, topic)) == expected()


async def test_librdkafka_consume_transform_produce(cluster: Cluster) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    source, target, group = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("source", "target", "group"))
    await _create(cluster, source, target)
    count = 300

    def feed() -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        for number in range(count):
            producer.produce(source, str(number).encode(), partition=number % PARTITIONS)
        assert producer.flush(WAIT_S) == 0

    def transform(limit: int, seed: int) -> int:
        """Copy up to `limit` records in transactions; every other one is aborted, and its records are read again."""
        config = {"bootstrap.servers": cluster.bootstrap, "group.id": group, "enable.auto.commit": False}
        consumer = Consumer({**config, "auto.offset.reset": "earliest", "isolation.level": "read_committed"})
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": f"{group}-copy"})
        producer.init_transactions(WAIT_S)
        consumer.subscribe([source])
        copied, iteration = 0, seed
        while copied < limit:
            messages = some(consumer, 20)
            producer.begin_transaction()
            for message in messages:
                producer.produce(target, message.value(), partition=message.partition())
            iteration += 1
            if iteration % 2:
                producer.flush(WAIT_S)
                producer.abort_transaction(WAIT_S)
                for partition in consumer.committed(consumer.assignment(), WAIT_S):
                    start = TopicPartition(partition.topic, partition.partition, max(partition.offset, 0))
                    consumer.seek(start)
                continue
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), WAIT_S
            )
            producer.commit_transaction(WAIT_S)
            copied += len(messages)
        consumer.close()
        return copied

    await asyncio.to_thread(feed)
    first = await asyncio.to_thread(transform, count // 2, 0)
    second = await asyncio.to_thread(transform, count - first, 1)
    assert first + second == count
    assert sorted(map(int, await _consumed(cluster, target))) == list(range(count))
