"""Consume, transform, produce in transactions, a share of them aborted, while brokers and Redis are killed.

Each partition's output must be its input, in order and once, under read_committed: for a reader afterwards and for one
that reads all the time, which must never have received what was not committed. No transaction may stay open. What the
members sent, and how they ended each transaction, is judged with what was read by `tests.kit.checker`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as SinkPartition
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from bench.cluster import Cluster
from bench.jars import PeerUnavailable
from tests.kit.checker import check, summary
from tests.kit.history import LogBounds, Poll, TransactionEnd
from tests.support.chains import CHAIN_CLIENTS, ChainClient, chain_members, history_of

PARTITIONS = 3
RECORDS = int(os.environ.get("TIDEGATE_CHAIN_RECORDS", "10000"))
KILL_EVERY_S = 10.0
WAIT_S = 60.0
FSYNC_ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")
SOURCE, SINK, GROUP = "source", "sink", "chain"


class Run:
    """The topics of a chain, and what is in them."""

    def __init__(self, cluster: Cluster, count: int) -> None:
        self.bootstrap, self.count = cluster.bootstrap, count
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap})

    def fill(self) -> None:
        """Make the topics, and the source's records."""
        for made in self.admin.create_topics([NewTopic(name, PARTITIONS) for name in (SOURCE, SINK)]).values():
            made.result(WAIT_S)
        producer = Producer({"bootstrap.servers": self.bootstrap, "queue.buffering.max.messages": self.count + 1})
        for number in range(self.count):
            producer.produce(SOURCE, b"%d" % number, partition=number % PARTITIONS)
        assert producer.flush(WAIT_S) == 0

    def ends(self, level: IsolationLevel) -> list[int]:
        """The sink's ends that a reader of this level has."""
        asked = {TopicPartition(SINK, index): OffsetSpec.latest() for index in range(PARTITIONS)}
        found = self.admin.list_offsets(asked, isolation_level=level, request_timeout=WAIT_S)
        return [found[place].result().offset for place in asked]

    def starts_and_ends(self) -> list[LogBounds]:
        """Of each of the sink's partitions."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "check"})
        places = [TopicPartition(SINK, index) for index in range(PARTITIONS)]
        found = [consumer.get_watermark_offsets(place, timeout=WAIT_S) for place in places]
        consumer.close()
        return [LogBounds(0, f"{SINK}-{index}", start, end) for index, (start, end) in enumerate(found)]

    def read(self) -> tuple[list[list[int]], list[Poll]]:
        """What a reader of committed records finds, by partition."""
        consumer = Consumer({
            "bootstrap.servers": self.bootstrap, "group.id": "check", "isolation.level": "read_committed",
            "enable.partition.eof": True, "enable.auto.commit": False,
        })  # fmt: skip
        consumer.assign([TopicPartition(SINK, index, 0) for index in range(PARTITIONS)])
        values: list[list[int]] = [[] for _ in range(PARTITIONS)]
        polls: list[Poll] = []
        ended: set[int] = set()
        deadline_s = time.monotonic() + 2 * WAIT_S
        while len(ended) < PARTITIONS:
            assert time.monotonic() < deadline_s, "the stable ends are not reached"
            began, messages = time.time_ns(), consumer.consume(1_000, timeout=1)
            polls += _polls("check", began, messages)
            for message in messages:
                if message.error() is None:
                    values[message.partition()].append(int(message.value()))
                else:
                    ended.add(message.partition())
        consumer.close()
        return values, polls


def _polls(process: str, began: int, messages: list[Any]) -> Iterator[Poll]:
    """What one call handed out, by partition."""
    by_partition: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for one in messages:
        if one.error() is None:
            by_partition[one.partition()].append((one.offset(), f"{one.value().decode()}/{one.key().decode()}"))
    for index, records in by_partition.items():
        yield Poll(process, began, time.time_ns(), f"{SINK}-{index}", tuple(records))


class Reader:
    """Reads the sink under read_committed while it is written; what it has read can never be taken back.

    By aiokafka: a consumer of librdkafka 2.16 can lock itself up when a leader is killed (its issue 5476).
    """

    def __init__(self, bootstrap: str) -> None:
        self.values: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self.offsets: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self.polls: list[Poll] = []
        self._bootstrap = bootstrap

    async def __aenter__(self) -> Reader:
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap, isolation_level="read_committed", auto_offset_reset="earliest",
            enable_auto_commit=False, max_partition_fetch_bytes=65_536,
        )  # fmt: skip
        await self._consumer.start()
        self._consumer.assign([SinkPartition(SINK, index) for index in range(PARTITIONS)])
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._consumer.stop()

    async def until(self, count: int) -> None:
        """Wait until so many records have been read."""
        while sum(len(of) for of in self.values) < count:
            if self._reading.done():
                await self._reading  # raises why
            await asyncio.sleep(0.2)

    async def _read(self) -> None:
        while True:
            began = time.time_ns()
            for place, messages in (await self._consumer.getmany(timeout_ms=500)).items():
                records = tuple((one.offset, f"{one.value.decode()}/{one.key.decode()}") for one in messages)
                self.polls.append(Poll("reader", began, time.time_ns(), f"{SINK}-{place.partition}", records))
                self.values[place.partition] += [int(one.value) for one in messages]
                self.offsets[place.partition] += [one.offset for one in messages]


async def _kill_brokers(cluster: Cluster, pause_s: float) -> None:
    for broker in itertools.cycle(cluster.brokers):
        await asyncio.sleep(pause_s)
        broker.kill()
        await asyncio.to_thread(broker.start)
        await asyncio.to_thread(broker.wait_ready)


async def _restart_redis(cluster: Cluster, reader: Reader) -> None:
    """Kill Redis once a third is committed, and start it from its append-only file."""
    await reader.until(RECORDS // 3)
    cluster.kill_server()
    await asyncio.sleep(1)
    await asyncio.to_thread(cluster.start_server)


@pytest.mark.slow
@pytest.mark.timeout(1_200)  # a minute on a quiet machine; its own waits add up to more
@pytest.mark.parametrize("client", CHAIN_CLIENTS, ids=[client.name for client in CHAIN_CLIENTS])
async def test_transaction_chain_stays_exact(client: ChainClient, rng: random.Random, tmp_path: Path) -> None:
    """A broker is killed every few seconds, and Redis once."""
    try:
        await asyncio.to_thread(client.prepare)
    except PeerUnavailable as reason:
        pytest.skip(str(reason))
    expected = [[2 * number for number in range(index, RECORDS, PARTITIONS)] for index in range(PARTITIONS)]
    with Cluster(brokers=3, server_options=FSYNC_ALWAYS) as cluster:
        run = Run(cluster, RECORDS)
        await asyncio.to_thread(run.fill)
        seeds = [rng.randrange(1 << 30) for _ in range(client.members)]
        async with Reader(cluster.bootstrap) as reader:
            with chain_members(client, cluster.bootstrap, SOURCE, SINK, GROUP, seeds, tmp_path):
                faults = [
                    asyncio.create_task(_kill_brokers(cluster, KILL_EVERY_S)),
                    asyncio.create_task(_restart_redis(cluster, reader)),
                ]
                try:
                    async with asyncio.timeout(900):
                        await reader.until(RECORDS)
                        await faults[1]
                finally:
                    for fault in faults:
                        fault.cancel()
                    await asyncio.gather(*faults, return_exceptions=True)
            for broker in cluster.brokers:
                await asyncio.to_thread(broker.wait_ready)
            values, polls = await asyncio.to_thread(run.read)
            async with asyncio.timeout(WAIT_S):
                while [len(of) for of in reader.values] != [len(of) for of in values]:
                    await asyncio.sleep(0.2)
        async with asyncio.timeout(WAIT_S):  # the last transaction may have been aborted when the chain was stopped
            while run.ends(IsolationLevel.READ_COMMITTED) != run.ends(IsolationLevel.READ_UNCOMMITTED):
                await asyncio.sleep(0.5)
        history = history_of(tmp_path, SINK)
        for operation in (*reader.polls, *polls, *await asyncio.to_thread(run.starts_and_ends)):
            history.add(operation)
    violations = check(history)
    assert not violations, "\n".join(summary(violations))
    ends = [one for one in history if isinstance(one, TransactionEnd)]
    committed = {one.transaction for one in ends if one.committed}
    assert len(committed) > RECORDS // 1_000
    assert not all(one.committed for one in ends), "nothing was aborted"
    assert values == expected
    print(
        f"{client.name}: {RECORDS} records, {len(committed)} transactions committed and {len(ends) - len(committed)} "
        f"aborted; {len(history)} operations judged: no violation; hanging transactions: 0"
    )
    assert reader.values == expected, "a reader of committed records has read what was aborted later"
    assert all(offsets == sorted(set(offsets)) for offsets in reader.offsets)
