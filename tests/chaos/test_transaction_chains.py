"""Consume, transform, produce in transactions, a share of them aborted, while a broker is killed: every record once.

Each partition's output must be its input, in order, under read_committed, and no transaction may stay open.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from bench.cluster import Cluster

PARTITIONS = 3
MEMBERS = 2
BATCH = 100
ABORTED = 0.2
WAIT_S = 60.0
ASK_S = 5.0
"""The administrator's question may go to a broker that is being killed; it is asked again."""
FSYNC_ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")
SOURCE, SINK, GROUP = "source", "sink", "chain"


def transformed(value: bytes) -> bytes:
    return b"%d" % (2 * int(value))


def _member(bootstrap: str, seed: int, stop: threading.Event) -> None:
    """A member that goes on from its committed offsets with a new producer after each error."""
    draw = random.Random(seed)
    while not stop.is_set():
        consumer = Consumer({
            "bootstrap.servers": bootstrap, "group.id": GROUP, "isolation.level": "read_committed",
            "enable.auto.commit": False, "auto.offset.reset": "earliest",
        })  # fmt: skip
        try:
            _chain(bootstrap, consumer, draw, stop, f"chain-{seed}")
        except KafkaException as error:
            print(f"chain {seed}: begins again: {error.args[0]}")
        finally:
            consumer.close()


def _chain(
    bootstrap: str, consumer: Consumer, draw: random.Random, stop: threading.Event, transactional_id: str
) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 5})
    producer.init_transactions(WAIT_S)
    consumer.subscribe([SOURCE])
    while not stop.is_set():
        messages = [one for one in consumer.consume(BATCH, timeout=1) if one.error() is None]
        if not messages:
            continue
        producer.begin_transaction()
        for one in messages:
            producer.produce(SINK, transformed(one.value()), partition=one.partition())
        try:
            offsets = consumer.position(consumer.assignment())
            read = [one for one in offsets if one.offset >= 0]
            producer.send_offsets_to_transaction(read, consumer.consumer_group_metadata(), WAIT_S)
            if draw.random() >= ABORTED:
                producer.commit_transaction(WAIT_S)
                continue
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
        producer.abort_transaction(WAIT_S)
        _rewind(consumer)


def _rewind(consumer: Consumer) -> None:
    """Back to the committed offsets, after an abort."""
    for one in consumer.committed(consumer.assignment(), timeout=WAIT_S):
        consumer.seek(TopicPartition(SOURCE, one.partition, max(one.offset, 0)))


class Run:
    """The topics of a chain, and what is in them."""

    def __init__(self, cluster: Cluster, count: int) -> None:
        self.bootstrap, self.count = cluster.bootstrap, count
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap})

    def fill(self) -> None:
        """Make the topics, and the source's records."""
        for made in self.admin.create_topics([NewTopic(name, PARTITIONS) for name in (SOURCE, SINK)]).values():
            made.result(WAIT_S)
        producer = Producer({"bootstrap.servers": self.bootstrap, "queue.buffering.max.messages": self.count + 1})
        for number in range(self.count):
            producer.produce(SOURCE, b"%d" % number, partition=number % PARTITIONS)
        assert producer.flush(WAIT_S) == 0

    def done(self) -> int:
        """Records of the source whose transactions are committed."""
        places = [TopicPartition(SOURCE, index) for index in range(PARTITIONS)]
        admin = AdminClient(
            {"bootstrap.servers": self.bootstrap}
        )  # an old one may wait for a coordinator that was killed
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP, places)], request_timeout=ASK_S)
        try:
            [found] = [future.result().topic_partitions for future in asked.values()]
        except KafkaException:
            return 0  # the coordinator is being killed
        return sum(max(one.offset, 0) for one in found)

    def ends(self, level: IsolationLevel) -> list[int]:
        """The sink's ends that a reader of this level has."""
        asked = {TopicPartition(SINK, index): OffsetSpec.latest() for index in range(PARTITIONS)}
        found = self.admin.list_offsets(asked, isolation_level=level, request_timeout=WAIT_S)
        return [found[place].result().offset for place in asked]

    def read(self) -> list[list[int]]:
        """What a reader of committed records finds, by partition."""
        consumer = Consumer({
            "bootstrap.servers": self.bootstrap, "group.id": "check", "isolation.level": "read_committed",
            "enable.partition.eof": True, "enable.auto.commit": False,
        })  # fmt: skip
        consumer.assign([TopicPartition(SINK, index, 0) for index in range(PARTITIONS)])
        values: list[list[int]] = [[] for _ in range(PARTITIONS)]
        ended: set[int] = set()
        deadline_s = time.monotonic() + 2 * WAIT_S
        while len(ended) < PARTITIONS:
            assert time.monotonic() < deadline_s, "the stable ends are not reached"
            for message in consumer.consume(1_000, timeout=1):
                if message.error() is None:
                    values[message.partition()].append(int(message.value()))
                else:
                    ended.add(message.partition())
        consumer.close()
        return values


async def _kill_one(cluster: Cluster) -> None:
    await asyncio.sleep(2)
    cluster.brokers[0].kill()
    await asyncio.to_thread(cluster.brokers[0].start)


async def _until_done(run: Run, limit_s: float) -> None:
    async with asyncio.timeout(limit_s):
        while await asyncio.to_thread(run.done) < run.count:
            await asyncio.sleep(0.5)


@pytest.mark.slow
@pytest.mark.timeout(420)  # 20 s on a quiet machine; its own waits add up to more
async def test_transaction_chain_stays_exact_while_a_broker_is_killed(rng: random.Random) -> None:
    count, stop = 5_000, threading.Event()
    with Cluster(brokers=3, server_options=FSYNC_ALWAYS) as cluster:
        run = Run(cluster, count)
        await asyncio.to_thread(run.fill)
        seeds = [rng.randrange(1 << 30) for _ in range(MEMBERS)]
        working = [asyncio.create_task(asyncio.to_thread(_member, cluster.bootstrap, seed, stop)) for seed in seeds]
        killing = asyncio.create_task(_kill_one(cluster))
        try:
            await _until_done(run, 180)
            await killing
        finally:
            stop.set()
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)
            await asyncio.gather(*working)
        for broker in cluster.brokers:
            await asyncio.to_thread(broker.wait_ready)
        values = await asyncio.to_thread(run.read)
        async with asyncio.timeout(WAIT_S):  # the last transaction may have been aborted when the chain was stopped
            while run.ends(IsolationLevel.READ_COMMITTED) != run.ends(IsolationLevel.READ_UNCOMMITTED):
                await asyncio.sleep(0.5)
    assert values == [[2 * number for number in range(index, count, PARTITIONS)] for index in range(PARTITIONS)]
