"""A compacted topic with a real client (aiokafka): a new reader has exactly the last values, and no old tombstones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from bench.cluster import Cluster
from tests.support.logs import TOPIC as FAKE
from tests.support.logs import broker
from tidegate.log.compaction import compact
from tidegate.settings import Settings
from tidegate.topics.model import Record

TOPIC = "latest"
RECORDS, KEYS = 20_000, 500


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2) as opened:
        yield opened


async def read_from_start(cluster: Cluster, end: int) -> tuple[dict[bytes, bytes | None], int]:
    """What a new consumer reads: the last value of each key, and how many records."""
    consumer = AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    partition = TopicPartition(TOPIC, 0)
    consumer.assign([partition])
    values: dict[bytes, bytes | None] = {}
    count = 0
    try:
        async with asyncio.timeout(120):
            while await consumer.position(partition) < end:
                for record in (await consumer.getmany(timeout_ms=500)).get(partition, []):
                    values[record.key] = record.value
                    count += 1
    finally:
        await consumer.stop()
    return values, count


async def test_compaction_leaves_a_new_consumer_the_last_values(cluster: Cluster) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(TOPIC, 1, 1)])
    await admin.close()
    expected: dict[bytes, bytes | None] = {}
    producer = AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap, enable_idempotence=True, compression_type="gzip", linger_ms=5
    )
    await producer.start()
    for number in range(RECORDS):
        key, value = (
            b"key-%d" % (number * 7 % KEYS),
            None if number % 7 == 3 and number > RECORDS - KEYS else b"%d" % number,
        )
        await producer.send(TOPIC, value, key, 0)
        expected[key] = value
    await producer.flush()
    await producer.send_and_wait(TOPIC, b"without a key", None, 0)  # its batch stays, without records
    await producer.send_and_wait(TOPIC, b"1", b"end", 0)

    settings = Settings(redis_url=f"redis://127.0.0.1:{cluster.redis_port}/0")
    async with broker(settings) as logs:
        fields: dict[bytes, bytes] = await logs.store.command("HGETALL", logs.store.cluster_keys.topics)
        topic_hex = Record.parse(fields[b"default/" + TOPIC.encode()]).topic_id.hex

        def topic(**configs: Any) -> Any:
            config = replace(
                FAKE.config, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0, **configs
            )
            return replace(FAKE, name=TOPIC, topic_hex=topic_hex, config=config)

        log = logs.partition(topic(delete_retention_ms=0), 0)
        done = await compact(log, (await log.refresh()).end)
        assert done is not None
        assert done.bytes_after < done.bytes_before / 5

        values, count = await read_from_start(cluster, RECORDS + 2)
        assert values == expected | {b"end": b"1"}
        assert count < KEYS * 2

        for number in range(3):
            await producer.send_and_wait(TOPIC, b"%d" % number, b"end", 0)  # sequences continue
        assert await compact(log, (await log.refresh()).end) is not None
        values, _ = await read_from_start(cluster, RECORDS + 5)
        kept = {key: value for key, value in expected.items() if value is not None}
        assert None in expected.values()
        assert values == kept | {b"end": b"2"}
    await producer.stop()
