"""Real clients with `group.protocol=consumer` (KIP-848) against three brokers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupType, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from bench.cluster import Cluster
from tests.support.librdkafka_topics import DEADLINE_S, make_topic, produce


@contextmanager
def consumer(cluster: Cluster, group: str, topic: str, **config: Any) -> Iterator[Consumer]:
    """A subscribed librdkafka consumer of the new protocol."""
    opened = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **config,
        }
    )
    with closing(opened):
        opened.subscribe([topic])
        yield opened


def poll_until(done: Any, *consumers: Consumer) -> list[int]:
    """Poll the consumers in turn until `done(values)`; the values read."""
    values: list[int] = []
    deadline = time.monotonic() + DEADLINE_S
    while not done(values):
        assert time.monotonic() < deadline, f"{len(values)} values, {[one.assignment() for one in consumers]}"
        for one in consumers:
            message = one.poll(0.05)
            if message is None:
                continue
            if message.error():
                raise KafkaException(message.error())
            values.append(int(message.value()))
    return values


def sizes(*consumers: Consumer) -> list[int]:
    """How many partitions each consumer has."""
    return [len(one.assignment()) for one in consumers]


def test_librdkafka_consumes_shares_and_resumes(cluster: Cluster) -> None:
    topic, group = make_topic(cluster, 4), f"g-{uuid.uuid4().hex[:8]}"
    produce(cluster, topic, range(40), 4)

    with consumer(cluster, group, topic) as first:
        values = poll_until(lambda values: len(values) >= 40, first)
        assert sorted(values) == list(range(40))
        first.commit(asynchronous=False)
        with consumer(cluster, group, topic) as second:
            poll_until(lambda _: sizes(first, second) == [2, 2], first, second)
            produce(cluster, topic, range(40, 80), 4)
            values = poll_until(lambda values: len(values) >= 40, first, second)
            assert sorted(values) == list(range(40, 80))
            first.commit(asynchronous=False)
            second.commit(asynchronous=False)
        poll_until(lambda _: sizes(first) == [4], first)

    produce(cluster, topic, range(80, 84), 4)
    with consumer(cluster, group, topic) as third:
        assert sorted(poll_until(lambda values: len(values) >= 4, third)) == list(range(80, 84))


def test_librdkafka_describes_and_lists_the_group(cluster: Cluster) -> None:
    topic, group = make_topic(cluster, 3), f"g-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

    with consumer(cluster, group, topic, **{"client.id": "reader", "group.remote.assignor": "range"}) as one:
        poll_until(lambda _: sizes(one) == [3], one)
        described = admin.describe_consumer_groups([group])[group].result(DEADLINE_S)
        assert described.state == ConsumerGroupState.STABLE
        assert described.type == ConsumerGroupType.CONSUMER
        assert described.partition_assignor == "range"
        (member,) = described.members
        assert member.client_id == "reader"
        assert {partition.partition for partition in member.assignment.topic_partitions} == {0, 1, 2}
        listed = admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(DEADLINE_S)
        assert group in {found.group_id for found in listed.valid}

    for deleted in admin.delete_consumer_groups([group]).values():
        deleted.result(DEADLINE_S)


def test_librdkafka_static_member_returns_to_its_partitions(cluster: Cluster) -> None:
    topic, group = make_topic(cluster, 4), f"g-{uuid.uuid4().hex[:8]}"
    with consumer(cluster, group, topic, **{"group.instance.id": "i1"}) as first:
        with consumer(cluster, group, topic, **{"group.instance.id": "i2"}) as second:
            poll_until(lambda _: sizes(first, second) == [2, 2], first, second)
            had = {partition.partition for partition in second.assignment()}
        with consumer(cluster, group, topic, **{"group.instance.id": "i2"}) as third:
            poll_until(lambda _: sizes(first, third) == [2, 2], first, third)
            assert {partition.partition for partition in third.assignment()} == had


def set_rollout_grace(cluster: Cluster, group: str, grace_ms: int) -> None:
    entry = ConfigEntry("tidegate.rollout.grace.ms", str(grace_ms), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    changed = admin.incremental_alter_configs([resource])
    changed[resource].result(DEADLINE_S)


def test_librdkafka_deploys_without_a_rebalance(cluster: Cluster) -> None:
    topic, group = make_topic(cluster, 4), f"g-{uuid.uuid4().hex[:8]}"
    set_rollout_grace(cluster, group, 120_000)
    web = {"client.id": "web"}

    with consumer(cluster, group, topic, **web) as staying:
        with consumer(cluster, group, topic, **web) as leaving:
            poll_until(lambda _: sizes(staying, leaving) == [2, 2], staying, leaving)
            had, kept = leaving.assignment(), staying.assignment()
        until = time.monotonic() + 2.0  # several heartbeats, after which others would have the partitions
        poll_until(lambda _: time.monotonic() > until, staying)
        assert staying.assignment() == kept
        with consumer(cluster, group, topic, **web) as successor:
            poll_until(lambda _: sizes(successor) == [2], staying, successor)
            assert (successor.assignment(), staying.assignment()) == (had, kept)
