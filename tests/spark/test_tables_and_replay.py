"""Decoded tables and replays in Spark: failed, restarted, without their checkpoint; each record once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from tests.support.markers import build_marker
from tests.support.topics import TIMESTAMP_MS, WrittenTopic
from tests.support.transactions import transactional
from tests.support.valkey import ValkeyServer
from tidegate.records.batch import Batch
from tidegate.records.build import NewRecord, build_batch
from tidegate.records.record import read_records
from tidegate.store.keys import ClusterKeys
from tidegate_pipeline.errors import PipelineError, UsageError
from tidegate_pipeline.jobs.decode import DecodeJob
from tidegate_pipeline.jobs.job import Job, JobContext
from tidegate_pipeline.jobs.replay import ReplayJob
from tidegate_pipeline.redis_access import connect, with_whole_entries
from tidegate_pipeline.replay.record_filter import parse_record_filter
from tidegate_pipeline.replay.translation import Table, translate
from tidegate_pipeline.session import register
from tidegate_pipeline.settings import PipelineSettings
from tidegate_pipeline.tables.compaction import compact
from tidegate_pipeline.tables.folder import Form, files
from tidegate_pipeline.tables.iceberg_table import IcebergPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS = 86_400_000


class Bench:
    """A topic of two partitions, and jobs that read it in micro-batches of a few batches."""

    def __init__(self, spark: SparkSession, url: str, folder: Path) -> None:
        self.spark, self.url, self.folder = spark, url, folder
        self.client = with_whole_entries(connect(url))
        self.client.flushall()
        replid = self.client.info("replication")["master_replid"]
        self.client.hset(ClusterKeys("tidegate").info, mapping={"master_replid": replid, "incarnation": 1})
        self.topic = WrittenTopic(self.client, "orders", 2)
        self.expected: list[tuple[int, int]] = []

    def fill(self, batches: int, partition: int = 0) -> None:
        """Batches of 3 records whose value is their offset; a day lies between two batches."""
        for _ in range(batches):
            base = self.topic.ends.get(partition, 0)
            records = [
                NewRecord(
                    b"%d" % (base + i), b"k%d" % ((base + i) % 5), TIMESTAMP_MS + base // 9 * DAY_MS, [("h", b"x")]
                )
                for i in range(3)
            ]
            self.topic.append(build_batch(records), partition=partition)
            self.expected += [(partition, base + i) for i in range(3)]

    def run(self, job: Job, **source: str) -> JobContext:
        """To its end; raises what it failed with."""
        settings = {
            "redis": {"url": self.url, "retry_s": 2},
            "archive": {"path": str(self.folder / "archive")},
            "source": {"max_bytes_per_trigger": 1_500, **source},
        }
        context = JobContext(
            register(self.spark.newSession()), PipelineSettings.model_validate(settings), self.client,
            self.folder / "checkpoints" / job.query_name, {"availableNow": True},
        )  # fmt: skip
        query = job.start(context)
        assert query.awaitTermination(400)
        return context


@pytest.fixture
def bench(spark: SparkSession, valkey: ValkeyServer, tmp_path: Path) -> Iterator[Bench]:
    opened = Bench(spark, valkey.url, tmp_path)
    yield opened
    opened.client.close()


def forget_commits(bench: Bench, job: Job, count: int) -> None:
    """As if the driver had died between the sink's commit and Spark's: the last micro-batches run again."""
    commits = bench.folder / "checkpoints" / job.query_name / "commits"
    newest = sorted((int(path.name) for path in commits.iterdir() if path.name.isdecimal()), reverse=True)
    for number in newest[:count]:
        (commits / str(number)).unlink()
        (commits / f".{number}.crc").unlink(missing_ok=True)


def test_parquet_table_and_its_clean_copy(bench: Bench) -> None:
    job = DecodeJob("orders", "parquet")
    bench.fill(5)
    bench.fill(3, partition=1)
    context = bench.run(job)
    assert [(row["from"], row["to"]) for row in job.plan(context)] == [(0, 15), (0, 9)]
    bench.fill(2)
    forget_commits(bench, job, 1)
    context = bench.run(job)

    table = job.table(context)
    rows = context.spark.read.parquet(table)
    found = rows.select("partition", "offset", "value", "day").collect()
    assert sorted((row.partition, row.offset) for row in found) == sorted(bench.expected)
    assert all(int(row.value) == row.offset for row in found)
    assert {str(row.day) for row in found} == {"2023-11-14", "2023-11-15", "2023-11-16"}
    reported = job.finish(context)
    assert reported["files"] == len(files(table)) > 3
    Path(table, "day=2023-11-14", "part-of-a-killed-task.parquet").touch()

    copied = compact(table, None, str(bench.folder / "archive"), 0)
    assert (copied["rows"], copied["copy_files"]) == (len(bench.expected), 3)
    copy = ds.dataset(copied["copy"], partitioning="hive").to_table()
    places = zip(copy["partition"].to_pylist(), copy["offset"].to_pylist(), strict=True)
    assert sorted(places) == sorted(bench.expected)
    assert str(copy.schema.field("timestamp").type).startswith("timestamp[us")

    shutil.rmtree(context.checkpoint)
    with pytest.raises(UsageError, match="Spark would pass over new records"):
        bench.run(job)
    with pytest.raises(UsageError, match="is a table in parquet"):
        bench.run(DecodeJob("orders", "delta"))


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_table_partitioned_by_hour_and_topic(bench: Bench, form: Form) -> None:
    job = DecodeJob("orders", form, partition_by="hour(timestamp),topic")
    bench.fill(8)
    context = bench.run(job)
    table = job.table(context)
    if form == "parquet":
        rows = context.spark.read.parquet(table).toPandas()
        table = compact(table, None, str(bench.folder / "archive"), 0)["copy"]
        found = ds.dataset(table, partitioning="hive").to_table()
        assert list(rows["offset"].sort_values()) == list(range(24))
        assert set(rows["hour"]) == {"2023-11-14-22", "2023-11-15-22", "2023-11-16-22"}
    else:
        found = DeltaTable(table).to_pyarrow_table()
    hours = zip(found["offset"].to_pylist(), map(str, found["hour"].to_pylist()), strict=True)
    assert sorted(hours) == [(at, f"2023-11-{14 + at // 9}-22") for at in range(24)]
    assert set(found["topic"].to_pylist()) == {"orders"}

    bench.fill(1)
    with pytest.raises(UsageError, match="is partitioned by hour, topic, not by day"):
        bench.run(DecodeJob("orders", form))
    bench.run(job)
    assert len(files(job.table(context))) > 3


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_upserted_table_has_the_newest_record_of_each_key(bench: Bench, form: Form) -> None:
    job = DecodeJob("orders", form, "lake.shop.newest" if form == "iceberg" else None, upsert=True)
    bench.fill(5)
    bench.fill(3, partition=1)
    context = bench.run(job)
    assert newest_rows(job, context) == newest_of(bench)

    bench.topic.append(build_batch([NewRecord(None, b"k1"), NewRecord(b"16", b"k2")]))
    bench.fill(2, partition=1)
    forget_commits(bench, job, 1)
    context = bench.run(job)
    expected = newest_of(bench)
    del expected[0, b"k1"]
    expected[0, b"k2"] = 16
    assert newest_rows(job, context) == expected

    shutil.rmtree(context.checkpoint)
    bench.fill(1, partition=1)
    context = bench.run(job)
    expected |= {place: offset for place, offset in newest_of(bench).items() if place[0] == 1}
    assert newest_rows(job, context) == expected
    assert [row["offsets"] for row in job.plan(context)] == [0, 0]


@pytest.mark.parametrize("form", ["parquet", "delta", "iceberg"])
def test_several_topics_become_one_table(bench: Bench, form: Form, tmp_path: Path) -> None:
    table = "lake.shop.several" if form == "iceberg" else str(tmp_path / "several")
    job = DecodeJob("payments,orders", form, table)
    bench.fill(3)
    payments = WrittenTopic(bench.client, "payments")
    payments.fill([4])
    bench.run(job)
    payments.fill([2])
    bench.fill(1, partition=1)
    context = bench.run(job)

    if form == "parquet":
        found = [
            (row.topic, row.offset) for row in context.spark.read.parquet(table).select("topic", "offset").collect()
        ]
    else:
        opened = IcebergPlan(table).table() if form == "iceberg" else None
        rows = opened.scan().to_arrow() if opened is not None else DeltaTable(table).to_pyarrow_table()
        found = [(row["topic"], row["offset"]) for row in rows.select(["topic", "offset"]).to_pylist()]
    expected = [("orders", offset) for _, offset in bench.expected] + [("payments", offset) for offset in range(6)]
    assert sorted(found) == sorted(expected)
    plan = [(row["topic"], row["partition"], row["to"]) for row in job.plan(context)]
    assert plan == [("orders", 0, 9), ("orders", 1, 3), ("payments", 0, 6)]


def newest_of(bench: Bench) -> dict[tuple[int, bytes], int]:
    """Partition and key of what `fill` appended -> greatest offset."""
    return {(partition, b"k%d" % (offset % 5)): offset for partition, offset in bench.expected}


def newest_rows(job: DecodeJob, context: JobContext) -> dict[tuple[int, bytes], int]:
    table = job.table(context)
    if table.startswith("lake."):
        opened = IcebergPlan(table).table()
        assert opened is not None
        found = opened.scan().to_arrow()
    else:
        found = DeltaTable(table).to_pyarrow_table()
    rows = found.select(["partition", "key", "offset", "value"]).to_pylist()
    assert all(int(row["value"]) == row["offset"] for row in rows)
    assert len({(row["partition"], row["key"]) for row in rows}) == len(rows)
    return {(row["partition"], row["key"]): row["offset"] for row in rows}


def test_delta_table_survives_its_checkpoint(bench: Bench) -> None:
    job = DecodeJob("orders", "delta")
    bench.fill(5)
    bench.fill(3, partition=1)
    context = bench.run(job)
    shutil.rmtree(context.checkpoint)
    bench.fill(2, partition=1)
    assert [(row["from"], row["to"]) for row in job.plan(context)] == [(15, 15), (9, 15)]
    bench.run(job)

    table = DeltaTable(job.table(context))
    rows = table.to_pyarrow_table()
    places = sorted(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))
    assert places == sorted(bench.expected)
    assert {len(partition) for partition in table.partitions()} == {1}
    assert rows["headers"].to_pylist()[0] == [{"key": "h", "value": b"x"}]
    before = len(files(job.table(context)))
    compact(job.table(context), None, "", 0)
    assert len(files(job.table(context))) == 2 < before, "one a day"
    assert DeltaTable(job.table(context)).to_pyarrow_table().num_rows == len(bench.expected)


def test_tables_and_replays_have_committed_records_only(bench: Bench) -> None:
    """A table and a copy know no transactions: aborted records would look like the others and stay."""

    def records(producer_id: int, value: bytes) -> bytes:
        return transactional(build_batch([NewRecord(value)], producer_id=producer_id, producer_epoch=0))

    def marker(producer_id: int, committed: bool) -> bytes:
        return build_marker(
            producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, committed=committed, timestamp_ms=5
        )

    target = WrittenTopic(bench.client, "copy", 2)
    for partition in (0, 1):
        bench.client.execute_command("XGROUP", "CREATE", target.keys(partition).log, "made", "0-0", "MKSTREAM")
    bench.topic.append(build_batch([NewRecord(b"plain")]), records(7, b"aborted"), marker(7, False))  # 0; 1; 2
    bench.topic.append(records(7, b"first"), records(8, b"later"), marker(7, True))  # 3; 4; 5: 8 is open
    decode, replay = DecodeJob("orders", "delta"), ReplayJob("orders", "copy")

    table = bench.run(decode)
    bench.run(replay)
    assert DeltaTable(decode.table(table)).to_pyarrow_table()["value"].to_pylist() == [b"plain", b"first"]
    assert values(bench, target, 0) == [b"plain", b"first"]

    bench.topic.append(marker(8, True), build_batch([NewRecord(b"last")]))
    bench.run(decode)
    bench.run(replay)
    everything = [b"plain", b"first", b"later", b"last"]
    assert sorted(DeltaTable(decode.table(table)).to_pyarrow_table()["value"].to_pylist()) == sorted(everything)
    assert values(bench, target, 0) == everything
    as_it_is = DecodeJob("orders", "delta", str(bench.folder / "as-it-is"))
    shutil.rmtree(bench.folder / "checkpoints" / as_it_is.query_name)
    bench.run(as_it_is, isolation="read_uncommitted")
    assert DeltaTable(bench.folder / "as-it-is").to_pyarrow_table().num_rows == 5


def test_replay_that_fails_and_runs_again(bench: Bench) -> None:
    target = WrittenTopic(bench.client, "copy", 2)
    spread = WrittenTopic(bench.client, "spread", 3)
    for topic, partitions in ((target, 2), (spread, 3)):
        for partition in range(partitions):
            bench.client.execute_command("XGROUP", "CREATE", topic.keys(partition).log, "made", "0-0", "MKSTREAM")
    bench.fill(8)
    bench.fill(4, partition=1)
    job = ReplayJob("orders", "copy")
    with pytest.raises(PipelineError, match=r"set archive\.path"):
        Table("", "copy", "orders", "00", "copy")

    bench.client.hset(target.keys(1).meta, "state", "deleted")  # half of it fails
    with pytest.raises(Exception, match="the target is gone"):
        bench.run(job)
    bench.client.hset(target.keys(1).meta, "state", "ready")
    context = bench.run(job)
    target.ends = {0: 24}
    target.append(build_batch([NewRecord(b"between")]))  # a broker's
    bench.fill(2)
    shutil.rmtree(context.checkpoint)
    bench.run(job)

    assert values(bench, target, 0) == [b"%d" % i for i in range(24)] + [b"between"] + [
        b"%d" % i for i in range(24, 30)
    ]
    assert values(bench, target, 1) == [b"%d" % i for i in range(12)]
    table = Table(str(bench.folder / "archive"), "orders-to-copy", "orders", bench.topic.topic_id, "copy")
    rows = {partition: table.read(partition) for partition in (0, 1)}
    assert [translate(rows, {0: offset})[0] for offset in range(31)] == [*range(24), *range(25, 32)]
    assert [translate(rows, {1: offset})[1] for offset in range(13)] == list(range(13))
    assert job.finish(context)["written_up_to"] == {"0": 29, "1": 11}
    assert [row["written_up_to"] for row in job.plan(context)] == [29, 11]

    by_key = ReplayJob(
        "orders",
        "spread",
        record_filter=parse_record_filter("0:4-20", None, None),
        repartition=True,
        records_per_s=2_000,
    )
    bench.run(by_key)
    found = [values(bench, spread, partition) for partition in range(3)]
    assert sorted(int(value) for of_one in found for value in of_one) == list(range(4, 20))
    assert all(of_one == sorted(of_one, key=int) for of_one in found)
    with pytest.raises(UsageError, match="orders has 2 partitions, spread 3"):
        bench.run(ReplayJob("orders", "spread", "other"))


def values(bench: Bench, topic: WrittenTopic, partition: int) -> list[bytes | None]:
    """The values of a log in order; offsets are dense."""
    found: list[bytes | None] = []
    for entry_id, fields in bench.client.execute_command("XRANGE", topic.keys(partition).log, "-", "+"):
        assert entry_id == b"%d-1" % len(found)
        for stored in fields[3::2]:
            found += [record.value for record in read_records(Batch.parse(stored))]
    return found
