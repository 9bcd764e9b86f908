"""`tidegate backup` over running brokers: real clients continue with the restored cluster on other servers."""

from __future__ import annotations

import asyncio
import stat
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka import Consumer, Message
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from bench.cluster import Cluster
from tests.kit.forked_cluster import ForkedCluster
from tests.support.redis_cluster import Sharded
from tidegate.cli.failures import DONE, FAILED
from tidegate.cli.main import command_line

WAIT_S = 60
SETTINGS = {
    "TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "100",
    "TIDEGATE_GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS": "300",
}


async def typed(*words: object, code: int = DONE) -> str:
    """Run `tidegate WORDS`; what it prints."""
    done = await asyncio.to_thread(CliRunner().invoke, command_line, [str(word) for word in words])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


@pytest.fixture
def other_redis() -> Iterator[str]:
    """The address of an empty Redis Cluster."""
    with Sharded(replicas=0) as servers:
        yield servers.url


def read_by_consumer_protocol(bootstrap: str, group: str, topic: str, count: int) -> list[Message]:
    """What a member of a KIP-848 group reads and commits."""
    options = {
        "bootstrap.servers": bootstrap, "group.id": group, "group.protocol": "consumer",
        "auto.offset.reset": "error", "enable.auto.commit": False,
    }  # fmt: skip
    with closing(Consumer(options)) as consumer:
        consumer.subscribe([topic])
        found: list[Message] = consumer.consume(count, WAIT_S)
        assert [message.error() for message in found] == [None] * count
        consumer.commit(asynchronous=False)
    return found


async def produce(bootstrap: str, topic: str, *values: bytes) -> int:
    """One record for each value; the offset of the last."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
        return [(await producer.send_and_wait(topic, value, partition=0)).offset for value in values][-1]


async def read_as_member(bootstrap: str, group: str, topic: str, count: int) -> list[tuple[int, bytes | None]]:
    """(offset, value) of what aiokafka's member of a classic group reads and commits; no offset is reset."""
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="none", enable_auto_commit=False
    )
    await consumer.start()
    try:
        async with asyncio.timeout(WAIT_S):
            found = [await consumer.getone() for _ in range(count)]
        await consumer.commit()
    finally:
        await consumer.stop()
    return [(record.offset, record.value) for record in found]


async def seek_to_start(bootstrap: str, topic: str, partitions: int, *groups: str) -> None:
    """Commit offset 0 for groups without members."""
    for group in groups:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
        await consumer.start()
        try:
            places = [TopicPartition(topic, index) for index in range(partitions)]
            consumer.assign(places)
            await consumer.commit(dict.fromkeys(places, 0))
        finally:
            await consumer.stop()


@pytest.mark.one_server
async def test_restored_cluster_serves_clients_at_once(cluster: Cluster, other_redis: str, tmp_path: Path) -> None:
    unique, file = uuid.uuid4().hex[:8], tmp_path / "backup.gz"
    topic, classic, modern, user = (f"{name}-{unique}" for name in ("orders", "classic", "modern", "alice"))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(topic, 2, 1, config={"retention.ms": "-1"})])[topic].result(WAIT_S)
    await produce(cluster.bootstrap, topic, b"first", b"second")
    await seek_to_start(cluster.bootstrap, topic, 2, classic, modern)
    assert len(await read_as_member(cluster.bootstrap, classic, topic, 2)) == 2
    await asyncio.to_thread(read_by_consumer_protocol, cluster.bootstrap, modern, topic, 2)
    password = tmp_path / "password"
    password.write_text("alice-s3cret")
    await typed("user", "create", user, "--password-file", password, "--redis-url", cluster.redis_url)
    await typed("acl", "add", f"User:{user}", "READ", f"topic:{topic}", "--redis-url", cluster.redis_url)
    await typed("quota", "set", f"user={user}", "producer_byte_rate", "1000000", "--redis-url", cluster.redis_url)

    await typed("backup", "create", file, "--redis-url", cluster.redis_url)
    await typed("backup", "restore", file, "--redis-url", other_redis)

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert user in await typed("user", "list", "--redis-url", other_redis)
    assert topic in await typed("acl", "list", "--redis-url", other_redis)
    assert user in await typed("quota", "list", "--redis-url", other_redis)
    with ForkedCluster(brokers=2, settings=SETTINGS, redis_url=other_redis) as restored:
        described = AdminClient({"bootstrap.servers": restored.bootstrap}).list_topics(topic, timeout=WAIT_S).topics
        assert len(described[topic].partitions) == 2
        assert await produce(restored.bootstrap, topic, b"third") == 2
        assert await read_as_member(restored.bootstrap, classic, topic, 1) == [(2, b"third")]
        (message,) = await asyncio.to_thread(read_by_consumer_protocol, restored.bootstrap, modern, topic, 1)
        assert (message.offset(), message.value()) == (2, b"third")
        again = await typed("backup", "restore", file, "--redis-url", other_redis, code=FAILED)
    assert "there is a cluster with the prefix" in again


@pytest.mark.one_server
async def test_deleted_group_is_restored_under_running_brokers(cluster: Cluster, tmp_path: Path) -> None:
    unique, file = uuid.uuid4().hex[:8], tmp_path / "backup.gz"
    topic, group = f"orders-{unique}", f"classic-{unique}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(WAIT_S)
    await produce(cluster.bootstrap, topic, b"first", b"second")
    await seek_to_start(cluster.bootstrap, topic, 1, group)
    await read_as_member(cluster.bootstrap, group, topic, 1)
    await typed("backup", "create", file, "--redis-url", cluster.redis_url)
    admin.delete_consumer_groups([group])[group].result(WAIT_S)

    await typed("backup", "restore", file, "--into-existing", "--redis-url", cluster.redis_url)

    assert await read_as_member(cluster.bootstrap, group, topic, 1) == [(1, b"second")]
    with closing(redis.Redis.from_url(cluster.redis_url)) as client:
        assert client.hget("tidegate:{cluster}:info", "restoring") is None
