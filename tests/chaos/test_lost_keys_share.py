"""The keys of a share group deleted, of another type, or emptied, while a member has records and acquires others.

After each: every record that was acknowledged to its producer and not yet accepted by the group is delivered, and so
are new ones. Some may be delivered again: a share group promises to deliver at least once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Final

import pytest
import redis
from confluent_kafka import Producer

from bench.cluster import Cluster
from tests.chaos.test_lost_keys import DELETED, EMPTIED, WRONG_TYPE, BrokerLogs, damage, keys_of
from tests.conformance.test_share_asyncio import configure
from tests.conformance.test_share_consumers import make_topic
from tidegate.cli.client.redis_keys import KINDS
from tidegate.share import ShareConsumer, ShareError

HEALED_S: Final = 60.0
KEYS: Final = (
    "groups", "deadlines", "configured", "configs", "events", "group", "consumers", "targets", "consumer-sessions",
    "shares", "share", "share-available", "share-acquired", "share-locks",
)  # fmt: skip
_numbers = count(1)


@dataclass
class Queue:
    """A producer and one member of a share group of one partition."""

    cluster: Cluster
    name: str
    sent: set[str] = field(default_factory=set)
    accepted: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)

    def produce(self, number: int) -> None:
        """So many more records."""
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap})
        new = {f"{len(self.sent) + one}" for one in range(number)}
        for value in sorted(new):
            producer.produce(self.name, value)
        assert producer.flush(HEALED_S) == 0
        self.sent |= new

    @asynccontextmanager
    async def member(self) -> AsyncIterator[ShareConsumer]:
        consumer = ShareConsumer(self.cluster.bootstrap, group=self.name, topics=[self.name])
        async with consumer:
            yield consumer

    async def accept(self, consumer: ShareConsumer) -> None:
        """Accept what a poll brings."""
        records = await consumer.poll(0.5)
        consumer.accept(*records)
        refused = {(one.partition, offset) for one in await consumer.commit() for offset in one.offsets}
        self.accepted |= {(one.value or b"").decode() for one in records if (one.partition, one.offset) not in refused}

    async def drain(self) -> bool:
        """Whether everything is accepted in the end, by a member that joins again after an error."""
        ends = time.monotonic() + HEALED_S
        while not self.sent <= self.accepted and time.monotonic() < ends:
            try:
                async with self.member() as consumer:
                    while not self.sent <= self.accepted and time.monotonic() < ends:
                        await self.accept(consumer)
            except (ShareError, OSError, TimeoutError) as error:
                self.errors.append(repr(error))
                await asyncio.sleep(0.2)
        return self.sent <= self.accepted


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    constants = {"tidegate.groups.configs.SHARE_RECORD_LOCK_DURATION_MS": 5_000}
    with Cluster(brokers=2, settings={"TIDEGATE_LOG_FORMAT": "json"}, constants=constants) as running:
        yield running


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, DELETED) for name in KEYS),
        *(pytest.param(name, WRONG_TYPE, marks=pytest.mark.slow) for name in KEYS),
        ("events", EMPTIED),  # an empty hash or sorted set does not exist
    ],
)
async def test_key_lost_of_a_share_group_is_healed(cluster: Cluster, name: str, how: str) -> None:
    kind = next(one for one in KINDS if one.name == name)
    client, logs = redis.Redis.from_url(cluster.redis_url), BrokerLogs(cluster)
    queue = Queue(cluster, make_topic(cluster, 1))
    configure(cluster, queue.name)
    queue.produce(20)
    assert await queue.drain()
    async with queue.member() as holder:
        queue.produce(10)
        while not (held := await holder.poll(0.5)):
            pass
        holder.release(*held[:2])
        await holder.commit()
        damaged = keys_of(client, queue, kind)  # type: ignore[arg-type]
        for key in damaged:
            damage(client, key, kind, how)
        start_s = time.monotonic()
        queue.produce(10)
        with suppress(ShareError, OSError, TimeoutError):
            await holder.commit()
    healed = await queue.drain()
    if not healed and how == WRONG_TYPE:
        for event in logs.events():
            if event.get("command", "").startswith("RENAME "):
                with suppress(redis.ResponseError):
                    client.execute_command(*event["command"].split())
        healed = await queue.drain()
    news = sorted({event["event"] for event in logs.events() if event["level"] != "info"})
    print(f"| {name} | {how} | {len(damaged)} keys | {time.monotonic() - start_s:.1f} s | {', '.join(news)} |")
    assert healed, (sorted(queue.sent - queue.accepted), queue.errors[-3:])
    for key in damaged:
        if client.type(key) == b"list":
            client.delete(key)
