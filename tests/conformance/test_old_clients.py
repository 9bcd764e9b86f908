"""Clients that speak as those of Kafka 0.8 to 0.10 did: aiokafka reads what they write, and they what it writes.

Each asks with the versions of its setting, without ApiVersions, and produces with every codec it has; groups where the
version has groups. kafka-python writes lz4 for 0.8 and 0.9 only with a package that is not installed.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import confluent_kafka
import kafka
import pytest

from bench.clients import go_program
from bench.cluster import Cluster
from bench.jars import PeerUnavailable

RECORDS = 300
PARTITIONS = 3
TOMBSTONE = b"tombstone"
NEW_CODECS = (None, "gzip", "snappy", "lz4", "zstd")
WAIT_S = 60.0

Written = list[tuple[bytes, bytes]]
Consume = Callable[[str, str, str, int], Written]
"""(bootstrap, topic, group, count) -> keys and values; commits them."""


def records_of(label: str) -> Written:
    return [(b"%s-%d" % (label.encode(), n), b"%d:%s" % (n, b"tide" * 20)) for n in range(RECORDS)]


async def create(cluster: Cluster, topic: str, partitions: int = PARTITIONS) -> None:
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topic, partitions, 1)])
    await admin.close()


async def read_by_aiokafka(cluster: Cluster, topic: str, count: int) -> Written:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(topic, bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    found: Written = []
    try:
        async with asyncio.timeout(WAIT_S):
            while len(found) < count:
                message = await consumer.getone()
                assert abs(message.timestamp - time.time() * 1000) < 3_600_000
                found.append((message.key, message.value))
    finally:
        await consumer.stop()
    return found


async def write_by_aiokafka(cluster: Cluster, topic: str) -> Written:
    from aiokafka import AIOKafkaProducer

    written: Written = []
    for codec in NEW_CODECS:
        producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, compression_type=codec, linger_ms=5)
        await producer.start()
        sent = records_of(f"new-{codec}")
        await asyncio.gather(
            *[await producer.send(topic, value, key=key, headers=[("h", b"x")]) for key, value in sent]
        )
        await producer.stop()
        written += sent
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap)
    await producer.start()
    await producer.send_and_wait(topic, None, key=TOMBSTONE)
    await producer.stop()
    return [*written, (TOMBSTONE, b"")]


# -- kafka-python


def kafka_python_writes(version: tuple[int, ...], bootstrap: str, topic: str, codec: str | None, sent: Written) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap, api_version=version, compression_type=codec, linger_ms=5, acks="all"
    )
    futures = [producer.send(topic, key=key, value=value) for key, value in sent]
    for future in futures:
        future.get(timeout=WAIT_S)
    producer.close()


def kafka_python_reads(version: tuple[int, ...], bootstrap: str, topic: str, group: str, count: int) -> Written:
    """Reads in two sittings; the second continues where the first committed."""
    found: Written = []
    for limit in (count // 2, count):
        consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            api_version=version,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            consumer_timeout_ms=WAIT_S * 1000,
        )
        for message in consumer:
            found.append((message.key, message.value or b""))
            if len(found) == limit:
                break
        consumer.commit()
        assert sum(consumer.committed(one) or 0 for one in consumer.assignment()) == limit
        consumer.close()
    return found


KAFKA_PYTHON = {
    (0, 8, 1): (None, "gzip", "snappy"),
    (0, 8, 2): (None, "gzip", "snappy"),
    (0, 9): (None, "gzip", "snappy"),
    (0, 10, 0): (None, "gzip", "snappy", "lz4"),
    (0, 10, 1): (None, "gzip", "snappy", "lz4"),
    (0, 10, 2): (None, "gzip", "snappy", "lz4"),
}


# -- librdkafka


def librdkafka(bootstrap: str, version: str, **settings: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "api.version.request": False,
        "broker.version.fallback": version,
        "log_level": 0,
        **{name.replace("_", "."): value for name, value in settings.items()},
    }


def librdkafka_writes(version: str, bootstrap: str, topic: str, codec: str | None, sent: Written) -> None:
    producer = confluent_kafka.Producer(librdkafka(bootstrap, version, compression_codec=codec or "none", linger_ms=20))
    failed: list[Any] = []
    for key, value in sent:
        producer.produce(topic, key=key, value=value, callback=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(WAIT_S) == 0
    assert failed == []


def librdkafka_reads(version: str, bootstrap: str, topic: str, group: str, count: int) -> Written:
    """Reads in two sittings; in 0.8 the partitions are assigned by hand, since there are no groups yet."""
    found: Written = []
    partitions = [confluent_kafka.TopicPartition(topic, index) for index in range(PARTITIONS)]
    for limit in (count // 2, count):
        consumer = confluent_kafka.Consumer(
            librdkafka(bootstrap, version, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False)
        )
        if version.startswith("0.8"):
            consumer.assign([*map(_stored, partitions)])
        else:
            consumer.subscribe([topic])
        deadline = time.monotonic() + WAIT_S
        while len(found) < limit and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None:
                assert message.error() is None, message.error()
                found.append((message.key() or b"", message.value() or b""))
        consumer.commit(asynchronous=False)
        committed = consumer.committed(partitions, timeout=WAIT_S)
        assert sum(max(one.offset, 0) for one in committed) == limit
        consumer.close()
    return found


def _stored(partition: confluent_kafka.TopicPartition) -> confluent_kafka.TopicPartition:
    return confluent_kafka.TopicPartition(partition.topic, partition.partition, confluent_kafka.OFFSET_STORED)


LIBRDKAFKA = {
    "0.8.2": (None, "gzip", "snappy"),
    "0.9.0": (None, "gzip", "snappy", "lz4"),
    "0.10.0": (None, "gzip", "snappy", "lz4"),
}


@pytest.mark.parametrize(
    ("writes", "reads", "codecs"),
    [
        pytest.param(partial(kafka_python_writes, version), partial(kafka_python_reads, version), codecs,
                     id=f"kafka-python {'.'.join(map(str, version))}")
        for version, codecs in KAFKA_PYTHON.items()
    ]
    + [
        pytest.param(partial(librdkafka_writes, version), partial(librdkafka_reads, version), codecs,
                     id=f"librdkafka {version}")
        for version, codecs in LIBRDKAFKA.items()
    ],
)  # fmt: skip
async def test_old_client_and_aiokafka_read_each_other(
    cluster: Cluster, writes: Callable[..., None], reads: Consume, codecs: Sequence[str | None]
) -> None:
    topic, group = f"old-{uuid.uuid4().hex[:8]}", f"g-{uuid.uuid4().hex[:8]}"
    await create(cluster, topic)
    written: Written = []
    for codec in codecs:
        sent = records_of(f"old-{codec}")
        await asyncio.to_thread(writes, cluster.bootstrap, topic, codec, sent)
        written += sent
    assert sorted(await read_by_aiokafka(cluster, topic, len(written))) == sorted(written)

    written += await write_by_aiokafka(cluster, topic)
    found = await asyncio.to_thread(reads, cluster.bootstrap, topic, group, len(written))
    assert sorted(found) == sorted(written)


# -- sarama


@pytest.fixture(scope="module")
def sarama() -> list[str]:
    """The command of a program that writes, reads and commits as an old client; skipped without Go or its modules."""
    try:
        return go_program("sarama_old")()
    except PeerUnavailable as error:
        pytest.skip(str(error))


@pytest.mark.timeout(600)  # fetching and compiling the modules on a fresh machine
@pytest.mark.parametrize("version", ["0.8.2.0", "0.9.0.0", "0.10.0.0", "0.10.2.0"])
async def test_sarama_and_aiokafka_read_each_other(cluster: Cluster, sarama: list[str], version: str) -> None:
    topic = f"sarama-{uuid.uuid4().hex[:8]}"
    await create(cluster, topic, partitions=1)
    expected: list[bytes] = [value for _, value in await write_by_aiokafka(cluster, topic)]
    for codec in (0, 1, 2):
        command = [*sarama, cluster.bootstrap.split(",")[0], topic, version, str(codec), "100"]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=2 * WAIT_S, check=False)
        assert done.returncode == 0, done.stderr
        expected += [b"sarama-%d-%d" % (codec, n) for n in range(100)]
        lines = [line.split(b" ", 1) for line in done.stdout.splitlines()]
        assert lines.pop() == [b"committed", b"%d" % len(expected)]
        assert [int(offset) for offset, _ in lines] == list(range(len(expected)))
        assert sorted(value for _, value in lines) == sorted(expected)
    found = await read_by_aiokafka(cluster, topic, len(expected))
    assert sorted(value or b"" for _, value in found) == sorted(expected)
