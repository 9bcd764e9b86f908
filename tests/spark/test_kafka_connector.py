"""Spark's Kafka connector over our brokers, and the source `tidegate` over their Redis: equal rows and schema."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from confluent_kafka import Producer

from bench.cluster import Cluster
from tests.spark.sides import ours, theirs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamReader

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]

CODECS: Final = (None, "gzip", "snappy", "lz4", "zstd")
PARTITIONS: Final = 3
RECORDS: Final = 60
TOPICS: Final = {"orders": {}, "logged": {"message.timestamp.type": "LogAppendTime"}}
STARTED_MS: Final = int(time.time() * 1000)
"""Retention would remove older records."""
EXPECTED: Final = len(TOPICS) * RECORDS * (len(CODECS) + 1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two brokers; two topics with records of every codec, nulls, headers, of an idempotent producer too."""
    with Cluster(2) as running:
        asyncio.run(fill(running.bootstrap))
        fill_idempotently(running.bootstrap)
        yield running


async def fill(bootstrap: str) -> None:
    """Create the topics; a producer for each codec."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics(
        [NewTopic(name, PARTITIONS, 1, topic_configs=configs) for name, configs in TOPICS.items()]
    )
    await admin.close()
    for codec in CODECS:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, compression_type=codec) as producer:
            for topic in TOPICS:
                for index in range(RECORDS):
                    await producer.send(topic, **record(index), partition=index % PARTITIONS)


def fill_idempotently(bootstrap: str) -> None:
    """The same records again, of librdkafka's idempotent producer."""
    idempotent = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "zstd"})
    for topic in TOPICS:
        for index in range(RECORDS):
            reported = record(index)
            idempotent.produce(
                topic,
                reported["value"],
                reported["key"],
                index % PARTITIONS,
                timestamp=reported["timestamp_ms"],
                headers=reported["headers"],
            )
    assert idempotent.flush(60) == 0


def record(index: int) -> dict[str, Any]:
    """Keys and values from null to larger than Arrow's inline ones, headers on some, one with a null value."""
    return {
        "key": [b"", None, b"k" * 12, b"k" * 13][index % 4],
        "value": [b"value" * index, b"", None][index % 3] if index % 4 != 1 else b"v",
        "timestamp_ms": STARTED_MS - 7 * (RECORDS - index),
        "headers": [("name", b"%d" % index), ("name", b""), ("é", b"\x00\xff")][: index % 5 % 4],
    }


def rows(frame: DataFrame) -> list[Any]:
    """What a query gives, by topic, partition and offset."""
    return sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def test_equal_rows_and_schema(both: SparkSession, cluster: Cluster):
    everything = {"subscribe": ",".join(TOPICS)}
    a_part = {
        "assign": '{"orders":[0,2]}',
        "startingOffsets": '{"orders":{"0":7,"2":-2}}',
        "endingOffsets": '{"orders":{"0":-1,"2":61}}',
    }
    timed = {
        "subscribe": "orders",
        "startingTimestamp": str(STARTED_MS - 7 * 31),
        "endingOffsetsByTimestamp": json.dumps({"orders": dict.fromkeys("012", STARTED_MS - 7 * 2)}),
    }
    for options, count in ((everything, EXPECTED), (a_part, None), (timed, None)):
        expected = theirs(both.read, cluster).options(**options).load()
        found = ours(both.read, cluster).options(**options).load()

        assert found.schema == expected.schema
        assert rows(found) == rows(expected)
        assert count is None or found.count() == count

    without = ours(both.read, cluster).options(**everything, includeHeaders="false").load()
    assert without.schema.names == expected.schema.names[:-1]


def test_equal_streams(both: SparkSession, cluster: Cluster, tmp_path: Path):
    options = {"subscribePattern": "ord.*|logged", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "500"}
    written = {}
    for name, reader in (("theirs", theirs), ("ours", ours)):
        stream: DataStreamReader = reader(both.readStream, cluster).options(**options)
        query = (
            stream.load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / name / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / name / "rows"))
        )
        assert query.awaitTermination(400)
        written[name] = both.read.parquet(str(tmp_path / name / "rows"))

    assert written["ours"].schema == written["theirs"].schema
    assert rows(written["ours"]) == rows(written["theirs"])
