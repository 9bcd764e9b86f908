"""Random topics, read and written by Spark's Kafka connector and by the format `tidegate`: equal row by row.

TIDEGATE_SEED repeats a run. What may differ is in docs/pipeline.md: the offsets of the sinks' records, since the sink
`tidegate` writes in transactions and their markers take offsets.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from bench.cluster import Cluster
from tests.spark.sides import ours, theirs
from tests.support.machines import chosen_seed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
LARGE_BYTES: Final = 5_000_000
RECORD_BYTES_MAX: Final = "12000000"
SIDES: Final = (("theirs", theirs), ("ours", ours))


class Topics:
    """Topics `random-<n>` with records of random producers; what they write in aborted transactions is there too."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.chance = random.Random(seed)
        self.bootstrap = cluster.bootstrap
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        self.partitions: dict[str, int] = {}

    def create(self, name: str, partitions: int) -> None:
        time_type = self.chance.choice(["CreateTime", "LogAppendTime"])
        configs = {"max.message.bytes": RECORD_BYTES_MAX, "message.timestamp.type": time_type}
        for made in self.admin.create_topics([NewTopic(name, partitions, config=configs)]).values():
            made.result(60)
        self.partitions[name] = partitions

    def make_again(self, name: str) -> None:
        for done in self.admin.delete_topics([name]).values():
            done.result(60)
        self.create(name, self.chance.randint(1, 4))

    def add_partitions(self, name: str) -> None:
        self.partitions[name] += self.chance.randint(1, 2)
        for done in self.admin.create_partitions([NewPartitions(name, self.partitions[name])]).values():
            done.result(60)

    def write(self, name: str, producers: int, records: int) -> None:
        """By producers of random codecs, about half of them in transactions of which some are aborted."""
        for number in range(producers):
            settings: dict[str, Any] = {
                "bootstrap.servers": self.bootstrap, "compression.type": self.chance.choice(CODECS),
                "linger.ms": self.chance.choice([0, 20]), "message.max.bytes": int(RECORD_BYTES_MAX),
            }  # fmt: skip
            if self.chance.random() < 0.5:
                producer = Producer(settings | {"enable.idempotence": self.chance.random() < 0.5})
                self._produce(producer, name, records)
                assert producer.flush(120) == 0
                continue
            producer = Producer(settings | {"transactional.id": f"{name}-{number}-{self.chance.random()}"})
            producer.init_transactions(60)
            for _ in range(self.chance.randint(1, 3)):
                producer.begin_transaction()
                self._produce(producer, name, records // 2)
                if self.chance.random() < 0.5:
                    producer.commit_transaction(60)
                else:
                    producer.flush(60)  # so that there is something to abort
                    producer.abort_transaction(60)

    def write_extremes(self, name: str) -> None:
        """A record of 5 MB, one with 1,000 headers, an empty one, a tombstone."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "message.max.bytes": int(RECORD_BYTES_MAX)})
        many: list[tuple[str, bytes | None]] = [(f"h{i % 7}", None if i % 3 else b"%d" % i) for i in range(1_000)]
        producer.produce(name, self.chance.randbytes(LARGE_BYTES), b"large", 0)
        producer.produce(name, b"v", b"headers", 0, headers=many)
        producer.produce(name, b"", b"", 0)
        producer.produce(name, None, b"tombstone", 0)
        assert producer.flush(120) == 0

    def _produce(self, producer: Producer, name: str, records: int) -> None:
        chance = self.chance
        for _ in range(records):
            headers = [
                (chance.choice(["a", "é", ""]), chance.choice([None, b"", b"\x00\xff"]))
                for _ in range(chance.choice([0, 0, 1, 5]))
            ]
            producer.produce(
                name,
                chance.choice([None, b"", chance.randbytes(chance.choice([1, 12, 13, 400])), b"text" * 300]),
                chance.choice([None, b"", b"k%d" % chance.randrange(20)]),
                chance.randrange(self.partitions[name]),
                timestamp=int(time.time() * 1000) - chance.randrange(3_600_000),
                headers=headers or None,
            )
            producer.poll(0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2) as running:
        yield running


@pytest.fixture
def topics(cluster: Cluster) -> Topics:
    seed = chosen_seed()
    print(f"TIDEGATE_SEED={seed} repeats these topics")
    return Topics(cluster, seed)


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """By topic, partition and offset, with a digest for the value; every row of what is read."""
    columns = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "headers")
    found = frame.selectExpr(*columns, "length(value) size", "sha2(value, 256) digest").collect()
    return sorted((tuple(row) for row in found), key=lambda row: row[:3])


def records(frame: DataFrame) -> dict[int, list[tuple[Any, ...]]]:
    """By partition and in order, without what only a log knows."""
    found = dict[int, list[tuple[Any, ...]]]()
    for _, partition, _, _, _, *record in rows(frame):
        found.setdefault(partition, []).append(tuple(record))
    return found


def in_any_order(by_partition: dict[int, list[tuple[Any, ...]]]) -> dict[int, list[str]]:
    return {partition: sorted(map(repr, found)) for partition, found in by_partition.items()}


def read(side: Any, session: SparkSession, cluster: Cluster, topic: str, isolation: str) -> DataFrame:
    reader = side(session.read, cluster).option("kafka.isolation.level", isolation)
    frame: DataFrame = reader.option("subscribePattern", topic).load()
    return frame


def test_random_topics_are_read_equally(both: SparkSession, cluster: Cluster, topics: Topics, tmp_path: Path) -> None:
    for number in range(3):
        topics.create(f"random-{number}", topics.chance.randint(1, 4))
        topics.write(f"random-{number}", 4, 40)
    topics.write_extremes("random-0")
    topics.make_again("random-1")
    topics.write("random-1", 2, 30)

    committed = 0
    for isolation in ("read_committed", "read_uncommitted"):
        expected = rows(read(theirs, both, cluster, "random-.*", isolation))
        assert rows(read(ours, both, cluster, "random-.*", isolation)) == expected
        assert max(row[-2] or 0 for row in expected) == LARGE_BYTES
        assert max(len(row[-3] or ()) for row in expected) == 1_000
        assert len(expected) >= committed
        committed = len(expected)

    def run(name: str, side: Any) -> None:
        stream = side(both.readStream, cluster).option("kafka.isolation.level", "read_committed")
        query = (
            stream.options(subscribePattern="random-.*", startingOffsets="earliest", maxOffsetsPerTrigger="200").load()
            .writeStream.format("parquet").trigger(availableNow=True)
            .option("checkpointLocation", str(tmp_path / name / "checkpoint")).start(str(tmp_path / name / "rows"))
        )  # fmt: skip
        assert query.awaitTermination(400)

    for name, side in SIDES:
        run(name, side)
    topics.add_partitions("random-2")
    topics.create("random-new", 2)
    for topic in ("random-2", "random-new", "random-0"):
        topics.write(topic, 2, 30)
    for name, side in SIDES:
        run(name, side)
        run(name, side)  # the first one finds the new partitions
    by_side = [rows(both.read.parquet(str(tmp_path / name / "rows"))) for name, _ in SIDES]
    assert by_side[1] == by_side[0]
    assert by_side[1] == rows(read(ours, both, cluster, "random-.*", "read_committed"))


def test_random_rows_are_written_equally(both: SparkSession, cluster: Cluster, topics: Topics, tmp_path: Path) -> None:
    topics.create("rows", 3)
    topics.write("rows", 4, 60)
    topics.write_extremes("rows")
    for name in ("theirs", "ours"):
        for kind in ("batch", "keyed", "stream"):
            topics.create(f"{kind}-{name}", 3)

    def sink(writer: Any, name: str, topic: str) -> Any:
        writer = writer.format("kafka" if name == "theirs" else "tidegate")
        options = {"kafka.bootstrap.servers": cluster.bootstrap, "kafka.max.request.size": RECORD_BYTES_MAX}
        return writer.options(**options, topic=topic)

    written = ["key", "value", "headers", "partition"]
    for name, side in SIDES:
        source = read(side, both, cluster, "rows", "read_committed")
        sink(source.select(*written).write, name, f"batch-{name}").mode("append").save()
        keyed = source.where("key is not null").select("key", "value", "headers")
        sink(keyed.write, name, f"keyed-{name}").mode("append").save()
        stream = side(both.readStream, cluster).options(subscribe="rows", startingOffsets="earliest")
        query = (
            sink(stream.option("kafka.isolation.level", "read_committed").load().select(*written).writeStream, name,
                 f"stream-{name}")
            .option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True).start()
        )  # fmt: skip
        assert query.awaitTermination(400)

    source_records = records(read(theirs, both, cluster, "rows", "read_committed"))
    for kind in ("batch", "keyed", "stream"):
        expected = records(read(theirs, both, cluster, f"{kind}-theirs", "read_committed"))
        found = [records(read(side, both, cluster, f"{kind}-ours", "read_committed")) for _, side in SIDES]
        if kind == "keyed":  # tasks of several source partitions write to one partition: the order is by chance
            expected, *found = map(in_any_order, (expected, *found))
        else:
            assert expected == source_records
        assert found == [expected, expected]
