"""Real clients read a topic from offset 0 whose old part has left Redis: every record once, in order, as produced."""

from __future__ import annotations

import asyncio
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from bench.cluster import Cluster
from bench.jars import PeerUnavailable, classpath
from tests.kit.forked_cluster import ForkedCluster
from tests.kit.wire import RawClient
from tests.support.log_broker import fetch_request
from tests.support.plain_archive import archive_topic
from tidegate_pipeline.archive.segment_writer import Shape
from tidegate_pipeline.redis_access import connect
from tidegate_pipeline.topics import read_topics

PARTITIONS = 3
BEFORE, AFTER = 12_000, 600
SMALL_AND_QUICK = {"tidegate.log.append.ENTRY_BYTES_MAX": 8 << 10, "tidegate.log.upkeep.CHECK_INTERVAL_MS": 200}
"""Constants with which a small topic has many entries, and loses them soon."""
"""Records produced, and archived where they were; and produced after Redis was trimmed."""
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SHAPE = Shape(segment_bytes=128 << 10, row_group_bytes=16 << 10)


@dataclass
class Tiered:
    """A topic in two tiers. `produced` are key, value, headers and timestamp of each partition's records, in order."""

    cluster: Cluster
    topic: str
    produced: list[list[tuple[Any, ...]]]
    served: list[bytes]
    """The batches of each partition as brokers served them before Redis was trimmed."""
    local_starts: list[int]

    @property
    def count(self) -> int:
        return sum(map(len, self.produced))

    def check(self, records: Sequence[tuple[int, int, tuple[Any, ...]]]) -> None:
        """Partition, offset and contents of all that a client read."""
        read: list[list[tuple[Any, ...]]] = [[] for _ in range(PARTITIONS)]
        for partition, offset, contents in records:
            assert offset == len(read[partition])
            read[partition].append(contents)
        assert read == self.produced


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiered]:
    root = tmp_path_factory.mktemp("archive")
    settings = {
        "TIDEGATE_ARCHIVE_PATH": str(root),
        "TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "100",
    }
    with ForkedCluster(brokers=2, settings=settings, constants=SMALL_AND_QUICK) as cluster:
        yield given_tiered(cluster, root)


def given_tiered(cluster: Cluster, root: Path | str) -> Tiered:
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = f"tiered-{uuid.uuid4().hex[:8]}"
    configs = {"remote.storage.enable": "true", "retention.ms": "-1", "local.retention.bytes": str(32 << 10)}
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=configs)]).values():
        future.result(30)
    produced: list[list[tuple[Any, ...]]] = [[] for _ in range(PARTITIONS)]
    produce(cluster, topic, produced, BEFORE)
    served = asyncio.run(all_batches(cluster, topic, [len(records) for records in produced]))
    ends = archive_topic(cluster.redis_url, topic, root, SHAPE)
    assert [ends[partition] for partition in range(PARTITIONS)] == [len(records) for records in produced]
    local_starts = wait_trimmed(cluster, topic)
    empty_caches(cluster)
    produce(cluster, topic, produced, AFTER)
    return Tiered(cluster, topic, produced, served, local_starts)


def empty_caches(cluster: Cluster) -> None:
    """Start the brokers again: what they have seen they would not read from files."""
    for broker in cluster.brokers:
        assert broker.drain() == 0
        broker.start()
    for broker in cluster.brokers:
        broker.wait_ready()


def produce(cluster: Cluster, topic: str, produced: list[list[tuple[Any, ...]]], count: int) -> None:
    """Records of every codec, partition by partition in turn, with keys, headers, nulls and times."""
    from confluent_kafka import Producer

    for codec in CODECS:
        producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "compression.type": codec, "linger.ms": 5, "batch.size": 8_000}
        )
        for _ in range(count // len(CODECS)):
            number = sum(map(len, produced))
            partition = number % PARTITIONS
            value = None if number % 97 == 0 else b"%d:%s" % (number, uuid.uuid4().bytes * 4)
            key = None if number % 3 == 0 else b"key-%d" % number
            headers = [("codec", codec.encode()), ("null", None)] if number % 2 else []
            timestamp = 1_700_000_000_000 + number * 10
            producer.produce(topic, value, key, partition, timestamp=timestamp, headers=headers)
            produced[partition].append((key, value, headers, timestamp))
            producer.poll(0)
        assert producer.flush(60) == 0


async def all_batches(cluster: Cluster, topic: str, ends: Sequence[int]) -> list[bytes]:
    """Every partition's batches from offset 0 to its end, by plain fetches."""
    found = []
    async with await RawClient.connect(cluster.brokers[0].address) as client:
        for partition, end in enumerate(ends):
            offset, data = 0, b""
            while offset < end:
                asked = fetch_request([(topic, [(partition, offset)])], partition_max_bytes=50_000, max_wait_ms=1_000)
                answer = (await client.ask(asked)).responses[0].partitions[0]
                assert answer.error_code is ErrorCode.none
                if answer.records:  # a read of files may take longer than the fetch waits
                    data += bytes(answer.records)
                    offset = end_of(bytes(answer.records))
            found.append(data)
    return found


def end_of(batches: bytes) -> int:
    """The offset after the last batch."""
    at = 0
    while at < len(batches):
        base, last_delta = int.from_bytes(batches[at : at + 8]), int.from_bytes(batches[at + 23 : at + 27])
        at += 12 + int.from_bytes(batches[at + 8 : at + 12])
    return base + last_delta + 1


def wait_trimmed(cluster: Cluster, topic: str) -> list[int]:
    """Wait until each partition has left Redis for the most part; where Redis holds them from."""
    client = connect(cluster.redis_url)
    keys = [read_topics(client, "tidegate", "default")[topic].keys("tidegate", index) for index in range(PARTITIONS)]
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        starts = [int(client.hget(one.meta, "local_start") or 0) for one in keys]
        if all(start > BEFORE / PARTITIONS / 2 for start in starts):
            assert all(int(client.hget(one.meta, "log_start")) == 0 for one in keys)
            assert all(int(client.xrange(one.log, count=1)[0][0].split(b"-")[0]) > 0 for one in keys)
            client.close()
            return starts
        time.sleep(0.1)
    raise AssertionError(f"Redis was not trimmed: {starts}")


def test_bytes_served_are_the_bytes_that_were_served_before(tiered: Tiered) -> None:
    ends = [len(records) for records in tiered.produced]
    served = asyncio.run(all_batches(tiered.cluster, tiered.topic, ends))

    assert all(now.startswith(before) for now, before in zip(served, tiered.served, strict=True))
    assert [end_of(batches) for batches in served] == ends


async def test_aiokafka_reads_both_tiers_in_a_group(tiered: Tiered) -> None:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(
        tiered.topic,
        bootstrap_servers=tiered.cluster.bootstrap,
        group_id=f"g-{uuid.uuid4().hex[:8]}",
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=60_000,
    )
    await consumer.start()
    records: list[tuple[int, int, tuple[Any, ...]]] = []
    try:
        while len(records) < tiered.count:
            for batch in (await asyncio.wait_for(consumer.getmany(timeout_ms=1_000), 30)).values():
                for one in batch:
                    records.append((one.partition, one.offset, (one.key, one.value, [*one.headers], one.timestamp)))
    finally:
        await consumer.stop()
    tiered.check(records)


def test_librdkafka_reads_both_tiers_in_a_group_and_finds_times(tiered: Tiered) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": tiered.cluster.bootstrap,
            "group.id": f"g-{uuid.uuid4().hex[:8]}",
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 60_000,
            "fetch.wait.max.ms": 50,  # ListOffsets waits behind a fetch
        }
    )
    consumer.subscribe([tiered.topic])
    records: list[tuple[int, int, tuple[Any, ...]]] = []
    deadline = time.monotonic() + 90
    try:
        while len(records) < tiered.count and time.monotonic() < deadline:
            for one in consumer.consume(1_000, 1.0):
                assert one.error() is None, one.error()
                contents = (one.key(), one.value(), one.headers() or [], one.timestamp()[1])
                records.append((one.partition(), one.offset(), contents))
        tiered.check(records)
        wanted = {offset for start in tiered.local_starts for offset in (0, 7, start - 1, start, start + 5)}
        asked = [
            TopicPartition(tiered.topic, partition, tiered.produced[partition][offset][3])
            for partition in range(PARTITIONS)
            for offset in sorted(wanted)
        ]
        for one in asked:
            (found,) = consumer.offsets_for_times([one], 30)
            assert tiered.produced[one.partition][found.offset][3] == one.offset
        assert consumer.get_watermark_offsets(TopicPartition(tiered.topic, 0), 30) == (0, len(tiered.produced[0]))
    finally:
        consumer.close()


def test_broker_that_dies_while_old_offsets_are_read_costs_nothing(tiered: Tiered) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": tiered.cluster.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 20_000,
            "queued.max.messages.kbytes": 100,
            "topic.metadata.refresh.interval.ms": 500,
        }
    )
    consumer.assign([TopicPartition(tiered.topic, partition, 0) for partition in range(PARTITIONS)])
    records: list[tuple[int, int, tuple[Any, ...]]] = []
    victim, deadline = tiered.cluster.brokers[0], time.monotonic() + 90
    try:
        while len(records) < tiered.count and time.monotonic() < deadline:
            for one in consumer.consume(200, 0.5):
                if one.error() is None:
                    contents = (one.key(), one.value(), one.headers() or [], one.timestamp()[1])
                    records.append((one.partition(), one.offset(), contents))
            if victim.process is not None and len(records) > tiered.count / 4:
                victim.kill()
    finally:
        consumer.close()
        victim.start()
        victim.wait_ready()
    tiered.check(records)


@pytest.mark.peer
def test_java_reads_both_tiers_in_a_group(tiered: Tiered) -> None:
    try:
        jars = classpath()
    except PeerUnavailable as error:
        pytest.skip(str(error))
    command = [
        *("java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", jars, "org.apache.kafka.tools.consumer.ConsoleConsumer"),
        *("--bootstrap-server", tiered.cluster.bootstrap, "--topic", tiered.topic, "--from-beginning"),
        *("--group", f"g-{uuid.uuid4().hex[:8]}", "--max-messages", str(tiered.count), "--timeout-ms", "60000"),
        *("--property", "print.partition=true", "--property", "print.offset=true", "--property", "print.key=true"),
        *("--property", "print.timestamp=true", "--property", "print.value=false"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    read: list[list[tuple[bytes | None, int]]] = [[] for _ in range(PARTITIONS)]
    for line in done.stdout.splitlines():
        fields = dict(field.partition(":")[::2] for field in line.split("\t") if ":" in field)
        partition, offset = int(fields["Partition"]), int(fields["Offset"])
        assert offset == len(read[partition])
        key = line.split("\t")[-1]
        read[partition].append((None if key == "null" else key.encode(), int(fields["CreateTime"])))

    assert read == [[(key, timestamp) for key, _, _, timestamp in records] for records in tiered.produced]
