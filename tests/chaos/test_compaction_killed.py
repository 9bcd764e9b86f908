"""Compaction of a table of many keys while it is written and read, and while the brokers that compact it are killed.

What is left must be the last value of each key, at the offset that its producer got, and nothing that was
acknowledged may be missing. `TIDEGATE_COMPACTION_RECORDS` and `TIDEGATE_COMPACTION_KEYS` choose the size.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.cluster import REPOSITORY, Cluster
from bench.processes import cpu_seconds

RECORDS = int(os.environ.get("TIDEGATE_COMPACTION_RECORDS", "200000"))
KEYS = int(os.environ.get("TIDEGATE_COMPACTION_KEYS", "20000"))
TABLE = "table"
WAIT_S = 120.0
COMPACT_S = 600.0
FSYNC_ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")
Table = dict[bytes, tuple[int, bytes]]


class Writer:
    """Writes keyed values and remembers what was acknowledged last of each key."""

    def __init__(self, bootstrap: str, rng: random.Random) -> None:
        self.acknowledged: Table = {}
        self.count = 0
        self._rng = rng
        self._producer = Producer({
            "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20,
            "queue.buffering.max.messages": 1_000_000, "message.timeout.ms": 600_000,
        })  # fmt: skip

    def write(self, count: int) -> None:
        for _ in range(count):
            key, value = b"key-%d" % self._rng.randrange(KEYS), b"%d" % self.count
            self.count += 1
            self._producer.produce(TABLE, value, key, on_delivery=self._delivered)
            if self.count % 1_000 == 0:
                self._producer.poll(0)

    def flush(self) -> None:
        assert self._producer.flush(WAIT_S) == 0

    def _delivered(self, error: Any, message: Any) -> None:
        assert error is None, error
        self.acknowledged[message.key()] = message.offset(), message.value()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Some hundred records a second until the end of the block, then all are acknowledged."""
        stop = threading.Event()

        def run() -> None:
            while not stop.wait(0.1):
                self.write(50)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        self.flush()


def read_table(bootstrap: str) -> tuple[Table, int]:
    """The table as a new consumer makes it, and how many records it read."""
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "check", "enable.auto.commit": False, "enable.partition.eof": True,
    })  # fmt: skip
    consumer.assign([TopicPartition(TABLE, 0, 0)])
    table: Table = {}
    count, deadline_s = 0, time.monotonic() + WAIT_S
    while True:
        assert time.monotonic() < deadline_s, "the end of the table is not reached"
        for message in consumer.consume(10_000, timeout=1):
            if message.error() is not None:
                consumer.close()
                return table, count
            table[message.key()] = message.offset(), message.value()
            count += 1


async def _compact(cluster: Cluster) -> dict[str, Any]:
    """`tidegate topic compact`: its row."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tidegate", "topic", "compact", TABLE, "--output", "json"),
        *("--timeout", str(int(COMPACT_S)), "--redis-url", cluster.redis_url),
        cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    [row] = json.loads(out)
    return dict(row)


async def _kill_while_compacting(cluster: Cluster) -> None:
    """Kill every broker once one of them fills the stream that is to replace the log, and start them again."""
    with redis.Redis.from_url(cluster.redis_url) as client:
        while not await asyncio.to_thread(lambda: list(client.scan_iter(match="*compacted:*", count=10_000))):
            await asyncio.sleep(0.01)
    for broker in cluster.brokers:
        broker.kill()
    for broker in cluster.brokers:
        await asyncio.to_thread(broker.start)
    for broker in cluster.brokers:
        await asyncio.to_thread(broker.wait_ready)


def _peak_mib(pid: int) -> int:
    """The largest resident memory of a process, MiB."""
    with open(f"/proc/{pid}/status") as status:
        [line] = [line for line in status if line.startswith("VmHWM:")]
    return int(line.split()[1]) // 1024


@pytest.mark.slow
@pytest.mark.timeout(1_800)  # three minutes on a quiet machine: a compaction waits a minute first
async def test_compaction_killed_keeps_the_last_values(rng: random.Random) -> None:
    with Cluster(brokers=3, server_options=FSYNC_ALWAYS) as cluster:
        config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1.0"}
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        [made] = admin.create_topics([NewTopic(TABLE, 1, config=config)]).values()
        await asyncio.to_thread(made.result, WAIT_S)
        writer = Writer(cluster.bootstrap, rng)
        await asyncio.to_thread(writer.write, RECORDS)
        await asyncio.to_thread(writer.flush)
        with writer.writing():
            killing = asyncio.create_task(_kill_while_compacting(cluster))
            async with asyncio.timeout(COMPACT_S):
                killed = asyncio.create_task(_compact(cluster))
                await killing
                print(f"killed while compacting: {await killed}")
        row = await _compact(cluster)
        cpu_s = {broker.name: round(cpu_seconds(broker.pid), 1) for broker in cluster.brokers}
        peaks = {broker.name: _peak_mib(broker.pid) for broker in cluster.brokers}
        print(f"{row}; CPU of brokers since their start, s: {cpu_s}; peak memory, MiB: {peaks}")
        table, count = await asyncio.to_thread(read_table, cluster.bootstrap)
    assert table == writer.acknowledged
    assert len(table) <= count < len(table) + writer.count // 10  # but for the last batches, one record a key is left
