"""librdkafka's share consumer (KIP-932) against three brokers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from confluent_kafka import AcknowledgeType, Message, ShareConsumer

from bench.cluster import Cluster
from tests.support.librdkafka_topics import DEADLINE_S, make_topic, produce


@contextmanager
def share_consumers(cluster: Cluster, topic: str, count: int, **config: Any) -> Iterator[list[ShareConsumer]]:
    """Share consumers of one group, the one of `config` or a new one, subscribed and assigned."""
    config = {"group.id": f"s-{uuid.uuid4().hex[:8]}"} | config
    with ExitStack() as stack:
        consumers = []
        for _ in range(count):
            one = ShareConsumer({"bootstrap.servers": cluster.bootstrap, **config})
            stack.callback(one.close)
            one.subscribe([topic])
            consumers.append(one)
        deadline = time.monotonic() + DEADLINE_S
        read: list[int] = []
        while not read:  # a new group begins at the end: records reach it once it is assigned
            assert time.monotonic() < deadline, "nothing is read"
            produce(cluster, topic, range(-1, 0), 1)
            read = [value for one in consumers for value in values(poll(one))]
        yield consumers


def poll(consumer: ShareConsumer) -> Sequence[Message]:
    """The next records; errors raise."""
    found = list(consumer.poll(0.5) or [])
    for one in found:
        assert one.error() is None, one.error()
    return found


def values(messages: Sequence[Message]) -> list[int]:
    """Their values."""
    return [int(one.value()) for one in messages]


def poll_until(done: Callable[[list[int]], bool], *consumers: ShareConsumer) -> list[int]:
    """Poll the consumers in turn until `done`; the values read, without those that only show the assignment."""
    read: list[int] = []
    deadline = time.monotonic() + DEADLINE_S
    while not done(read):
        assert time.monotonic() < deadline, f"{len(read)} values"
        for one in consumers:
            read += [value for value in values(poll(one)) if value >= 0]
    return read


def test_librdkafka_shares_partitions(cluster: Cluster) -> None:
    topic = make_topic(cluster, 2)
    with share_consumers(cluster, topic, 3) as consumers:
        produce(cluster, topic, range(1_000), 2)

        read = poll_until(lambda read: len(read) >= 1_000, *consumers)

        assert sorted(read) == list(range(1_000))
        for one in consumers:
            one.commit_sync()


def test_librdkafka_releases_and_rejects(cluster: Cluster) -> None:
    topic = make_topic(cluster, 1)
    explicit = {"share.acknowledgement.mode": "explicit"}
    with ExitStack() as stack:
        group = f"s-{uuid.uuid4().hex[:8]}"
        one = ShareConsumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, **explicit})
        stack.callback(one.close)
        one.subscribe([topic])
        observed: dict[int, int] = {}
        finished: set[int] = set()
        deadline = time.monotonic() + DEADLINE_S
        produced = False
        while len(finished) < 30:
            assert time.monotonic() < deadline, (observed, finished)
            if not produced and observed:
                produce(cluster, topic, range(30), 1)
                produced = True
            elif not produced:
                produce(cluster, topic, range(-1, 0), 1)
            for message in poll(one):
                value = int(message.value())
                observed[value] = observed.get(value, 0) + 1
                if value < 0:
                    one.acknowledge(message, AcknowledgeType.ACCEPT)
                elif value % 3 == 0 and observed[value] == 1:
                    one.acknowledge(message, AcknowledgeType.RELEASE)
                else:
                    one.acknowledge(message, AcknowledgeType.REJECT if value % 3 == 1 else AcknowledgeType.ACCEPT)
                    finished.add(value)
            one.commit_sync()

        assert {value: count for value, count in observed.items() if value >= 0} == {
            value: 2 if value % 3 == 0 else 1 for value in range(30)
        }
