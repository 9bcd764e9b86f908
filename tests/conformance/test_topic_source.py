"""The source of topics reads what real clients produced through brokers, while they continue producing."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from bench.cluster import Cluster
from tests.support.topic_reads import access_to, rows_of
from tidegate_pipeline.sources import starting
from tidegate_pipeline.sources.stream_plan import StreamPlan

PARTITIONS = 3
ROUNDS = 5
RECORDS = 400
CODECS = (None, "gzip", "snappy", "lz4", "zstd")

Record = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]], int]
"""Partition, offset, key, value, headers, timestamp in ms."""


async def test_records_of_aiokafka_by_micro_batches_while_it_produces(cluster: Cluster) -> None:
    topic = f"read-{uuid.uuid4().hex[:8]}"
    first = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap)
    await first.start()
    await create(first, cluster, topic)
    access = access_to(cluster.redis_url, subscribe=topic, includeHeaders="true")
    offsets = starting.initial_offsets(access, "latest")
    plan, read, sizes = StreamPlan(access), list[Record](), list[int]()

    def micro_batch() -> int:
        nonlocal offsets
        later = plan.next_offsets(offsets, 150, by_records=True)
        rows = rows_of(access, plan.ranges(offsets, later))
        read.extend(map(as_record, rows))
        offsets = later
        return len(rows)

    sent = list[Record]()
    for codec in CODECS:
        producing = asyncio.create_task(produce(cluster, topic, codec))
        while not producing.done():
            sizes.append(await asyncio.to_thread(micro_batch))
        sent += await producing
    while size := await asyncio.to_thread(micro_batch):
        sizes.append(size)
    await first.stop()

    assert sorted(read) == sorted(sent)
    assert len(read) == len(CODECS) * RECORDS
    assert len([size for size in sizes if size]) > 3, "in several micro-batches"
    for partition in range(PARTITIONS):
        of_partition = [record[1] for record in read if record[0] == partition]
        assert of_partition == list(range(len(of_partition))), "in order, without a hole"
    consumed = await consume(cluster, topic, len(sent))
    assert sorted(read) == sorted(consumed), "as a consumer gets it"


async def create(producer: AIOKafkaProducer, cluster: Cluster, topic: str) -> None:
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    await admin.start()
    kept = {"retention.ms": "-1"}  # the records are dated 2023
    await admin.create_topics([NewTopic(topic, PARTITIONS, 1, topic_configs=kept)])
    await admin.close()
    await producer.client.force_metadata_update()


async def produce(cluster: Cluster, topic: str, codec: str | None) -> list[Record]:
    """Records of all kinds; returns them as they were acknowledged."""
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, compression_type=codec, linger_ms=5)
    await producer.start()
    sent = list[Record]()
    for number in range(0, RECORDS, RECORDS // ROUNDS):
        batch = []
        for i in range(number, number + RECORDS // ROUNDS):
            key = None if i % 7 == 0 else b"key %d" % i
            value = None if key and i % 11 == 0 else bytes(i) + b"value"
            headers: list[tuple[str, bytes | None]] = [("h", b"%d" % i), ("none", None)] if i % 3 == 0 else []
            time_ms = 1_700_000_000_000 + i
            asked = producer.send(topic, value, key, i % PARTITIONS, time_ms, headers)
            batch.append((await asked, key, value, headers, time_ms))
        for acknowledged, key, value, headers, time_ms in batch:
            reported = await acknowledged
            sent.append((reported.partition, reported.offset, key, value, headers, time_ms))
    await producer.stop()
    return sent


async def consume(cluster: Cluster, topic: str, count: int) -> list[Record]:
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    got = list[Record]()
    while len(got) < count:
        for records in (await consumer.getmany(timeout_ms=1_000)).values():
            got += [(r.partition, r.offset, r.key, r.value, list(r.headers), r.timestamp) for r in records]
    await consumer.stop()
    return got


def as_record(row: dict[str, Any]) -> Record:
    headers = [(header["key"], header["value"]) for header in row["headers"] or []]
    elapsed = row["timestamp"] - datetime(1970, 1, 1, tzinfo=UTC)
    time_ms = round(elapsed.total_seconds() * 1000)
    return row["partition"], row["offset"], row["key"], row["value"], headers, time_ms
