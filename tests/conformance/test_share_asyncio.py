"""`tidegate.share.ShareConsumer` against three brokers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from kio.schema.errors import ErrorCode

from bench.cluster import Cluster
from tests.conformance.test_share_consumers import DEADLINE_S, make_topic
from tidegate.share import ShareConsumer, ShareError, ShareRecord


def produce(cluster: Cluster, topic: str, keys: Sequence[str], partitions: int = 1) -> None:
    """A record for each key, its value the number of the record."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": "lz4"})
    for number, key in enumerate(keys):
        producer.produce(topic, str(number), key or None, partition=number % partitions, headers=[("n", str(number))])
    assert producer.flush(DEADLINE_S) == 0


def configure(cluster: Cluster, group: str, **configs: str) -> None:
    """Set configs of a group; underscores for dots."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    values = {"share.auto.offset.reset": "earliest"} | {name.replace("_", "."): one for name, one in configs.items()}
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in values.items()]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    for changed in admin.incremental_alter_configs([resource]).values():
        changed.result(DEADLINE_S)


def consumer_of(cluster: Cluster, group: str, topic: str, **options: Any) -> ShareConsumer:
    return ShareConsumer(cluster.bootstrap, group=group, topics=[topic], **options)


async def poll(consumer: ShareConsumer, count: int) -> list[ShareRecord]:
    """So many records."""
    found: list[ShareRecord] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < count:
            found += await consumer.poll(0.5)
    return found


async def test_records_of_all_partitions_are_read_once(cluster: Cluster) -> None:
    topic, group = make_topic(cluster, 3), f"s-{uuid.uuid4().hex[:8]}"
    configure(cluster, group)
    produce(cluster, topic, ["k"] * 60, 3)
    read: list[int] = []
    async with asyncio.timeout(DEADLINE_S), consumer_of(cluster, group, topic) as consumer:
        assert consumer.assignment == [(topic, 0), (topic, 1), (topic, 2)]
        async for record in consumer:
            number = int(record.value or b"")
            assert (record.key, record.delivery_count) == (b"k", 1)
            assert record.headers == (("n", str(number).encode()),)
            read.append(number)
            if len(read) == 60:
                consumer.accept(record)
                break
        assert await consumer.commit() == []
    assert sorted(read) == list(range(60))

    async with consumer_of(cluster, group, topic) as consumer:
        assert await consumer.poll(0.5) == []


async def test_acknowledgements_of_each_kind(cluster: Cluster) -> None:
    topic, group = make_topic(cluster, 1), f"s-{uuid.uuid4().hex[:8]}"
    configure(cluster, group)
    produce(cluster, topic, [""] * 4)
    async with consumer_of(cluster, group, topic) as consumer:
        first, second, third, fourth = await poll(consumer, 4)
        consumer.accept(first)
        consumer.release(second)
        consumer.reject(third)
        assert await consumer.renew(fourth) == []
        assert await consumer.commit() == []

        (again,) = await poll(consumer, 1)
        assert (again.offset, again.delivery_count) == (1, 2)
        consumer.accept(again, first)  # what is acknowledged already has no effect
        assert await consumer.commit() == []

    async with consumer_of(cluster, group, topic) as other:  # the fourth was released when its consumer closed
        (left,) = await poll(other, 1)
        assert (left.offset, left.delivery_count) == (3, 2)


async def test_one_record_of_a_key_at_a_time(cluster: Cluster) -> None:
    topic, group = make_topic(cluster, 1), f"s-{uuid.uuid4().hex[:8]}"
    configure(cluster, group, share_ordering="key")
    produce(cluster, topic, list("aabab"))
    async with consumer_of(cluster, group, topic) as one, consumer_of(cluster, group, topic) as other:
        first = await poll(one, 2)
        assert [record.offset for record in first] == [0, 2]
        assert await other.poll(0.3) == []

        one.accept(first[0])
        assert await one.commit() == []

        (second,) = await poll(other, 1)
        assert (second.offset, second.key) == (1, b"a")


async def test_another_type_of_group_is_refused(cluster: Cluster) -> None:
    topic, group = make_topic(cluster, 1), f"s-{uuid.uuid4().hex[:8]}"
    with pytest.raises(ShareError) as refused:
        async with consumer_of(cluster, " ", topic):
            pass
    assert refused.value.code is ErrorCode.invalid_request
    with pytest.raises(ShareError):
        async with ShareConsumer("127.0.0.1:1", group=group, topics=[topic], timeout_s=0.1):
            pass
