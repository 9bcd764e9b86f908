"""`tidegate txn` and `tidegate topic trim`, as they are typed, on real brokers."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest
import redis
from aiokafka import AIOKafkaProducer

from bench.cluster import Cluster
from tests.conformance.test_topic_and_tail_commands import reported, typed
from tidegate.cli.failures import BAD_NEWS, FAILED
from tidegate.store.keys import TransactionKeys

_SHARDS = 50
_PREFIX = "tidegate"


@pytest.fixture
async def topic(cluster: Cluster) -> str:
    """One of two partitions."""
    name = f"txn-{uuid.uuid4().hex[:8]}"
    await typed(cluster, "topic", "create", name, "--partitions", "2")
    return name


@pytest.fixture
async def ongoing(cluster: Cluster, topic: str) -> AsyncIterator[str]:
    """A transactional id whose transaction has three records in partition 0."""
    transactional_id = f"of-{topic}"
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id=transactional_id)
    await producer.start()
    await producer.begin_transaction()
    for number in range(3):
        await producer.send_and_wait(topic, b"%d" % number, partition=0)
    yield transactional_id
    producer._closed = True  # its transaction was aborted by the commands
    await producer._sender.close()
    await producer.client.close()


async def test_txn_list_and_describe(cluster: Cluster, topic: str, ongoing: str) -> None:
    rows = {row["transactional_id"]: row for row in await reported(cluster, "txn", "list")}
    found = await reported(cluster, "txn", "describe", ongoing)

    assert rows[ongoing]["state"] == found["state"] == "Ongoing"
    assert rows[ongoing]["producer_id"] == found["producer_id"]
    assert found["partitions"] == [f"{topic}-0"] and found["started"]
    assert ongoing in {row["transactional_id"] for row in await reported(cluster, "txn", "list", "--state", "Ongoing")}
    assert ongoing not in (await typed(cluster, "txn", "list", "--state", "Empty")).stdout
    assert "Ongoing, PrepareCommit" in (await typed(cluster, "txn", "list", "--state", "Bogus", code=FAILED)).stderr
    await typed(cluster, "txn", "describe", "no-such", code=FAILED)


async def test_txn_abort_ends_the_transaction(cluster: Cluster, topic: str, ongoing: str) -> None:
    assert (await reported(cluster, "txn", "find-hanging", "--topic", topic, "--older-than-ms", "0")) == []
    await typed(cluster, "txn", "abort", ongoing, "--yes")
    assert (await reported(cluster, "txn", "describe", ongoing))["partitions"] == []
    again = await typed(cluster, "txn", "abort", ongoing, "--yes", code=FAILED)
    assert "has no transaction" in again.output


async def test_txn_abort_hanging(cluster: Cluster, topic: str, ongoing: str) -> None:
    keys = TransactionKeys.of(_PREFIX, _SHARDS, "default", ongoing)
    with redis.Redis.from_url(cluster.redis_url) as client:  # the coordinator forgets it: nobody will end it
        client.delete(keys.transaction)
        client.hdel(keys.transactions, keys.ref)
        client.zrem(keys.deadlines, keys.ref)

    done = await typed(cluster, "txn", "find-hanging", "--topic", topic, "--older-than-ms", "0", "-o", "json",
                       code=BAD_NEWS)  # fmt: skip
    assert '"start_offset": 0' in done.stdout and topic in done.stdout
    await typed(cluster, "txn", "abort-hanging", topic, "0", "7", "--yes", code=FAILED)
    await typed(cluster, "txn", "abort-hanging", topic, "0", "0", "--yes")

    assert await reported(cluster, "txn", "find-hanging", "--topic", topic, "--older-than-ms", "0") == []


async def test_topic_trim(cluster: Cluster, topic: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
        for number in range(20):
            await producer.send_and_wait(topic, b"%d" % number, partition=number % 2)

    await typed(cluster, "topic", "trim", topic, "-p", "1", "--before", "4", "--yes")
    rows = (await reported(cluster, "topic", "describe", topic))["partitions"]
    assert [(row["start"], row["end"]) for row in rows] == [(0, 10), (4, 10)]
    refused = await typed(cluster, "topic", "trim", topic, "--before", "99", "--yes", code=BAD_NEWS)
    assert "OFFSET_OUT_OF_RANGE" in refused.stdout
    await typed(cluster, "topic", "trim", topic, "--yes")
    rows = (await reported(cluster, "topic", "describe", topic))["partitions"]
    assert [(row["start"], row["end"]) for row in rows] == [(10, 10), (10, 10)]
    await typed(cluster, "topic", "trim", topic, "-p", "9", "--yes", code=FAILED)
