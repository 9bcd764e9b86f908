"""A topic of format record over three brokers: three client libraries in groups, two Redis programs beside them, kills.

Every record reaches each group once; XPENDING is what was delivered and not committed, also after brokers were killed;
the position that XINFO GROUPS shows is the committed offset once a group is idle.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import redis
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError as KafkaErrorOfAiokafka
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer
from kafka.errors import KafkaError as KafkaErrorOfPython

from bench.cluster import Cluster
from bench.jars import PeerUnavailable, classpath
from tests.support.broker_logs import tracebacks

TOPIC = "shared"
PARTITIONS = 3
BY_PROGRAM, BY_KAFKA = 10_000, 1_500
pytestmark = [  # kafka-python's threads end with their sockets to killed brokers open, now or in the next test
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PATIENCE_S = 120.0


def key(partition: int, topic: str = TOPIC) -> str:
    return f"tidegate:{{default/{topic}:{partition}}}:records"


def create(cluster: Cluster, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    made = admin.create_topics([NewTopic(topic, partitions, 1, config={"tidegate.format": "record"})])
    made[topic].result(PATIENCE_S)


def pending(program: redis.Redis, group: str, topic: str = TOPIC, partitions: int = PARTITIONS) -> int:
    return sum(int(program.xpending(key(p, topic), group)["pending"]) for p in range(partitions))


def position(program: redis.Redis, group: str, partition: int, topic: str = TOPIC) -> int:
    """The offset that the Redis group reads next."""
    for one in program.xinfo_groups(key(partition, topic)):
        if one["name"].decode() == group:
            ms, _, sequence = one["last-delivered-id"].decode().partition("-")
            return (int(ms) << 10 | min(int(sequence), 1023)) + 1
    raise AssertionError(f"{group} is not there")


class Librdkafka:
    """A consumer of a group, by librdkafka."""

    def __init__(self, cluster: Cluster, group: str = "librdkafka", protocol: str = "classic") -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap, "group.id": group, "client.id": group,
                "group.protocol": protocol, "auto.offset.reset": "earliest", "enable.auto.commit": False,
            }
        )  # fmt: skip

    async def start(self) -> None:
        self._consumer.subscribe([TOPIC])

    async def poll(self) -> list[bytes]:
        messages = await asyncio.to_thread(self._consumer.consume, 500, 0.5)
        return [message.value() for message in messages if message.error() is None]

    async def commit(self) -> None:
        await asyncio.to_thread(self._consumer.commit, asynchronous=False)

    async def stop(self) -> None:
        await asyncio.to_thread(self._consumer.close)


class KafkaPython:
    """The same by kafka-python."""

    def __init__(self, cluster: Cluster) -> None:
        self._consumer = KafkaConsumer(
            TOPIC, bootstrap_servers=cluster.bootstrap, group_id="kafka-python", client_id="kafka-python",
            auto_offset_reset="earliest", enable_auto_commit=False,
        )  # fmt: skip

    async def start(self) -> None:
        pass

    async def poll(self) -> list[bytes]:
        try:
            polled = await asyncio.to_thread(self._consumer.poll, 500)
        except KafkaErrorOfPython as error:  # it raises what others repeat by themselves
            if not error.retriable:
                raise
            return []
        return [record.value for records in polled.values() for record in records]

    async def commit(self) -> None:
        await asyncio.to_thread(self._consumer.commit)

    async def stop(self) -> None:
        with suppress(KafkaErrorOfPython):  # its coordinator was killed; what was read is committed
            await asyncio.to_thread(self._consumer.close)


class Aiokafka:
    """The same by aiokafka."""

    def __init__(self, cluster: Cluster) -> None:
        self._consumer = AIOKafkaConsumer(
            TOPIC, bootstrap_servers=cluster.bootstrap, group_id="aiokafka", client_id="aiokafka",
            auto_offset_reset="earliest", enable_auto_commit=False,
        )  # fmt: skip

    async def start(self) -> None:
        await self._consumer.start()

    async def poll(self) -> list[bytes]:
        polled = await self._consumer.getmany(timeout_ms=500)
        return [record.value for records in polled.values() for record in records]

    async def commit(self) -> None:
        await self._consumer.commit()

    async def stop(self) -> None:
        with suppress(asyncio.CancelledError):  # of its own fetch to a killed broker, which it lets out
            await self._consumer.stop()


class Kip848(Librdkafka):
    """The same as a member of a KIP-848 group."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, "kip-848", "consumer")


GROUPS = {"librdkafka": Librdkafka, "kip-848": Kip848, "kafka-python": KafkaPython, "aiokafka": Aiokafka}


@pytest.fixture(autouse=True)
def sockets_collected() -> Iterator[None]:
    """What a client left open to a killed broker is collected here, not in the next test."""
    yield
    gc.collect()


async def read_in_three_runs(cluster: Cluster, group: str, count: int) -> list[bytes]:
    """Read `count` records by three consumers of a group, one after the other, each of which commits before it stops.

    At every stop XPENDING shows what was delivered and not committed.
    """
    found: list[bytes] = []
    for goal in (count // 4, count // 2, count):
        consumer = GROUPS[group](cluster)
        await consumer.start()
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < goal:
                found += await consumer.poll()
            await committed(consumer)
        await consumer.stop()
        await asyncio.to_thread(check_pending, cluster, group)
    return found


async def committed(consumer: Librdkafka | KafkaPython | Aiokafka) -> None:
    """Commit what was read, again while a broker is being killed."""
    while True:
        try:
            return await consumer.commit()
        except (KafkaException, KafkaErrorOfPython, KafkaErrorOfAiokafka):
            await asyncio.sleep(0.2)


def check_pending(cluster: Cluster, group: str) -> None:
    """Whether XPENDING has every entry between the committed offset and the last one delivered, and none below.

    It may have more above: a fetch whose answer died with its broker was delivered, and the next one went back to the
    client's position (XGROUP SETID).
    """
    with redis.Redis(port=cluster.redis_port) as program:
        [offsets] = program.scan_iter(f"tidegate:*:group:default:{group}:offsets")
        for partition in range(PARTITIONS):
            with program.pipeline(transaction=True) as together:
                together.xpending_range(key(partition), group, "-", "+", BY_PROGRAM + BY_KAFKA)
                together.xinfo_groups(key(partition))
                together.hget(offsets, f"{TOPIC}:{partition}")
                shown, groups, stored = together.execute(raise_on_error=False)
            if group.encode() not in [one["name"] for one in groups]:
                assert stored is None, f"{group}, partition {partition}"  # nothing was read there yet
                continue
            pending = [one["message_id"] for one in shown]
            offset = json.loads(stored)["offset"] if stored else 0
            first = f"{offset >> 10}-{offset & 1023}"
            [delivered] = [one["last-delivered-id"] for one in groups if one["name"] == group.encode()]
            between = [entry for entry, _ in program.xrange(key(partition), first, delivered)]
            assert pending[: len(between)] == between, f"{group}, partition {partition}"


def read_program(cluster: Cluster, count: int) -> list[bytes]:
    """A Redis program in a group of its own."""
    program = redis.Redis(port=cluster.redis_port)
    streams = {key(p): ">" for p in range(PARTITIONS)}
    for name in streams:
        program.xgroup_create(name, "program", "0", mkstream=True)
    found: list[bytes] = []
    until_s = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < until_s:
        for name, entries in program.xreadgroup("program", "one", streams, count=500, block=500) or ():
            for entry, fields in entries:
                found.append(fields[b"value"])
                program.xack(name, "program", entry)
    program.close()
    return found


def write_program(cluster: Cluster) -> None:
    program = redis.Redis(port=cluster.redis_port)
    for i in range(BY_PROGRAM):
        program.xadd(key(i % PARTITIONS), {"value": f"program-{i}"})
    program.close()


async def write_kafka(cluster: Cluster) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap, enable_idempotence=True, compression_type="gzip", linger_ms=5
    )
    await producer.start()
    sent = []
    for i in range(BY_KAFKA):
        sent.append(await producer.send(TOPIC, b"kafka-%d" % i, partition=i % PARTITIONS))
        if i % 50 == 0:
            await asyncio.sleep(0.2)
    await asyncio.gather(*sent)
    await producer.stop()


def kill_one_by_one(cluster: Cluster, rng: random.Random, over: threading.Event) -> None:
    while not over.wait(1.0):
        broker = rng.choice(cluster.brokers)
        broker.kill()
        time.sleep(0.5)
        broker.start()
        broker.wait_ready()


async def test_record_topic_shared_by_three_libraries_and_two_redis_programs_over_killed_brokers(
    rng: random.Random,
) -> None:
    count = BY_PROGRAM + BY_KAFKA
    with Cluster(3) as cluster, redis.Redis(port=cluster.redis_port) as program:
        create(cluster, TOPIC, PARTITIONS)

        over = threading.Event()
        killing = threading.Thread(target=kill_one_by_one, args=(cluster, rng, over))
        reading = [
            *(read_in_three_runs(cluster, group, count) for group in GROUPS),
            asyncio.to_thread(read_program, cluster, count),
        ]
        read = [asyncio.ensure_future(one) for one in reading]
        await asyncio.sleep(3)
        killing.start()
        try:
            await asyncio.gather(asyncio.to_thread(write_program, cluster), write_kafka(cluster))
        finally:
            over.set()
            await asyncio.to_thread(killing.join)
        found = await asyncio.gather(*read)

        expected = Counter(f"program-{i}".encode() for i in range(BY_PROGRAM))
        expected.update(b"kafka-%d" % i for i in range(BY_KAFKA))
        for values in found:
            assert Counter(values) == expected
        for group in GROUPS:
            assert pending(program, group) == 0
            for partition in range(PARTITIONS):
                last = program.xrevrange(key(partition), count=1)[0][0].decode()
                ms, _, sequence = last.partition("-")
                assert position(program, group, partition) == (int(ms) << 10 | int(sequence)) + 1
        assert not tracebacks(cluster)


@pytest.mark.slow
async def test_record_topic_read_by_java_over_killed_brokers(rng: random.Random) -> None:
    try:
        jars = await asyncio.to_thread(classpath)
    except PeerUnavailable as error:
        pytest.skip(str(error))
    with Cluster(3) as cluster, redis.Redis(port=cluster.redis_port) as program:
        create(cluster, TOPIC, PARTITIONS)
        over = threading.Event()
        killing = threading.Thread(target=kill_one_by_one, args=(cluster, rng, over))
        command = [
            "java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", jars, "org.apache.kafka.tools.consumer.ConsoleConsumer",
            "--bootstrap-server", cluster.bootstrap, "--topic", TOPIC, "--group", "java", "--from-beginning",
            "--max-messages", str(BY_PROGRAM), "--timeout-ms", "60000",
        ]  # fmt: skip
        reading = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        killing.start()
        try:
            await asyncio.to_thread(write_program, cluster)
            output, errors = await asyncio.wait_for(reading.communicate(), PATIENCE_S)
        finally:
            over.set()
            await asyncio.to_thread(killing.join)

        assert reading.returncode == 0, errors.decode()[-2000:]
        assert Counter(output.split()) == Counter(f"program-{i}".encode() for i in range(BY_PROGRAM))
        assert pending(program, "java") == 0
        assert not tracebacks(cluster)


@pytest.mark.slow
async def test_java_copies_a_record_topic_in_transactions() -> None:
    """Consume, transform, produce, with aborts: every record once, and the commits of transactions acknowledge."""
    try:
        jars = await asyncio.to_thread(classpath)
    except PeerUnavailable as error:
        pytest.skip(str(error))
    with Cluster(2) as cluster, redis.Redis(port=cluster.redis_port) as program:
        create(cluster, "in", 1)
        create(cluster, "out", 1)
        for i in range(1_000):
            program.xadd(key(0, "in"), {"key": f"k{i}", "value": f"v{i}"})
        copying = await asyncio.create_subprocess_exec(
            "java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", jars, "org.apache.kafka.tools.TransactionalMessageCopier",
            "--broker-list", cluster.bootstrap, "--input-topic", "in", "--input-partition", "0",
            "--output-topic", "out", "--consumer-group", "copier", "--transactional-id", "copier",
            "--transaction-size", "100", "--max-messages", "1000", "--enable-random-aborts",
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        _, errors = await asyncio.wait_for(copying.communicate(), PATIENCE_S)

        assert copying.returncode == 0, errors.decode()[-2000:]
        values = [fields[b"value"].decode() for _, fields in program.xrange(key(0, "out"))]
        assert values == [f"v{i}" for i in range(1_000)]
        assert pending(program, "copier", "in", 1) == 0
        assert not tracebacks(cluster)


# -- the workflow of a consumer group, step by step


@contextmanager
def commands_observed(port: int) -> Iterator[list[str]]:
    """The commands that Redis runs meanwhile, those of scripts too: MONITOR."""
    observed: list[str] = []
    client = redis.Redis(port=port)
    over = threading.Event()
    with client.monitor() as monitor:

        def listen() -> None:
            for command in monitor.listen():
                observed.append(command["command"])
                if command["command"].startswith("ECHO over"):
                    return

        listening = threading.Thread(target=listen)
        listening.start()
        try:
            yield observed
        finally:
            over.set()
            redis.Redis(port=port).echo("over")
            listening.join()


def position_in(observed: list[str], start: str, after: int = 0) -> int:
    return next(i for i, one in enumerate(observed) if i >= after and one.startswith(start))


async def test_workflow_of_a_consumer_group_in_redis_commands() -> None:
    """Steps 1-10: versions, metadata, coordinator, join, sync, offsets, XGROUP CREATE, XREADGROUP, XACK, leave."""
    with Cluster(1) as cluster, redis.Redis(port=cluster.redis_port) as program:
        create(cluster, "flow", 1)
        name = key(0, "flow")
        for i in range(10):
            program.xadd(name, {"key": f"k{i}", "value": f"v{i}"})
        entries = [entry.decode() for entry, _ in program.xrange(name)]

        with commands_observed(cluster.redis_port) as observed:
            consumer = AIOKafkaConsumer(
                "flow", bootstrap_servers=cluster.bootstrap, group_id="my-consumer-group", client_id="consumer-1",
                auto_offset_reset="earliest", enable_auto_commit=False,
            )  # fmt: skip
            await consumer.start()
            first = [await asyncio.wait_for(consumer.getone(), PATIENCE_S) for _ in range(10)]
            shown = program.xpending_range(name, "my-consumer-group", "-", "+", 100)
            await consumer.commit()
            committed = await consumer.committed(next(iter(consumer.assignment())))
            idle = position(program, "my-consumer-group", 0, "flow")
            consumer.seek(next(iter(consumer.assignment())), first[5].offset)
            again = await asyncio.wait_for(consumer.getone(), PATIENCE_S)
            await consumer.stop()
        resumed = AIOKafkaConsumer(
            "flow", bootstrap_servers=cluster.bootstrap, group_id="my-consumer-group", client_id="consumer-2",
            auto_offset_reset="earliest", enable_auto_commit=False,
        )  # fmt: skip
        await resumed.start()
        program.xadd(name, {"value": "next"})
        following = await asyncio.wait_for(resumed.getone(), PATIENCE_S)
        await resumed.stop()

    assert [one.value for one in first] == [b"v%d" % i for i in range(10)]
    assert [one["message_id"].decode() for one in shown] == entries
    assert {one["consumer"].decode().rsplit("-", 5)[0] for one in shown} == {"consumer-1"}
    assert committed == idle == first[-1].offset + 1
    assert again.offset == first[5].offset
    assert following.value == b"next"
    created = position_in(observed, f"XGROUP CREATE {name} my-consumer-group")
    read = position_in(observed, "XREADGROUP GROUP my-consumer-group consumer-1", created)
    acknowledged = position_in(observed, f"XACK {name} my-consumer-group {entries[0]}", read)
    moved = position_in(observed, f"XGROUP SETID {name} my-consumer-group", acknowledged)
    position_in(observed, "XREADGROUP GROUP my-consumer-group consumer-1", moved)
    assert not [one for one in observed if one.startswith("XCLAIM")]


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    """kafka-python logs each lost connection."""
    import logging

    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    return None
