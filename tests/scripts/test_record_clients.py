"""Topics of format record over two broker processes: aiokafka and librdkafka beside a Redis program (redis-py)."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import redis
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from confluent_kafka import Consumer, Message, Producer

from bench.cluster import REPOSITORY, Cluster

TOPIC = "orders"
PATIENCE_S = 60.0
RECORD_FORMAT = {"tidegate.format": "record", "retention.ms": "-1"}  # some ids are of 1970


def key(partition: int) -> str:
    return f"tidegate:{{default/{TOPIC}:{partition}}}:records"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2, {"TIDEGATE_GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS": "200"}) as opened:
        yield opened


@pytest.fixture
def program(cluster: Cluster) -> Iterator[redis.Redis]:
    opened = redis.Redis(port=cluster.redis_port)
    yield opened
    opened.close()


@pytest.fixture
async def topic(cluster: Cluster) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    await admin.start()
    if TOPIC in await admin.list_topics():
        await admin.delete_topics([TOPIC])
    await admin.create_topics([NewTopic(TOPIC, 2, 1, topic_configs=RECORD_FORMAT)])
    described = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, TOPIC)])
    configs = {entry[0]: entry[1] for entry in described[0].resources[0][4]}
    await admin.close()
    assert configs["tidegate.format"] == "record"
    assert configs["tidegate.sequence.bits"] == "10"


async def test_aiokafka_and_redis_program_share_a_stream(cluster: Cluster, program: redis.Redis, topic: None) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, enable_idempotence=True, compression_type="gzip")
    consumer = AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest")
    await producer.start()
    await consumer.start()
    try:
        sent = [
            await producer.send_and_wait(TOPIC, b"from kafka", b"k%d" % i, i % 2, headers=[("n", b"%d" % i)])
            for i in range(20)
        ]
        for i in range(20):
            program.xadd(key(i % 2), {"value": f"from redis {i}", "colour": "blue"})
        consumer.assign([TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)])
        read = [await asyncio.wait_for(consumer.getone(), PATIENCE_S) for _ in range(40)]

        late = asyncio.ensure_future(consumer.getone())
        await asyncio.sleep(0.3)
        program.xadd(key(1), {"value": "late"})
        last = await asyncio.wait_for(late, PATIENCE_S)
    finally:
        await producer.stop()
        await consumer.stop()

    assert {(one.partition, one.offset) for one in sent} < {(one.partition, one.offset) for one in read}
    for partition in (0, 1):
        mine = [one for one in read if one.partition == partition]
        stored = program.xrange(key(partition))
        assert [f"{one.offset >> 10}-{one.offset & 1023}".encode() for one in mine] == [
            entry for entry, fields in stored if fields[b"value"] != b"late"
        ]
        assert [one.value for one in mine if one.value.startswith(b"from kafka")] == [b"from kafka"] * 10
        assert {one.headers for one in mine if one.value.startswith(b"from redis")} == {(("colour", b"blue"),)}
        assert {fields[b"header:n"] for _, fields in stored if b"header:n" in fields} == {
            b"%d" % i for i in range(partition, 20, 2)
        }
    assert last.value == b"late"


async def test_aiokafka_positions(cluster: Cluster, program: redis.Redis, topic: None) -> None:
    for ms in (1_000, 2_000, 3_000):
        program.xadd(key(0), {"value": str(ms)}, id=f"{ms}-0")
    consumer = AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap)
    await consumer.start()
    try:
        partition = TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        beginning = await consumer.beginning_offsets([partition])
        end = await consumer.end_offsets([partition])
        by_time = await consumer.offsets_for_times({partition: 1_500})
        consumer.seek(partition, 2_000 << 10)
        after_seek = await asyncio.wait_for(consumer.getone(), PATIENCE_S)
    finally:
        await consumer.stop()

    assert beginning == {partition: 1_000 << 10}
    assert end == {partition: (3_000 << 10) + 1}
    assert (by_time[partition].offset, by_time[partition].timestamp) == (2_000 << 10, 2_000)
    assert after_seek.value == b"2000"


async def test_example_of_the_docs_and_redis_log(
    cluster: Cluster, topic: None, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (REPOSITORY / "docs" / "record-topics.md").read_text("utf-8")
    [example] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap)
    await producer.start()
    await producer.send_and_wait(TOPIC, b"from kafka", b"k", 0, headers=[("trace", b"7")])
    await producer.stop()
    program = example.replace("port=6379", f"port={cluster.redis_port}") + "\nprogram.close()\n"

    await asyncio.to_thread(exec, program, {})
    shown = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "tidegate", "redis", "log", TOPIC, "0", "--redis-url", cluster.redis_url, "-o", "json"],
        capture_output=True, check=True,
    )  # fmt: skip

    assert capsys.readouterr().out.splitlines() == [
        "b'k' b'from kafka' b'7'",
        "b'customer-8' b'{\"total\": 5}' None",
    ]
    assert json.loads(shown.stdout) == {"key": key(0), "format": "record", "entries": 2, "groups": 1}


async def test_shell_example_of_the_docs(cluster: Cluster, program: redis.Redis, topic: None) -> None:
    page = (REPOSITORY / "docs" / "record-topics.md").read_text("utf-8")
    [example] = re.findall(r"```shell\n(.*?)```", page, re.DOTALL)
    lines = [shlex.split(line) for line in example.splitlines()]
    consumer = AIOKafkaConsumer(TOPIC, bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        answers = [program.execute_command(*line[1:]) for line in lines if line[0] == "redis-cli"]
        read = await asyncio.wait_for(consumer.getone(), PATIENCE_S)
    finally:
        await consumer.stop()

    entry_id, created, [[stream, [(read_id, fields)]]], pending = answers
    assert (read.topic, read.partition, read.key, read.value) == (TOPIC, 0, b"customer-7", b'{"total": 12}')
    assert (created, stream.decode(), read_id) == (b"OK", key(0), entry_id)
    assert f"{read.offset >> 10}-{read.offset & 1023}".encode() == entry_id
    assert fields == {b"key": b"customer-7", b"value": b'{"total": 12}'}
    assert pending["pending"] == 1


def _kip_848(cluster: Cluster, group: str, client_id: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap, "group.id": group, "client.id": client_id,
            "group.protocol": "consumer", "auto.offset.reset": "earliest", "enable.auto.commit": False,
        }
    )  # fmt: skip


def _owners(program: redis.Redis, group: str) -> list[set[str]]:
    """Of each partition: the members for which entries are pending."""
    rows = [program.xpending_range(key(p), group, "-", "+", 1000) for p in (0, 1)]
    return [{one["consumer"].decode() for one in of} for of in rows]


async def test_members_of_kip_848_are_redis_consumers(cluster: Cluster, program: redis.Redis, topic: None) -> None:
    for i in range(20):
        program.xadd(key(i % 2), {"value": str(i)})

    def consume() -> None:
        first, second = _kip_848(cluster, "next", "first"), _kip_848(cluster, "next", "second")
        try:
            first.subscribe([TOPIC])
            read = [first.poll(PATIENCE_S) for _ in range(20)]
            assert sorted(int(one.value()) for one in read if one) == list(range(20))
            assert [program.xpending(key(p), "next")["pending"] for p in (0, 1)] == [10, 10]
            assert _owners(program, "next") == [{first.memberid()}, {first.memberid()}]

            second.subscribe([TOPIC])
            until_s = time.monotonic() + PATIENCE_S
            found: list[str] = []
            while len(found) < 10 and time.monotonic() < until_s:  # nothing is committed: the new owner reads again
                first.poll(0.05)
                one = second.poll(0.05)
                found += [one.value().decode()] if one else []
            assert len(found) == 10
            [moved] = [one.partition for one in second.assignment()]
            assert _owners(program, "next")[moved] == {second.memberid()}

            second.commit(asynchronous=False)
            assert program.xpending(key(moved), "next")["pending"] == 0
        finally:
            first.close()
            second.close()

    await asyncio.to_thread(consume)


# -- transactions


async def test_aiokafka_transactions(cluster: Cluster, program: redis.Redis, topic: None) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id="aiokafka", linger_ms=2)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    )
    await producer.start()
    await consumer.start()
    try:
        async with producer.transaction():
            sent = await asyncio.gather(
                *[await producer.send(TOPIC, b"committed %d" % i, partition=i % 2) for i in range(50)]
            )
            assert [program.xlen(key(p)) for p in (0, 1)] == [0, 0]
        assert [program.xlen(key(p)) for p in (0, 1)] == [25, 25]
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction():
                await producer.send_and_wait(TOPIC, b"aborted", partition=0)
                raise ZeroDivisionError
        program.xadd(key(0), {"value": "program"})
        async with producer.transaction():
            await producer.send_and_wait(TOPIC, b"last", partition=0)
        consumer.assign([TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)])
        read = [await asyncio.wait_for(consumer.getone(), PATIENCE_S) for _ in range(52)]
    finally:
        await producer.stop()
        await consumer.stop()

    values = [one.value for one in read if one.partition == 0]
    assert values == [b"committed %d" % i for i in range(0, 50, 2)] + [b"program", b"last"]
    assert len(sent) == 50


async def test_librdkafka_transactions(cluster: Cluster, program: redis.Redis, topic: None) -> None:
    reported: list[int | None] = []

    def on_delivery(error: object, message: Message) -> None:
        assert error is None
        reported.append(message.offset())

    def produce() -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "librdkafka", "linger.ms": 2})
        producer.init_transactions(PATIENCE_S)
        for number in range(4):
            producer.begin_transaction()
            for i in range(20):
                producer.produce(TOPIC, f"{number}:{i}", partition=i % 2, on_delivery=on_delivery)
            producer.flush(PATIENCE_S)
            if number % 2:
                producer.abort_transaction(PATIENCE_S)
            else:
                producer.commit_transaction(PATIENCE_S)

    await asyncio.to_thread(produce)

    values = [fields[b"value"].decode() for p in (0, 1) for _, fields in program.xrange(key(p))]
    assert sorted(values) == sorted(f"{number}:{i}" for number in (0, 2) for i in range(20))
    assert len(reported) == 80
