"""A real client's group over several brokers, as redis-cli shows it: XINFO GROUPS, XINFO CONSUMERS, XPENDING."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from redis.asyncio import Redis

from bench.cluster import Cluster
from tests.kit.forked_cluster import ForkedCluster

GROUP = "billing"
RECORDS = 5


@pytest.fixture(scope="module")
def pair() -> Iterator[Cluster]:
    """Two brokers."""
    with ForkedCluster(brokers=2, settings={"TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "100"}) as running:
        yield running


@pytest.fixture
async def redis(pair: Cluster) -> AsyncIterator[Redis]:
    client = Redis(port=pair.redis_port)
    yield client
    await client.aclose()


@pytest.fixture
async def topic(pair: Cluster) -> str:
    """Two partitions with five records each, every record an entry of its own."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    admin = AIOKafkaAdminClient(bootstrap_servers=pair.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(name, 2, 1)])
    await admin.close()
    producer = AIOKafkaProducer(bootstrap_servers=pair.bootstrap)
    await producer.start()
    for number in range(2 * RECORDS):
        await producer.send_and_wait(name, b"%d" % number, partition=number % 2)
    await producer.stop()
    return name


def consumer(pair: Cluster, name: str, group_id: str = GROUP) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        bootstrap_servers=pair.bootstrap,
        group_id=group_id,
        client_id=name,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        heartbeat_interval_ms=200,
    )


async def read(reader: AIOKafkaConsumer, count: int) -> None:
    """Poll until so many records came."""
    async with asyncio.timeout(60):
        while count > 0:
            found = await reader.getmany(timeout_ms=500)
            count -= sum(map(len, found.values()))
    assert count == 0


async def wait_until_equal(observe: Callable[[], Awaitable[Any]], expected: Any) -> None:
    """What the mirror shows soon; it is written behind."""
    ends = time.monotonic() + 60
    while (shown := await observe()) != expected:
        assert time.monotonic() < ends, f"{shown}, not {expected}"
        await asyncio.sleep(0.05)


async def test_position_and_pending_work_of_a_real_group(pair: Cluster, redis: Redis, topic: str) -> None:
    logs = [
        [key async for key in redis.scan_iter(f"tidegate:{{default/{topic}:{index}}}:*:log")].pop() for index in (0, 1)
    ]

    async def positions() -> list[str]:
        groups = [await redis.xinfo_groups(log) for log in logs]
        return [found[0]["last-delivered-id"].decode() for found in groups if found]

    async def pending() -> list[dict[str, int]]:
        """For each partition, how much is pending for whom."""
        summaries = [await redis.xpending(log, GROUP) for log in logs]
        return [{one["name"].decode()[:5]: one["pending"] for one in found["consumers"]} for found in summaries]

    first = consumer(pair, "one-a")
    first.subscribe([topic])
    await first.start()
    second = consumer(pair, "two-b")
    second.subscribe([topic])
    try:
        await read(first, 2 * RECORDS)
        await wait_until_equal(positions, ["4-1", "4-1"])
        assert await pending() == [{"one-a": RECORDS}, {"one-a": RECORDS}]
        [oldest, *_] = await redis.xpending_range(logs[0], GROUP, "-", "+", 1)
        assert oldest["message_id"] == b"0-1" and oldest["time_since_delivered"] < 30_000

        await first.commit({TopicPartition(topic, index): 3 for index in (0, 1)})
        await wait_until_equal(pending, [{"one-a": 2}, {"one-a": 2}])

        await first.seek_to_beginning()
        await read(first, 2 * RECORDS)
        await wait_until_equal(pending, [{"one-a": 2}, {"one-a": 2}])  # the rest stays committed

        await second.start()
        reading = asyncio.ensure_future(first.getmany(timeout_ms=500))  # it rejoins while it polls
        async with asyncio.timeout(60):
            while not second.assignment() or len(first.assignment()) != 1:
                await asyncio.sleep(0.05)
        await reading
        [moved] = second.assignment()
        await read(second, 2)  # from the committed offset
        await wait_until_equal(lambda: _of(pending, moved.partition), {"two-b": 2})

        await second.commit()
        await wait_until_equal(lambda: _of(pending, moved.partition), {})
    finally:
        await first.stop()
        await second.stop()


async def _of(observe: Callable[[], Awaitable[list[Any]]], index: int) -> Any:
    return (await observe())[index]


PARTITIONS = 6


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    """Three brokers: of most partitions the leader is not the group's coordinator."""
    with ForkedCluster(brokers=3, settings={"TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "100"}) as running:
        yield running


async def test_commit_at_a_coordinator_that_leads_no_partition_leaves_nothing_pending(three: Cluster) -> None:
    name = f"t-{uuid.uuid4().hex[:8]}"
    admin = AIOKafkaAdminClient(bootstrap_servers=three.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(name, PARTITIONS, 1)])
    await admin.close()
    producer = AIOKafkaProducer(bootstrap_servers=three.bootstrap)
    await producer.start()
    for number in range(PARTITIONS * RECORDS):
        await producer.send_and_wait(name, b"%d" % number, partition=number % PARTITIONS)
    await producer.stop()
    reader = consumer(three, "one-a")
    reader.subscribe([name])
    await reader.start()
    try:
        await read(reader, PARTITIONS * RECORDS)
        await reader.commit()
    finally:
        await reader.stop()

    async with Redis(port=three.redis_port) as redis:
        keys = [f"tidegate:{{default/{name}:{index}}}:*:log" for index in range(PARTITIONS)]
        logs = [[log async for log in redis.scan_iter(key)].pop() for key in keys]

        at_the_end = {b"%d-1" % (RECORDS - 1), b"%d-0" % RECORDS}  # written by the delivery, and by the commit

        async def shown() -> list[tuple[bool, int]]:
            groups = [found for log in logs for found in await redis.xinfo_groups(log)]
            return [(found["last-delivered-id"] in at_the_end, found["pending"]) for found in groups]

        await wait_until_equal(shown, [(True, 0)] * PARTITIONS)


async def test_only_offsets_of_committed_transactions_are_not_pending(three: Cluster) -> None:
    """Consume, transform, produce: one transaction is aborted, the next commits a part, the last one all."""
    name, group = f"t-{uuid.uuid4().hex[:8]}", f"g-{uuid.uuid4().hex[:8]}"
    admin = AIOKafkaAdminClient(bootstrap_servers=three.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(name, PARTITIONS, 1), NewTopic(f"{name}-out", 1, 1)])
    await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=three.bootstrap) as plain:
        for number in range(PARTITIONS * RECORDS):
            await plain.send_and_wait(name, b"%d" % number, partition=number % PARTITIONS)
    producer = AIOKafkaProducer(bootstrap_servers=three.bootstrap, transactional_id=name)
    await producer.start()
    reader = consumer(three, "one-a", group)
    reader.subscribe([name])
    await reader.start()
    keys = [f"tidegate:{{default/{name}:{index}}}:*:log" for index in range(PARTITIONS)]
    async with Redis(port=three.redis_port) as redis:
        logs = [[log async for log in redis.scan_iter(key)].pop() for key in keys]

        async def pending() -> list[int]:
            return [found["pending"] for log in logs for found in await redis.xinfo_groups(log)]

        async def send(offset: int) -> None:
            """In a new transaction, a record and the group's offset of every partition."""
            await producer.begin_transaction()
            await producer.send_and_wait(f"{name}-out", b"result")
            offsets = {TopicPartition(name, index): offset for index in range(PARTITIONS)}
            await producer.send_offsets_to_transaction(offsets, group)

        try:
            await read(reader, PARTITIONS * RECORDS)
            await wait_until_equal(pending, [RECORDS] * PARTITIONS)
            await send(RECORDS)
            await producer.abort_transaction()
            await send(2)
            await producer.commit_transaction()
            await wait_until_equal(pending, [RECORDS - 2] * PARTITIONS)
            await send(RECORDS)
            await producer.commit_transaction()
            await wait_until_equal(pending, [0] * PARTITIONS)
        finally:
            await reader.stop()
            await producer.stop()
