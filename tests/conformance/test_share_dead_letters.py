"""Dead-letter topics of share groups with real clients, and with brokers killed while letters are under way."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.cluster import Cluster
from tests.conformance.test_share_asyncio import configure, consumer_of, poll, produce
from tests.conformance.test_share_consumers import DEADLINE_S, make_topic

Letter = tuple[dict[str, str], bytes | None, bytes | None]
"""Headers, key and value."""


@pytest.fixture
def pair() -> Iterator[Cluster]:
    """Two brokers that a test may kill."""
    settings = {"TIDEGATE_GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS": "300"}
    with Cluster(brokers=2, settings=settings) as running:
        yield running


def make_target(cluster: Cluster, partitions: int = 1) -> str:
    """A topic that takes dead letters."""
    name = f"dlq.{uuid.uuid4().hex[:8]}"
    config = {"errors.deadletterqueue.group.enable": "true"}
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    made = admin.create_topics([NewTopic(name, partitions, config=config)])
    made[name].result(DEADLINE_S)
    return name


def with_target(cluster: Cluster, group: str, target: str, **configs: str) -> None:
    values = {"errors.deadletterqueue.topic.name": target} | configs
    configure(cluster, group, **{name.replace(".", "_"): value for name, value in values.items()})


def read(cluster: Cluster, target: str, count: int) -> list[Letter]:
    """At least so many letters, and what follows at once."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([target])
    found: list[Letter] = []
    try:
        for _ in range(int(DEADLINE_S)):
            for message in consumer.consume(1_000, 1.0):
                headers = {name.removeprefix("__dlq.errors."): value.decode() for name, value in message.headers()}
                found.append((headers, message.key(), message.value()))
            if len(found) >= count:
                return found
        raise AssertionError(f"{len(found)} of {count} letters: {json.dumps([one[0] for one in found])}")
    finally:
        consumer.close()


async def test_rejected_record_reaches_the_target(cluster: Cluster) -> None:
    topic, target, group = make_topic(cluster, 1), make_target(cluster), f"s-{uuid.uuid4().hex[:8]}"
    with_target(cluster, group, target, **{"errors.deadletterqueue.copy.record.enable": "true"})
    produce(cluster, topic, ["a", "", "c"])
    async with consumer_of(cluster, group, topic) as consumer:
        first, second, third = await poll(consumer, 3)
        consumer.reject(first)
        consumer.accept(second)
        consumer.reject(third)
        assert await consumer.commit() == []

    letters = await asyncio.to_thread(read, cluster, target, 2)

    about = {"topic": topic, "partition": "0", "group": group, "delivery.count": "1"}
    about["message"] = "Offset rejected by client."
    assert letters == [(about | {"offset": "0"}, b"a", b"0"), (about | {"offset": "2"}, b"c", b"2")]


async def test_no_letter_is_lost_with_a_killed_broker(pair: Cluster) -> None:
    topic, target, group = make_topic(pair, 2), make_target(pair, 2), f"s-{uuid.uuid4().hex[:8]}"
    with_target(pair, group, target)
    for broker in pair.brokers:
        produce(pair, topic, ["k"] * 100, 2)
        rejected = 0
        async with consumer_of(pair, group, topic) as consumer, asyncio.timeout(DEADLINE_S):
            while rejected < 100:
                for record in await consumer.poll(0.5):
                    consumer.reject(record)
                    rejected += 1
                assert await consumer.commit() == []
        broker.kill()  # its letters are queued, under way, or written
        broker.start()
        await asyncio.to_thread(broker.wait_ready)

    letters = await asyncio.to_thread(read, pair, target, 200)

    places = [(headers["partition"], headers["offset"]) for headers, _, _ in letters]
    assert set(places) == {(str(partition), str(offset)) for partition in (0, 1) for offset in range(100)}
