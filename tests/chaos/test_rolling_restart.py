"""Fifty aiokafka members in one group over three brokers, while every broker is restarted under them.

While the group is Stable a rolling restart, first by SIGTERM and then by SIGKILL, must add no generation
and lose no commit: all as the clients see it.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from bench.cluster import Cluster

MEMBERS = int(os.environ.get("TIDEGATE_ROLLING_MEMBERS", "50"))
TOPIC, GROUP = "rolling", "rolling-group"


async def stabilized(consumers: list[Any], partitions: int, timeout_s: float = 90.0) -> int:
    """Wait until every partition has one owner and all members share a generation; that generation."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        owned = [tp for consumer in consumers for tp in consumer.assignment()]
        generations = {consumer._coordinator.generation for consumer in consumers}
        if len(owned) == len(set(owned)) == partitions and len(generations) == 1:
            return int(generations.pop())
        await asyncio.sleep(0.2)
    raise AssertionError("the group did not become stable")


async def stop_all(consumers: list[Any]) -> None:
    """Stop the members. aiokafka cancels its fetches: one that has just failed, and pauses, raises that in `stop`."""

    async def stop(consumer: Any) -> None:
        try:
            await consumer.stop()
        except asyncio.CancelledError:
            await consumer._client.close()

    await asyncio.gather(*map(stop, consumers))


async def commit_for_a_while(consumers: list[Any], stop: asyncio.Event) -> dict[TopicPartition, int]:
    """Each member commits growing offsets of its partitions; the last acknowledged one of each partition."""
    acknowledged: dict[TopicPartition, int] = {}

    async def one(consumer: Any) -> None:
        offset = 0
        while not stop.is_set():
            offset += 1
            offsets = dict.fromkeys(consumer.assignment(), offset)
            await consumer.commit(offsets)
            acknowledged.update(offsets)
            await asyncio.sleep(0.3)

    await asyncio.gather(*(one(consumer) for consumer in consumers))
    return acknowledged


@pytest.mark.timeout(360)  # 72 s on a quiet machine; its own waits add up to more
async def test_rolling_restarts_of_a_stable_group_add_no_generation_and_lose_no_commit() -> None:
    with Cluster(brokers=3) as cluster:
        admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic(TOPIC, MEMBERS, 1)])
        await admin.close()
        bootstrap = cluster.bootstrap
        consumers = [
            AIOKafkaConsumer(TOPIC, bootstrap_servers=bootstrap, group_id=GROUP, enable_auto_commit=False)
            for _ in range(MEMBERS)
        ]
        await asyncio.gather(*(consumer.start() for consumer in consumers))
        before = await stabilized(consumers, MEMBERS)
        stop = asyncio.Event()
        committing = asyncio.create_task(commit_for_a_while(consumers, stop))
        await asyncio.sleep(1)

        for broker in cluster.brokers:
            assert await asyncio.to_thread(broker.drain) == 0
            broker.start()
            await asyncio.to_thread(broker.wait_ready)
            await asyncio.sleep(2)
        for broker in cluster.brokers:
            broker.kill()
            await asyncio.sleep(1)
            broker.start()
            await asyncio.to_thread(broker.wait_ready)
            await asyncio.sleep(2)
        await asyncio.sleep(12)  # longer than a session: a member that was lost would be gone by now
        stop.set()
        async with asyncio.timeout(60):
            acknowledged = await committing

        assert {consumer._coordinator.generation for consumer in consumers} == {before}
        assert len(acknowledged) == MEMBERS
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
        await producer.start()
        await producer.send_and_wait(TOPIC, b"the brokers still take records", partition=0)
        await producer.stop()
        for consumer in consumers:
            for tp in consumer.assignment():
                assert await consumer.committed(tp) >= acknowledged[tp]
        await stop_all(consumers)
