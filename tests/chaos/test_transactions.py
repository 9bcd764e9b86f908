"""Transactions while brokers are killed: consumers get each committed one whole and once, and no aborted one."""

from __future__ import annotations

import asyncio
import random
import threading
import time
import uuid
from collections import Counter

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.cluster import Cluster

PARTITIONS = 3
PER_TRANSACTION = 9
RUN_S = 10.0
KILL_EVERY_S = 2.5
WAIT_S = 60


def _write(bootstrap: str, topic: str, seed: int, over: threading.Event) -> dict[int, str]:
    """Transactions until it is over, and one is committed; each number's outcome: committed, aborted, or unknown."""
    draw = random.Random(seed)
    outcomes: dict[int, str] = {}
    producer: Producer | None = None
    number = 0
    while not over.is_set() or "committed" not in outcomes.values():
        number += 1
        outcomes[number] = "aborted"
        try:
            if producer is None:
                producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
                producer.init_transactions(WAIT_S)
            producer.begin_transaction()
            for i in range(PER_TRANSACTION):
                producer.produce(topic, f"{number}:{i}".encode(), partition=i % PARTITIONS)
            producer.flush(WAIT_S)
            if draw.random() < 0.3:
                producer.abort_transaction(WAIT_S)
                continue
            outcomes[number] = "unknown"
            producer.commit_transaction(WAIT_S)
            outcomes[number] = "committed"
        except KafkaException as failure:
            error = failure.args[0]
            if producer is not None and error.txn_requires_abort():
                outcomes[number] = "aborted"
                producer.abort_transaction(WAIT_S)
            else:
                producer = None  # the next one of the same id fences it, and aborts what it left open
    return outcomes


def _read(bootstrap: str, topic: str) -> Counter[str]:
    """Every committed value up to the stable end of each partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "isolation.level": "read_committed",
                         "enable.partition.eof": True})  # fmt: skip
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    values: Counter[str] = Counter()
    ended: set[int] = set()
    deadline_s = time.monotonic() + WAIT_S
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline_s, "the stable ends are not reached"
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error() is not None:
            ended.add(message.partition())
        else:
            values[message.value().decode()] += 1
    consumer.close()
    return values


@pytest.mark.parametrize("log_format", ["batch", pytest.param("record", marks=pytest.mark.slow)])
async def test_transactions_stay_whole_while_brokers_are_killed(log_format: str) -> None:
    seed, topic = random.randrange(1 << 30), f"chaos-{uuid.uuid4().hex[:8]}"
    with Cluster(brokers=3) as cluster:
        bootstrap = cluster.bootstrap
        admin = AdminClient({"bootstrap.servers": bootstrap})
        [created] = admin.create_topics([NewTopic(topic, PARTITIONS, config={"tidegate.format": log_format})]).values()
        await asyncio.to_thread(created.result, WAIT_S)
        until_s, over = time.monotonic() + RUN_S, threading.Event()
        writing = asyncio.create_task(asyncio.to_thread(_write, bootstrap, topic, seed, over))
        killed = 0
        while time.monotonic() < until_s:
            await asyncio.sleep(KILL_EVERY_S)
            broker = cluster.brokers[killed % len(cluster.brokers)]
            broker.kill()
            killed += 1
            await asyncio.to_thread(broker.start)
        over.set()
        outcomes = await writing
        closing = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
        await asyncio.to_thread(closing.init_transactions, WAIT_S)  # ends what was left open
        values = await asyncio.to_thread(_read, bootstrap, topic)

    assert max(values.values()) == 1, f"seed {seed}"
    by_number = Counter(int(value.split(":")[0]) for value in values)
    assert "committed" in outcomes.values(), f"seed {seed}: {outcomes}"
    for number, outcome in outcomes.items():
        allowed = {"committed": {PER_TRANSACTION}, "aborted": {0}, "unknown": {0, PER_TRANSACTION}}[outcome]
        assert by_number[number] in allowed, f"seed {seed}: transaction {number} is {outcome}"
