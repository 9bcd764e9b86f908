"""Unmodified clients, each doing a day's work: create a topic, produce with every codec, consume in a group, resume.

Every client produces `RECORDS` records a codec to a topic of three partitions, reads two thirds of them in
a group, commits, leaves, comes back under the same group id and must get exactly the rest.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterable
from typing import Any

import pytest

from bench.cluster import Cluster

RECORDS = 10_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def numbers_of(values: Iterable[bytes]) -> list[int]:
    """The numbers that the records carry."""
    return [int(value.split(b":", 1)[0]) for value in values]


def value_of(number: int) -> bytes:
    """A record's value: its number and some bytes worth compressing."""
    return b"%d:%s" % (number, b"tide" * 10)


def check(first: list[int], second: list[int], count: int) -> None:
    """Both sittings together hold every record once."""
    assert len(first) + len(second) == count
    assert sorted(first + second) == list(range(count))
    assert first and second


# -- aiokafka


async def test_aiokafka_works_and_resumes(cluster: Cluster) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    topic, group = f"aiokafka-{uuid.uuid4().hex[:8]}", f"g-{uuid.uuid4().hex[:8]}"
    admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topic, 3, 1)])
    await admin.close()

    total = 0
    for codec in CODECS:
        producer = AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=codec != "none",
            linger_ms=5,
        )
        await producer.start()
        futures = [
            await producer.send(topic, value_of(total + n), key=str(n).encode(), headers=[("codec", codec.encode())])
            for n in range(RECORDS)
        ]
        await asyncio.gather(*futures)
        await producer.stop()
        total += RECORDS

    async def sitting(limit: int) -> list[int]:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=cluster.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        got: list[bytes] = []
        while len(got) < limit:
            batches = await asyncio.wait_for(consumer.getmany(timeout_ms=1000, max_records=500), 30)
            for records in batches.values():
                got += [record.value for record in records]
            await consumer.commit()
        await consumer.stop()
        return numbers_of(got)

    first = await sitting(total * 2 // 3)
    second = await sitting(total - len(first))
    check(first, second, total)


# -- kafka-python


def test_kafka_python_works_and_resumes(cluster: Cluster) -> None:
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.admin import KafkaAdminClient, NewTopic

    topic, group = f"kafka-python-{uuid.uuid4().hex[:8]}", f"g-{uuid.uuid4().hex[:8]}"
    servers = cluster.bootstrap.split(",")
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics([NewTopic(topic, 3, 1)])
    admin.close()

    total = 0
    for codec in CODECS:
        producer = KafkaProducer(
            bootstrap_servers=servers, compression_type=None if codec == "none" else codec, linger_ms=5
        )
        futures = [producer.send(topic, value_of(total + n)) for n in range(RECORDS)]
        producer.flush(60)
        for future in futures:
            future.get(30)
        producer.close()
        total += RECORDS

    def sitting(limit: int) -> list[int]:
        consumer = KafkaConsumer(
            topic, bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
        )
        got: list[bytes] = []
        deadline = time.monotonic() + 90
        while len(got) < limit and time.monotonic() < deadline:
            for records in consumer.poll(timeout_ms=1000, max_records=500).values():
                got += [record.value for record in records]
            consumer.commit()
        consumer.close()
        return numbers_of(got)

    first = sitting(total * 2 // 3)
    second = sitting(total - len(first))
    check(first, second, total)


# -- confluent-kafka (librdkafka)


def test_confluent_kafka_works_and_resumes(cluster: Cluster) -> None:
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    topic, group = f"confluent-{uuid.uuid4().hex[:8]}", f"g-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for future in admin.create_topics([NewTopic(topic, 3, 1)]).values():
        future.result(30)

    failures: list[Any] = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failures.append(error)

    total = 0
    for codec in CODECS:
        producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "compression.type": codec,
                "enable.idempotence": True,
                "linger.ms": 5,
            }
        )
        for n in range(RECORDS):
            producer.produce(topic, value_of(total + n), on_delivery=delivered)
            producer.poll(0)
        assert producer.flush(60) == 0
        total += RECORDS
    assert failures == []

    def sitting(limit: int) -> list[int]:
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([topic])
        got: list[bytes] = []
        deadline = time.monotonic() + 90
        while len(got) < limit and time.monotonic() < deadline:
            messages = consumer.consume(500, timeout=1.0)
            for message in messages:
                assert message.error() is None, message.error()
                got.append(message.value())
            if messages:
                consumer.commit(asynchronous=False)
        consumer.close()
        return numbers_of(got)

    first = sitting(total * 2 // 3)
    second = sitting(total - len(first))
    check(first, second, total)


# -- kcat


def run_kcat(arguments: list[str], stdin: bytes = b"") -> bytes:
    """One kcat command; its output. Fails with what it said."""
    done = subprocess.run(["kcat", *arguments], input=stdin, capture_output=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed (Debian package kcat)")
def test_kcat_works_and_resumes(cluster: Cluster) -> None:
    topic, group = f"kcat-{uuid.uuid4().hex[:8]}", f"g-{uuid.uuid4().hex[:8]}"
    total = 0
    for codec in CODECS:
        lines = b"".join(value_of(total + n) + b"\n" for n in range(RECORDS))
        run_kcat(["-P", "-b", cluster.bootstrap, "-t", topic, "-z", codec], lines)
        total += RECORDS
    listed = json.loads(run_kcat(["-L", "-J", "-b", cluster.bootstrap, "-t", topic]))
    assert [found["topic"] for found in listed["topics"]] == [topic]

    def sitting(limit: int, *more: str) -> list[int]:
        wanted = [
            "-b",
            cluster.bootstrap,
            "-G",
            group,
            topic,
            "-q",
            "-X",
            "auto.offset.reset=earliest",
            "-c",
            str(limit),
        ]
        return numbers_of(run_kcat([*wanted, *more]).splitlines())

    first = sitting(total * 2 // 3)
    second = sitting(total - len(first))
    check(first, second, total)


# -- several clients in one group


async def test_members_of_different_software_share_a_group(cluster: Cluster) -> None:
    """aiokafka and librdkafka, both with the range assignor, split four partitions between them."""
    from aiokafka import AIOKafkaConsumer
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from confluent_kafka import Consumer
    from confluent_kafka.admin import AdminClient, NewTopic

    topic, group = f"mixed-{uuid.uuid4().hex[:8]}", f"g-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(topic, 4, 1)])[topic].result(30)
    rdkafka = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": group, "partition.assignment.strategy": "range"}
    )
    rdkafka.subscribe([topic])
    python = AIOKafkaConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap,
        group_id=group,
        partition_assignment_strategy=[RangePartitionAssignor],
    )
    # librdkafka joins again only while it is polled, and `start` waits for the join of a member that is there already.
    starting = asyncio.create_task(python.start())
    while not starting.done():
        await asyncio.to_thread(rdkafka.poll, 0.2)
    await starting
    deadline = time.monotonic() + 90
    mine: set[int] = set()
    theirs: set[int] = set()
    while time.monotonic() < deadline and not len(mine) == len(theirs) == 2:
        await asyncio.to_thread(rdkafka.poll, 0.2)
        mine = {tp.partition for tp in python.assignment()}
        theirs = {tp.partition for tp in rdkafka.assignment()}
    await asyncio.to_thread(rdkafka.close)
    await python.stop()

    assert mine | theirs == {0, 1, 2, 3}
    assert not mine & theirs
