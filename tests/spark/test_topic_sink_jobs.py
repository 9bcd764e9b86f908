"""`format("tidegate")` as a sink in Spark: batch queries, and a stream whose micro-batch runs again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import PySparkException

from bench.cluster import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A broker with the topics `source` and `target`."""
    with Cluster(1) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        for made in admin.create_topics([NewTopic("source", 2), NewTopic("target", 3)]).values():
            made.result(30)
        yield running


def values(spark: SparkSession, cluster: Cluster, topic: str) -> list[str]:
    """What a topic has, as strings."""
    rows = spark.read.format("tidegate").option("redis.url", cluster.redis_url).option("subscribe", topic).load()
    return sorted(row.value for row in rows.selectExpr("cast(value as string) value").collect())


def test_batch_and_stream_write_each_record_once(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    written = spark.range(20).selectExpr("cast(id as string) key", "cast(id as string) value", "'source' topic")
    written.write.format("tidegate").mode("append").option("kafka.bootstrap.servers", cluster.bootstrap).save()
    expected = sorted(str(number) for number in range(20))
    assert values(spark, cluster, "source") == expected

    def run() -> None:
        rows = spark.readStream.format("tidegate").option("redis.url", cluster.redis_url).option("subscribe", "source")
        query = (
            rows.option("startingOffsets", "earliest").option("includeHeaders", "true").load()
            .select("key", "value", "headers")
            .writeStream.format("tidegate")
            .option("kafka.bootstrap.servers", cluster.bootstrap)
            .option("topic", "target")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )  # fmt: skip
        assert query.awaitTermination(400)

    run()
    assert values(spark, cluster, "target") == expected
    for name in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()  # as if the driver was killed after the sink's commit
    run()
    assert values(spark, cluster, "target") == expected


def test_wrong_rows_and_modes_are_one_line(spark: SparkSession, cluster: Cluster) -> None:
    rows = spark.range(1).selectExpr("id", "cast(id as string) value")
    sink = rows.write.format("tidegate").option("kafka.bootstrap.servers", cluster.bootstrap)
    with pytest.raises(PySparkException, match="UsageError: the rows have no column topic, and there is no opt"):
        sink.mode("append").save()
    with pytest.raises(PySparkException, match="UsageError: a topic cannot be overwritten: mode is append"):
        sink.option("topic", "target").mode("overwrite").save()
