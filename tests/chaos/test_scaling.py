"""Brokers come and go under a group of fifty, as an autoscaler and a rolling update of Kubernetes do it.

aiokafka and librdkafka members in one group. Nothing of it may cost the group a generation or a member an error, and
new brokers must have clients within two minutes. Run with -s it prints who had how many connections when.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Position

from bench.cluster import BrokerProcess, Cluster
from tidegate.store.keys import shard_of

pytestmark = pytest.mark.timeout(600)

MEMBERS = int(os.environ.get("TIDEGATE_TEST_MEMBERS", "50"))
LIBRDKAFKA = MEMBERS * 3 // 10
TOPIC, GROUP = "scaling", "scaling-group"
SHARD = shard_of(GROUP, 50)
SESSION_MS = 10_000
WITHIN_S = 120.0
STABLE_S = 120.0


class Members:
    """A group of both libraries, committing all the time; `errors` is what their callers got."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.errors: list[str] = []
        self.commits = 0
        self._python: list[Any] = []
        self._native: list[threading.Thread] = []
        self._owned: dict[int, set[int]] = {}
        self._stop = threading.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._redis = redis.Redis.from_url(cluster.redis_url)
        self._key = f"tidegate:{{co:{SHARD}}}:group:default:{GROUP}"

    async def start(self) -> None:
        """Start all, and wait until each partition has one owner."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self._cluster.bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic(TOPIC, MEMBERS, 1)])
        await admin.close()
        self._python = [
            AIOKafkaConsumer(
                TOPIC,
                bootstrap_servers=self._cluster.bootstrap,
                group_id=GROUP,
                enable_auto_commit=False,
                session_timeout_ms=SESSION_MS,
                partition_assignment_strategy=[RangePartitionAssignor],
            )
            for _ in range(MEMBERS - LIBRDKAFKA)
        ]
        await asyncio.gather(*(consumer.start() for consumer in self._python))
        bootstrap = self._cluster.bootstrap
        for number in range(LIBRDKAFKA):
            thread = threading.Thread(target=self._run_native, args=(number, bootstrap), daemon=True)
            thread.start()
            self._native.append(thread)
        deadline = time.monotonic() + STABLE_S
        while not (self.stable() and self.owned() == list(range(MEMBERS))):
            assert time.monotonic() < deadline, f"the group did not become stable: {self.owned()}"
            await asyncio.sleep(0.2)
        self._tasks = [asyncio.create_task(self._run_python(consumer)) for consumer in self._python]

    def owned(self) -> list[int]:
        """Every partition that somebody owns, as often as it is owned."""
        python = [tp.partition for consumer in self._python for tp in consumer.assignment()]
        return sorted(python + [partition for owned in self._owned.values() for partition in owned])

    def generation(self) -> int:
        """As Redis has it."""
        generation: Any = self._redis.hget(self._key, "generation")
        return int(generation)

    def stable(self) -> bool:
        """Whether all are in, and nobody is waited for."""
        count: Any = self._redis.hlen(f"{self._key}:members")
        return self._redis.hget(self._key, "state") == b"Stable" and count == MEMBERS

    def events(self) -> str:
        """What the group went through, newest first."""
        found: Any = self._redis.xrevrange(f"tidegate:{{co:{SHARD}}}:events", count=MEMBERS)
        return "\n".join(f"{entry_id} {fields}" for entry_id, fields in found)

    async def stop(self) -> None:
        """Leave the group."""
        self._stop.set()
        await asyncio.gather(*self._tasks)
        await asyncio.gather(*(stopped(consumer) for consumer in self._python))
        for thread in self._native:
            await asyncio.to_thread(thread.join)
        self._redis.close()

    async def _run_python(self, consumer: Any) -> None:
        offset = 0
        while not self._stop.is_set():
            offset += 1
            try:
                await consumer.getmany(timeout_ms=200)
                await consumer.commit(dict.fromkeys(consumer.assignment(), offset))
                self.commits += 1
            except Exception as error:  # noqa: BLE001 - whatever a caller gets counts
                self.errors.append(f"aiokafka: {error!r}")
            await asyncio.sleep(0.3)

    def _run_native(self, number: int, bootstrap: str) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_MS,
                "partition.assignment.strategy": "range",
                "log_level": 0,
            }
        )
        owned = self._owned[number] = set()

        def assigned(_: Consumer, partitions: list[Position]) -> None:
            owned.update(one.partition for one in partitions)

        def revoked(_: Consumer, partitions: list[Position]) -> None:
            owned.difference_update(one.partition for one in partitions)

        consumer.subscribe([TOPIC], on_assign=assigned, on_revoke=revoked)
        offset = 0
        while not self._stop.is_set():
            record = consumer.poll(0.5)
            if record is not None and record.error() is not None:
                self.errors.append(f"librdkafka: {record.error()}")
            if not owned:
                continue
            offset += 1
            try:
                consumer.commit(offsets=[Position(TOPIC, one, offset) for one in owned], asynchronous=False)
                self.commits += 1
            except Exception as error:  # noqa: BLE001 - whatever a caller gets counts
                self.errors.append(f"librdkafka: {error!r}")
        consumer.close()


async def stopped(consumer: AIOKafkaConsumer) -> None:
    """Leave the group. Where a fetch is just waiting to try again its cancellation comes out of aiokafka's stop()."""
    try:
        await consumer.stop()
    except asyncio.CancelledError:
        await consumer._client.close()


@asynccontextmanager
async def members_of(cluster: Cluster) -> AsyncIterator[Members]:
    """A stable group; its generation, its owners and its errors are checked in the end."""
    members = Members(cluster)
    try:
        await members.start()
        before = members.generation()
        yield members
        await asyncio.sleep(SESSION_MS / 1000 + 2)  # a member that was lost would be gone by now
        committed = members.commits
        await until(lambda: members.commits > committed, WITHIN_S)
        assert members.generation() == before, members.events()
        assert members.owned() == list(range(MEMBERS))
        assert members.errors == []
    finally:
        await members.stop()


def clients(broker: BrokerProcess) -> dict[str, int]:
    """A broker's connections by client library; those that have not said yet are "unknown"."""
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.admin_port}/metrics", timeout=60) as response:
        text = response.read().decode()
    found = re.findall(r"^tidegate_client_connections\{software=\"(.*)\"\} (\S+)$", text, re.MULTILINE)
    return {software: int(float(count)) for software, count in found if float(count)}


def connections(broker: BrokerProcess) -> int:
    """A broker's connections."""
    return sum(clients(broker).values())


async def until(condition: Callable[[], bool], within_s: float) -> float:
    """Seconds until it became true."""
    started = time.monotonic()
    while not await asyncio.to_thread(condition):
        assert time.monotonic() - started < within_s
        await asyncio.sleep(0.5)
    return time.monotonic() - started


async def watch(cluster: Cluster, started: float) -> None:
    """Print connections by broker, for who runs this with -s."""
    while True:
        with contextlib.suppress(OSError):
            counts = [await asyncio.to_thread(clients, one) for one in cluster.brokers if one.process is not None]
            print(f"{time.monotonic() - started:6.1f} s: {counts}")
        await asyncio.sleep(5)


async def test_new_brokers_get_clients_and_old_ones_lose_them_without_a_rebalance() -> None:
    with Cluster(brokers=2) as cluster:
        async with members_of(cluster) as members:
            watching = asyncio.create_task(watch(cluster, time.monotonic()))
            new = [cluster.add_broker(wait=False) for _ in range(3)]
            await asyncio.gather(*(asyncio.to_thread(broker.wait_ready) for broker in new))
            took_s = await until(lambda: all(connections(one) >= 3 for one in new), WITHIN_S)
            print(f"each new broker has 3 clients or more after {took_s:.0f} s; {members.commits} commits")
            await asyncio.sleep(float(os.environ.get("TIDEGATE_TEST_WATCH_S", "0")))
            codes = await asyncio.gather(*(asyncio.to_thread(broker.drain) for broker in new))
            watching.cancel()

            assert codes == [0, 0, 0]
            producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap)
            await producer.start()
            for partition in range(MEMBERS):
                await producer.send_and_wait(TOPIC, b"all is served", partition=partition)
            await producer.stop()


def stopped_as_a_pod(broker: BrokerProcess) -> int:
    """preStop begins the drain through the admin HTTP, SIGTERM follows at once; its exit status."""
    process, broker.process = broker.process, None
    assert process is not None
    asked = urllib.request.Request(f"http://127.0.0.1:{broker.admin_port}/drain", method="POST")
    with urllib.request.urlopen(asked, timeout=60) as response:
        assert response.status in (200, 202)
    process.terminate()
    return process.wait(100)


async def test_rolling_update_by_prestop_and_sigterm_adds_no_generation() -> None:
    with Cluster(brokers=3) as cluster:
        async with members_of(cluster):
            for broker in cluster.brokers:
                assert await asyncio.to_thread(stopped_as_a_pod, broker) == 0
                log = broker.log_path.read_text()
                assert log.count("asked_to_drain") == log.count(" draining ") == log.count("asked_to_stop") == 1
                broker.start()
                await asyncio.to_thread(broker.wait_ready)  # the next one goes as soon as this one is ready
