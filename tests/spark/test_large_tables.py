"""Five million records in Delta and Iceberg: exact for Spark SQL and DuckDB, before and after maintenance.

TIDEGATE_RECORDS changes their number.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import duckdb
import pytest

from bench.cluster import Cluster
from bench.spark_topics import PARTITIONS, Work, batches_of, fill
from tidegate.records.batch import Batch, Codec
from tidegate.records.record import read_records
from tidegate_pipeline.jobs.decode import DecodeJob
from tidegate_pipeline.jobs.job import JobContext
from tidegate_pipeline.jobs.progress import Display
from tidegate_pipeline.jobs.running import Run, run_all
from tidegate_pipeline.redis_access import connect
from tidegate_pipeline.settings import PipelineSettings
from tidegate_pipeline.tables.compaction import rewrite
from tidegate_pipeline.tables.folder import Form, files
from tidegate_pipeline.tables.iceberg_table import IcebergPlan
from tidegate_pipeline.tables.iceberg_upkeep import maintain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600)]

BATCH_RECORDS = 1_000
RECORDS = (
    int(os.environ.get("TIDEGATE_RECORDS", "5000000")) // (PARTITIONS * BATCH_RECORDS) * PARTITIONS * BATCH_RECORDS
)
WORK = Work("many", "100 B", 100, Codec.NONE, BATCH_RECORDS, RECORDS)
MICRO_BATCH_BYTES = 32 << 20
ICEBERG_TABLE = "lake.shop.many"


class Sums(NamedTuple):
    """Of a whole table. `offsets` and `bytes` are sums, `places` distinct pairs of partition and offset."""

    rows: int
    places: int
    offsets: int
    bytes: int


SQL = "count(*), count(DISTINCT t.partition * 1000000000000 + t.offset), sum(t.offset), sum(octet_length(t.value))"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(1) as running:
        fill(running.bootstrap, WORK)
        yield running


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_tables_of_millions_are_exact(spark: SparkSession, cluster: Cluster, tmp_path: Path, form: Form) -> None:
    table = ICEBERG_TABLE if form == "iceberg" else str(tmp_path / "many")
    settings = {"redis": {"url": cluster.redis_url}, "source": {"max_bytes_per_trigger": MICRO_BATCH_BYTES}}
    client = connect(cluster.redis_url)
    context = JobContext(
        spark, PipelineSettings.model_validate(settings), client, tmp_path / "checkpoint", {"availableNow": True}
    )
    run = Run(DecodeJob(WORK.topic, form, table), context)
    run_all([run], Display(quiet=True))
    client.close()
    assert run.error is None
    each = RECORDS // PARTITIONS
    expected = Sums(RECORDS, RECORDS, PARTITIONS * each * (each - 1) // 2, RECORDS * WORK.value_bytes)

    written = data_files(table, form)
    assert by_duckdb(written) == expected
    reported = maintain(table, timedelta()) if form == "iceberg" else rewrite(table, timedelta())
    kept = data_files(table, form)
    print(f"{form}: {run.summary()['rows_per_second']:,} rows/s, {len(written)} files, then {len(kept)}: {reported}")

    assert by_duckdb(kept) == expected
    assert by_spark(spark, kept) == (*expected, sum_of_crcs())
    assert len(kept) < len(written) / 4
    assert not [file for file in written if file not in kept and Path(file).exists()], "merged files are removed"


def data_files(table: str, form: Form) -> list[str]:
    """Those of the newest version."""
    if form == "delta":
        return [f"/{file.path.lstrip('/')}" for file in files(table)]
    opened = IcebergPlan(table).table()
    assert opened is not None
    return [task.file.file_path.removeprefix("file://") for task in opened.scan().plan_files()]


def by_duckdb(paths: Sequence[str]) -> Sums:
    with duckdb.connect() as database:
        row = database.execute(f"SELECT {SQL} FROM read_parquet(?) t", [list(paths)]).fetchone()
    assert row is not None
    return Sums(*map(int, row))


def by_spark(spark: SparkSession, paths: Sequence[str]) -> tuple[int, ...]:
    spark.read.parquet(*paths).createOrReplaceTempView("many")
    return tuple(map(int, spark.sql(f"SELECT {SQL}, sum(crc32(t.value)) FROM many t").collect()[0]))


def sum_of_crcs() -> int:
    """Of the values that were produced: the same batches again and again, to each partition."""
    batches = [
        sum(zlib.crc32(record.value or b"") for record in read_records(Batch.parse(batch)))
        for batch in batches_of(WORK)
    ]
    count = RECORDS // PARTITIONS // BATCH_RECORDS
    return PARTITIONS * sum(batches[number % len(batches)] for number in range(count))
