"""Topics and their records by librdkafka, for tests of its consumers."""

from __future__ import annotations

import uuid
from typing import Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.cluster import Cluster

DEADLINE_S: Final = 60.0


def make_topic(cluster: Cluster, partitions: int) -> str:
    """A topic of its own."""
    name = f"topic-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for made in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        made.result(DEADLINE_S)
    return name


def produce(cluster: Cluster, topic: str, values: range, partitions: int) -> None:
    """One record for each value, over all partitions in turn."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for value in values:
        producer.produce(topic, str(value), partition=value % partitions)
    assert producer.flush(DEADLINE_S) == 0
