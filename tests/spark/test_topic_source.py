"""`format("tidegate")` in Spark: batch queries, streams, filters, errors; the rest is tested without Spark."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from bench.cluster import free_port
from tests.support.scraping import Scrape
from tests.support.topics import TIMESTAMP_MS, WrittenTopic
from tests.support.valkey import ValkeyServer
from tidegate.records.batch import Batch
from tidegate_pipeline.query_metrics import serve_metrics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


def ended(query: StreamingQuery) -> StreamingQuery:
    """A query that came to its end without a failure."""
    assert query.awaitTermination(400)
    assert query.exception() is None
    return query


def test_batch_queries_and_their_filters(spark: SparkSession, client: Any, valkey: ValkeyServer) -> None:
    topic = WrittenTopic(client, "orders", 2)
    topic.fill([3, 2, 5])
    topic.fill([7, 1], partition=1)
    WrittenTopic(client, "payments").fill([4])
    options = {"redis.url": valkey.url, "subscribePattern": ".*", "MODE": "raw"}

    raw = spark.read.format("tidegate").options(**options).load().where("topic = 'orders'")
    rows = raw.orderBy("partition", "base_offset").collect()
    assert [(row.partition, row.base_offset, row.last_offset, row.records) for row in rows] == [
        (0, 0, 2, 3), (0, 3, 4, 2), (0, 5, 9, 5), (1, 0, 6, 7), (1, 7, 7, 1),
    ]  # fmt: skip
    served = Batch.parse(bytes(rows[2].batch))
    assert (served.base_offset, served.leader_epoch, served.crc) == (5, 0, rows[2].crc)
    served.verify_crc()

    records = spark.read.format("tidegate").options(**{**options, "MODE": "decoded"}).load()
    orders = records.where("topic in ('orders') and partition >= 0")
    found = orders.orderBy("partition", "offset").collect()
    assert [(row.partition, row.offset) for row in found] == [
        *((0, offset) for offset in range(10)), *((1, offset) for offset in range(8)),
    ]  # fmt: skip
    assert found[0].asDict() == {
        "key": None, "value": bytearray(b"v"), "topic": "orders", "partition": 0, "offset": 0,
        "timestamp": datetime.fromtimestamp(TIMESTAMP_MS / 1000), "timestampType": 0,
    }  # fmt: skip
    assert [records.count(), orders.count(), records.count(), orders.union(records.where("partition = 1")).count()] == [
        22, 18, 22, 26,
    ], "one DataFrame, several filters"  # fmt: skip

    topic.fill([2], partition=1)
    assert [records.count(), orders.count()] == [24, 20], "what is new is in the second query of a DataFrame"

    def pushed() -> DataFrame:
        return spark.read.format("tidegate").options(**{**options, "MODE": "decoded"}, pushFilters="true").load()

    some = pushed().where("topic = 'orders' and partition = 1 and offset between 2 and 6 and offset <> 4")
    assert [row.offset for row in some.collect()] == [2, 3, 5, 6]
    assert some.rdd.getNumPartitions() == 1
    above_scan = some._jdf.queryExecution().executedPlan().toString().partition("BatchScan")[0]
    assert "offset#" in above_scan
    assert ">=" not in above_scan, "Spark does not compare again what the source kept to"
    late = (
        pushed()
        .where(f"topic = 'orders' and timestamp >= timestamp_millis({TIMESTAMP_MS + 4})")
        .select("partition", "offset")
    )
    assert sorted(map(tuple, late.collect())) == [(0, 5), (0, 6), (0, 7), (0, 8), (0, 9), (1, 7), (1, 8), (1, 9)]
    assert pushed().where("partition = 9").collect() == []


def test_latest_offsets_of_a_query_are_remembered_by_task(
    spark: SparkSession, client: Any, valkey: ValkeyServer
) -> None:
    topic = WrittenTopic(client, "orders", 2)
    topic.fill([3])
    orders = spark.read.format("tidegate").option("redis.url", valkey.url).option("subscribe", "orders").load()

    assert orders.groupBy("partition").count().count() == 1
    topic.fill([2], partition=1)
    assert orders.groupBy("partition").count().count() == 2

    ends = sorted(client.get(key) for key in client.scan_iter("*query-ends*"))
    assert [len(json.loads(end)) for end in ends] == [0, 1], "the second query found what was added"


def test_stream_of_raw_batches_is_sliced_into_micro_batches_and_idles(
    spark: SparkSession, client: Any, valkey: ValkeyServer, tmp_path: Path
) -> None:
    topic = WrittenTopic(client, "orders", 2)
    topic.fill([3, 2, 5])
    topic.fill([7, 1], partition=1)
    stream = (
        spark.readStream.format("tidegate")
        .options(**{"redis.url": valkey.url}, subscribe="orders", mode="raw", includeRange="true")
        .options(startingOffsets="archive", maxBytesPerTrigger="100")
        .load()
        .writeStream.format("memory")
        .queryName("raw_rows")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    port = free_port()
    listener = serve_metrics(spark, f"127.0.0.1:{port}")

    query = ended(stream.trigger(availableNow=True).start())
    assert scraped_at_end(port, "raw_rows") == {"rows_total": 5, "micro_batches_total": 3, "query_failures_total": 0}
    spark.streams.removeListener(listener)
    read = spark.sql("select partition, from_offset, last_offset, topic_id from raw_rows order by 1, 2").collect()
    assert [tuple(row)[:3] for row in read] == [(0, 0, 2), (0, 3, 4), (0, 5, 9), (1, 0, 6), (1, 7, 7)]
    assert {row.topic_id for row in read} == {topic.topic_id}
    assert [progress.numInputRows for progress in query.recentProgress] == [2, 2, 1]

    def offset_files() -> list[str]:
        return sorted(path.name for path in (tmp_path / "checkpoint/offsets").iterdir() if path.name.isdecimal())

    written = offset_files()
    assert written == ["0", "1", "2"]
    continued = (
        spark.readStream.format("tidegate").options(**{"redis.url": valkey.url}, subscribe="orders", mode="raw")
        .option("includeRange", "true").load().writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(processingTime="100 milliseconds")
    )  # fmt: skip
    idle = continued.start()
    try:
        for _ in range(3):
            idle.processAllAvailable()
        assert offset_files() == written, "idle triggers write no offsets"
        topic.fill([1])
        topic.grow(3)
        topic.fill([2], partition=2)
        idle.processAllAvailable()
        idle.processAllAvailable()
        assert idle.lastProgress is not None
        assert sum(progress.numInputRows for progress in idle.recentProgress) == 2
    finally:
        idle.stop()
    topic.raise_log_start(10)
    topic.fill([4])
    topic.delete()
    WrittenTopic(client, "orders", 3).fill([1])
    again = continued.start()
    with pytest.raises(PySparkException, match="topic orders was deleted and made again"):
        again.processAllAvailable()


def scraped_at_end(port: int, query: str) -> dict[str, float]:
    """Some metrics of a query, when the listener knows that it ended."""
    deadline = time.monotonic() + 60
    while True:
        scrape = Scrape.from_url(f"http://127.0.0.1:{port}/metrics")
        if scrape.all("tidegate_pipeline_query_active", query=query) and not scrape.one(
            "tidegate_pipeline_query_active", query=query
        ):
            break
        assert time.monotonic() < deadline, "the end of the query is not reported"
        time.sleep(0.05)
    assert scrape.one("tidegate_pipeline_offsets_behind_latest_max", query=query) == 0
    names = ("rows_total", "micro_batches_total", "query_failures_total")
    return {name: scrape.one(f"tidegate_pipeline_{name}", query=query) for name in names}


def test_invalid_options_are_reported_at_load(spark: SparkSession, client: Any, valkey: ValkeyServer) -> None:
    WrittenTopic(client, "orders").fill([1])
    source = spark.read.format("tidegate").option("redis.url", valkey.url)

    with pytest.raises(PySparkException, match="unknown option of tidegate: topics"):
        source.options(**{"topics": "orders"}).load()
    with pytest.raises(PySparkException, match="exactly one of subscribe, subscribePattern"):
        spark.readStream.format("tidegate").load()
    with pytest.raises(PySparkException, match="no such topic in organisation default: payments"):
        spark.read.format("tidegate").options(**{"redis.url": valkey.url}, subscribe="payments").load().collect()
