"""The formats `tidegate-events` and `tidegate-lag` in Spark: batch, micro-batches, a restart, what was lost."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.valkey import ValkeyServer
from tidegate.store.keys import ShardKeys, shard_of
from tidegate_pipeline.jobs.job import JobContext
from tidegate_pipeline.jobs.lag import LagJob
from tidegate_pipeline.settings import ArchiveSettings, LagSettings, PipelineSettings, RedisSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHARDS = 4
FIRST_MS = 1_700_000_000_000


@pytest.fixture
def client(client: Any) -> Any:
    """A server with the events of a cluster of four shards."""
    client.hset("tidegate:{cluster}:info", "coordinator_shards", SHARDS)
    return client


def happened(client: Any, group: str, *numbers: int) -> None:
    """Events of a group, one a second from `FIRST_MS`."""
    for number in numbers:
        at_ms = FIRST_MS + 1_000 * number
        fields = {"time": at_ms, "group": f"default/{group}", "generation": number, "kind": "stable", "members": 2}
        client.xadd(ShardKeys("tidegate", shard_of(group, SHARDS)).events, fields, id=f"{at_ms}-0")


def run_stream(frame: DataFrame, folder: Path) -> Any:
    """One AvailableNow run into Parquet; its micro-batches that had rows."""
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "table"))
    )
    assert query.awaitTermination(400)
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def test_events_in_batches_and_streams(spark: SparkSession, valkey: ValkeyServer, client: Any, tmp_path: Path) -> None:
    groups = ["a", "b", "c d"]
    assert len({shard_of(group, SHARDS) for group in groups}) == 3
    for group in ("a", "b"):
        happened(client, group, *range(1, 11))
    for number in range(1, 11):
        fields = {"time": FIRST_MS + number, "group": "other/c%20d", "generation": number, "kind": "novel", "x": "y"}
        client.xadd(ShardKeys("tidegate", shard_of("c d", SHARDS)).events, fields, id=f"{FIRST_MS + number}-0")

    batch = spark.read.format("tidegate-events").option("redis.url", valkey.url).load()
    assert {
        (r.org, r.group, r.event, r["count"]) for r in batch.groupBy("org", "group", "event").count().collect()
    } == {
        ("default", "a", "stable", 10),
        ("default", "b", "stable", 10),
        ("other", "c d", "novel", 10),
    }
    some = batch.where("group = 'c d' and generation > 7")
    assert [(r.generation, r.detail) for r in some.orderBy("generation").collect()] == [
        (8, {"x": "y"}),
        (9, {"x": "y"}),
        (10, {"x": "y"}),
    ]
    assert batch.where("group = 'a'").union(some).count() == 13  # one DataFrame, several filters
    narrow = spark.read.format("tidegate-events").options(**{"redis.url": valkey.url, "group": "c d"}).load()
    assert narrow.count() == 10
    assert narrow.rdd.getNumPartitions() == 1  # of one shard

    stream = (
        spark.readStream.format("tidegate-events")
        .options(**{"redis.url": valkey.url, "startingOffsets": "earliest", "maxEntriesPerTrigger": "12"})
        .load()
    )
    assert run_stream(stream, tmp_path) == [12, 12, 6]
    assert run_stream(stream, tmp_path) == []
    happened(client, "a", *range(11, 21))
    assert run_stream(stream, tmp_path) == [10]
    rows = spark.read.parquet(str(tmp_path / "table")).select("group", "id").collect()
    assert len(rows) == len(set(rows)) == 40

    offsets = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    last = json.loads(offsets[-1].read_text().splitlines()[-1])
    stream_of_a = ShardKeys("tidegate", shard_of("a", SHARDS)).events
    assert last[stream_of_a] == f"{FIRST_MS + 20_000}-0" and last["_counts"][stream_of_a] == 20

    happened(client, "a", *range(21, 31))
    client.xtrim(stream_of_a, maxlen=4, approximate=False)
    with pytest.raises(Exception, match=r"6 entries \(of 10 after .*\) were trimmed before they were read"):
        run_stream(stream, tmp_path)
    assert run_stream(stream_with(spark, valkey, failOnDataLoss="false"), tmp_path) == [4]
    client.delete(stream_of_a)
    with pytest.raises(Exception, match="was truncated"):
        run_stream(stream, tmp_path)


def sampled(client: Any, second: int, **offsets: tuple[int, int]) -> None:
    """A sample of the group `g`: for each topic what is committed for its partition 0, and the log's end."""
    at_ms = FIRST_MS + 1_000 * second
    texts = {
        f"{topic}:0": f"committed={committed} start=0 end={end} lag={max(end - committed, 0)} "
        f"committed_at={at_ms - 500} next_time={at_ms - 9_000 if end > committed else -1} head_time={at_ms - 1_000} "
        "member=m 1"
        for topic, (committed, end) in offsets.items()
    }
    client.xadd("tidegate:{cluster}:lag", {"time": at_ms, "group": "default/g", **texts}, id=f"{at_ms}-0")


def test_lag_history_is_the_same_in_one_run_and_in_many(
    spark: SparkSession, valkey: ValkeyServer, client: Any, tmp_path: Path
) -> None:
    def context(name: str) -> JobContext:
        settings = PipelineSettings(
            redis=RedisSettings(url=valkey.url),
            archive=ArchiveSettings(path=str(tmp_path / name)),
            lag=LagSettings(stuck_windows=3, watermark=30),
        )
        return JobContext(spark, settings, client, tmp_path / name / "checkpoint", {"availableNow": True})

    def run(name: str) -> object:
        assert LagJob().start(context(name)).awaitTermination(400)
        return LagJob().finish(context(name))["stuck"]

    entries = []
    for tens in range(40):
        sampled(client, tens * 10, moves=(tens * 5, tens * 6), positions=(7, 10 + tens))
        if tens in (3, 21):  # in the middle of a window, and before the watermark has passed the one before
            entries.append(LagJob().plan(context("pieces"))[0]["entries"])
            run("pieces")
    assert entries == [4, 18]
    stuck = run("pieces")
    assert run("whole") == stuck == ["default/g positions-0: 36 behind, unchanged for 6 windows"]
    assert LagJob().plan(context("whole")) == []

    tables = [spark.read.parquet(str(tmp_path / name / "lag")).collect() for name in ("pieces", "whole")]
    assert sorted(tables[0]) == sorted(tables[1]) and len(tables[0]) == 12
    rows = {(row.topic, (row.window_start.timestamp() * 1000 - FIRST_MS) // 1000): row for row in tables[0]}
    moves = rows["moves", 40]
    assert (moves.samples, moves.lag_min, moves.lag_max, moves.committed, moves.log_end) == (6, 4, 9, 45, 54)
    assert (moves.records_in_per_s, moves.records_out_per_s, moves.behind_s, moves.member) == (0.6, 0.5, 8.0, "m 1")
    positions = [row.stuck for (topic, _), row in sorted(rows.items()) if topic == "positions"]
    assert positions == [False, False, True, True, True, True]

    lag = spark.read.format("tidegate-lag").option("redis.url", valkey.url).load()
    assert [row.asDict() for row in lag.where("topic = 'moves' and group = 'g' and lag > 38").collect()] == [
        {
            "ts": datetime.fromtimestamp(FIRST_MS / 1000 + 390), "org": "default", "group": "g", "topic": "moves",
            "partition": 0, "committed": 195, "log_start": 0, "log_end": 234, "lag": 39, "member": "m 1",
            "committed_at": datetime.fromtimestamp(FIRST_MS / 1000 + 389.5),
            "next_timestamp": datetime.fromtimestamp(FIRST_MS / 1000 + 381),
            "head_timestamp": datetime.fromtimestamp(FIRST_MS / 1000 + 389),
        }
    ]  # fmt: skip


def stream_with(spark: SparkSession, valkey: ValkeyServer, **options: str) -> DataFrame:
    """The events as a stream."""
    source = spark.readStream.format("tidegate-events").option("redis.url", valkey.url)
    return source.options(**options).load()
