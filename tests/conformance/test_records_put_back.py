"""Real clients and brokers: a topic replayed while others produce, groups moved along, archived records restored."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from bench.cluster import Cluster
from tests.kit.forked_cluster import ForkedCluster
from tests.support.logs import FakeTopic, broker
from tests.support.plain_archive import archive_topic
from tidegate.settings import Settings
from tidegate_pipeline.archive.segment_writer import Shape
from tidegate_pipeline.decode.schema import raw_schema
from tidegate_pipeline.redis_access import connect
from tidegate_pipeline.replay.sink import ReplaySink
from tidegate_pipeline.sources.topic_source import TopicSource
from tidegate_pipeline.topics import read_topics

COUNT = 2_000
"""Records of each partition."""
CUT = 1_205
"""What is below it in partition 0 leaves Redis."""


@dataclass
class Run:
    """A cluster, its archive, and the topics `orders` and `copy` of two partitions."""

    cluster: Cluster
    root: Path

    def tidegate(self, *arguments: str, environment: dict[str, str] | None = None) -> str:
        """The command's output."""
        reported = subprocess.run(
            [sys.executable, "-m", "tidegate", *arguments], capture_output=True, text=True, timeout=150,
            env={
                **os.environ, "TIDEGATE_REDIS_URL": self.cluster.redis_url, "TIDEGATE_ARCHIVE_PATH": str(self.root),
                **(environment or {}),
            },
        )  # fmt: skip
        assert reported.returncode == 0, reported.stderr
        return reported.stdout

    async def read(self, topic: str, partition: int, offset: int, count: int) -> list[tuple[int, bytes | None]]:
        """Offsets and values, by aiokafka."""
        consumer = AIOKafkaConsumer(bootstrap_servers=self.cluster.bootstrap, enable_auto_commit=False)
        await consumer.start()
        place = TopicPartition(topic, partition)
        consumer.assign([place])
        consumer.seek(place, offset)
        found: list[tuple[int, bytes | None]] = []
        async with asyncio.timeout(60):
            while len(found) < count:
                for records in (await consumer.getmany(timeout_ms=1_000)).values():
                    found += [(record.offset, record.value) for record in records]
        await consumer.stop()
        return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    from confluent_kafka.admin import AdminClient, NewTopic

    root = tmp_path_factory.mktemp("archive")
    settings = {
        "TIDEGATE_ARCHIVE_PATH": str(root),
        "TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "100",
    }
    constants = {"tidegate.log.append.ENTRY_BYTES_MAX": 8 << 10}
    with ForkedCluster(brokers=2, settings=settings, constants=constants) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        topics = [NewTopic(name, 2, 1, config={"retention.ms": "-1"}) for name in ("orders", "copy")]
        for future in admin.create_topics(topics).values():
            future.result(30)
        produce(cluster, "orders", COUNT, b"")
        archive_topic(cluster.redis_url, "orders", root, Shape(64 << 10, 8 << 10))
        assert asyncio.run(delete_records(cluster.redis_url)) == CUT
        yield Run(cluster, root)


async def delete_records(redis_url: str) -> int:
    """As retention does, by one more broker; returns the log start."""
    topic = read_topics(connect(redis_url), "tidegate", "default")["orders"]
    async with broker(Settings(redis_url=redis_url)) as logs:
        return await logs.partition(FakeTopic(name="orders", topic_hex=topic.topic_id), 0).delete_records(CUT)  # type: ignore[arg-type]


def produce(cluster: Cluster, topic: str, count: int, mark: bytes) -> None:
    """Records of each partition in turn, by an idempotent producer that compresses."""
    from confluent_kafka import Producer

    settings = {"enable.idempotence": True, "compression.type": "lz4", "linger.ms": 2, "batch.size": 4_000}
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **settings})
    for number in range(count):
        for partition in range(2):
            producer.produce(topic, mark + b"%d" % number, partition=partition, timestamp=1_700_000_000_000 + number)
        producer.poll(0)
    assert producer.flush(60) == 0


def replay(run: Run) -> None:
    """As the job does: rows of both tiers through the sink, by a writer for each task."""
    url, archive = run.cluster.redis_url, str(run.root)
    source = {"redis.url": url, "archive.path": archive, "subscribe": "orders", "mode": "raw", "includeRange": "true"}
    reader = TopicSource(source).reader(raw_schema(True))
    tasks = reader.partitions()
    options = {"redis.url": url, "archive.path": archive, "topic": "copy", "job": "test", "sourceTopic": "orders"}
    writer = ReplaySink({**options, "sourceId": tasks[0].ranges[0].topic_id}).streamWriter(raw_schema(True), False)  # type: ignore[attr-defined]
    messages = [writer.write(reader.read(task)) for task in tasks]
    writer.commit([*messages], 0)


@pytest.mark.timeout(400)
async def test_topic_is_replayed_beside_producers_and_its_group_moves_along(run: Run, tmp_path: Path) -> None:
    producing = threading.Thread(target=produce, args=(run.cluster, "copy", 500, b"other-"))
    producing.start()
    await asyncio.to_thread(replay, run)
    await asyncio.to_thread(replay, run)  # all of it again
    producing.join()

    for partition in range(2):
        found = await run.read("copy", partition, 0, COUNT + 500)
        assert [offset for offset, _ in found] == list(range(COUNT + 500))
        values = [value for _, value in found if value]
        assert [value for value in values if not value.startswith(b"other")] == [b"%d" % i for i in range(COUNT)]
        assert [value for value in values if value.startswith(b"other")] == [b"other-%d" % i for i in range(500)]

    dry = ("--dry-run", "--json", "--checkpoint", str(tmp_path / "checkpoint"))
    both = ("--from-topic", "orders", "--to-topic", "copy", "--job", "test")
    planned = json.loads(await asyncio.to_thread(run.tidegate, "pipeline", "replay", *both, *dry))["plan"]
    assert [(row["from"], row["to"], row["written_up_to"]) for row in planned] == [(0, COUNT, COUNT - 1)] * 2
    planned = json.loads(await asyncio.to_thread(run.tidegate, "pipeline", "decode", "--topic", "orders", *dry))["plan"]
    assert [(row["from"], row["to"]) for row in planned] == [(0, COUNT)] * 2

    await commit(run, "billing", {0: 1_333, 1: 77})
    arguments = ["--group", "billing", "--from-topic", "orders", "--to-topic", "copy", "--job", "test"]
    reported = await asyncio.to_thread(run.tidegate, "pipeline", "translate-offsets", *arguments)
    moved = tmp_path / "moved.csv"
    moved.write_text(reported)
    bootstrap = ("--bootstrap", run.cluster.bootstrap, "--undo", str(tmp_path / "undo.csv"))
    await asyncio.to_thread(
        run.tidegate, "group", "reset", "billing", "--from-file", str(moved), "--execute", *bootstrap
    )
    offsets = {int(row["partition"]): int(row["offset"]) for row in csv.DictReader(reported.splitlines())}
    for partition, next_offset in ((0, 1_333), (1, 77)):
        assert await committed(run, "billing", "copy", partition) == offsets[partition]
        found = await run.read("copy", partition, offsets[partition], 1)
        assert found[0][1] == b"%d" % next_offset


@pytest.mark.timeout(400)
async def test_restored_range_is_read_by_a_client(run: Run) -> None:
    watch = AIOKafkaConsumer(bootstrap_servers=run.cluster.bootstrap)
    await watch.start()
    place = TopicPartition("orders", 0)
    assert (await watch.beginning_offsets([place]))[place] == CUT

    arguments = ("pipeline", "restore", "--topic", "orders", "--from", "0", "--json")
    (first, second) = json.loads(await asyncio.to_thread(run.tidegate, *arguments))

    assert (first["from"], second["batches"]) == (0, 0)
    assert (await watch.beginning_offsets([place]))[place] == 0
    await watch.stop()
    produce(run.cluster, "orders", 100, b"later-")
    found = await run.read("orders", 0, 0, COUNT + 100)
    assert found == [
        *((i, b"%d" % i) for i in range(COUNT)), *((COUNT + i, b"later-%d" % i) for i in range(100)),
    ]  # fmt: skip


async def commit(run: Run, group: str, offsets: dict[int, int]) -> None:
    consumer = AIOKafkaConsumer(bootstrap_servers=run.cluster.bootstrap, group_id=group, enable_auto_commit=False)
    await consumer.start()
    places = {TopicPartition("orders", partition): offset for partition, offset in offsets.items()}
    consumer.assign(list(places))
    await consumer.commit(places)
    await consumer.stop()


async def committed(run: Run, group: str, topic: str, partition: int) -> int | None:
    consumer = AIOKafkaConsumer(bootstrap_servers=run.cluster.bootstrap, group_id=group, enable_auto_commit=False)
    await consumer.start()
    place = TopicPartition(topic, partition)
    consumer.assign([place])
    found = await consumer.committed(place)
    await consumer.stop()
    return found
