"""Exactly once, whatever is killed when: what clients had acknowledged is in the archive and in each table, once.

One session runs the archive job and a table of each form, so a kill interrupts all of them. TIDEGATE_SEED repeats the
moments, TIDEGATE_KILLS their number, TIDEGATE_KILL_SECONDS ends them earlier.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow.dataset as ds
import pytest

from bench.cluster import Cluster
from tests.spark.killing import JobUnderTest, Producing, Row, Sums, killed_often
from tests.support.iceberg import catalog_environment
from tests.support.machines import chosen_seed
from tidegate.records.batch import Batch
from tidegate.records.record import read_records
from tidegate.records.segment_file import SegmentFile
from tidegate_pipeline.archive.index import ArchiveIndex
from tidegate_pipeline.archive.segment_writer import ArchiveFolder
from tidegate_pipeline.archive.selection import places
from tidegate_pipeline.archive.upkeep import Upkeep
from tidegate_pipeline.redis_access import Client, connect
from tidegate_pipeline.settings import PipelineSettings
from tidegate_pipeline.tables.folder import files, form_of
from tidegate_pipeline.tables.iceberg_table import IcebergPlan
from tidegate_pipeline.topics import read_topics

TOPIC: Final = "killed"
PARTITIONS: Final = 3
ICEBERG_TABLE: Final = "lake.shop.killed"
KILLS: Final = int(os.environ.get("TIDEGATE_KILLS", "20"))

CONFIG: Final = """
[archive]
segment_bytes = 65536
segment_seconds = 0
row_group_bytes = 16384
[spark]
"spark.master" = "local[2]"
"spark.driver.memory" = "1g"
"spark.ui.enabled" = "false"
[jobs.archive]
topics = "killed"
[jobs.parquet]
verb = "decode"
topic = "killed"
to = "parquet"
table = "{folder}/parquet"
[jobs.delta]
verb = "decode"
topic = "killed"
to = "delta"
table = "{folder}/delta"
partition_by = "hour(timestamp),partition"
[jobs.iceberg]
verb = "decode"
topic = "killed"
to = "iceberg"
table = "lake.shop.killed"
"""


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.usefixtures("java")
def test_archive_and_tables_have_every_record_once_after_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = chosen_seed()
    print(f"TIDEGATE_SEED={seed} repeats these {KILLS} kills")
    for name in ("parquet", "delta"):
        (tmp_path / name).mkdir()
    (tmp_path / "pipeline.toml").write_text(CONFIG.format(folder=tmp_path))
    for name, value in catalog_environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    tables = [str(tmp_path / "parquet"), str(tmp_path / "delta"), ICEBERG_TABLE]
    with Cluster(brokers=2) as cluster:
        client = connect(cluster.redis_url)
        job = JobUnderTest(
            command=[
                sys.executable, "-m", "tidegate", "pipeline", "run", "--config", str(tmp_path / "pipeline.toml"),
            ],
            environment={
                "TIDEGATE_REDIS_URL": cluster.redis_url,
                "TIDEGATE_ARCHIVE_PATH": str(tmp_path / "archive"),
                "TIDEGATE_PIPELINE_CHECKPOINT_PATH": str(tmp_path / "checkpoints"),
                "TIDEGATE_PIPELINE_SOURCE_MAX_BYTES_PER_TRIGGER": "200000",
                "XDG_STATE_HOME": str(tmp_path / "state"),
            },
            progress=lambda: [
                tuple(index.state().end for index in indexes(client)), *(newest_version(table) for table in tables)
            ],
            log=tmp_path / "job.log",
        )  # fmt: skip
        producing = Producing(cluster.bootstrap, TOPIC, PARTITIONS, seed)
        producing.create_topic({"retention.ms": "-1"})

        with producing:
            lived_s = killed_often(job, KILLS, seed, more=("--every", "50ms"))
        job.environment["TIDEGATE_PIPELINE_SOURCE_MAX_BYTES_PER_TRIGGER"] = str(64 << 20)
        job.run_to_the_end("--once", timeout_s=600)

        settings = PipelineSettings.model_validate({"archive": {"path": str(tmp_path / "archive")}})
        upkeep = Upkeep.of(settings, client)
        archived, verified = Sums.of(archived_rows(upkeep.archive, client)), upkeep.verify([])
        print(f"{len(lived_s)} kills; archive: {archived}; lived {[round(one, 1) for one in lived_s]} s; {verified}")

    acknowledged = producing.acknowledged
    assert archived == acknowledged
    assert archived.rows == archived.distinct > 0
    assert verified["problems"] == []
    assert verified["records"] == archived.rows
    for table in tables:
        counted = [file.removeprefix("file://") for file in table_files(table)]
        found = Sums.of(table_rows(table, counted))
        print(f"{table}: {found}; {len(counted)} files count")
        assert found == acknowledged, table


def indexes(client: Client) -> list[ArchiveIndex]:
    topics = read_topics(client, "tidegate", "default")
    return [ArchiveIndex(client, place.keys("tidegate")) for place in places([topics[TOPIC]])]


def archived_rows(archive: ArchiveFolder, client: Client) -> Iterator[Row]:
    """Every record that the archive has, by its index."""
    for partition, index in enumerate(indexes(client)):
        for segment in index.all_segments():
            file = SegmentFile(archive.filesystem, archive.path(segment.file))
            for group in map(file.read, range(len(file.row_groups))):
                for at in range(len(group)):
                    for record in read_records(Batch.parse(group.batch(at))):
                        yield partition, record.offset, record.value or b""


def table_files(table: str) -> list[str]:
    """The data files that count."""
    if table != ICEBERG_TABLE:
        return [file.path for file in files(table)]
    opened = IcebergPlan(table).table()
    assert opened is not None
    return [task.file.file_path for task in opened.scan().plan_files()]


def table_rows(table: str, counted: list[str]) -> Iterator[Row]:
    """Of those files; the Delta table has the topic partition in its folders' names."""
    rows = ds.dataset(counted, format="parquet", partitioning="hive").to_table()
    names = ("partition", "offset", "value")
    return zip(*(rows[name].to_pylist() for name in names), strict=True)


def newest_version(table: str) -> int:
    """Micro-batches that the table's log has."""
    if table == ICEBERG_TABLE:
        opened = IcebergPlan(table).table()
        return -1 if opened is None else len(opened.snapshots())
    log = {"parquet": "_spark_metadata", "delta": "_delta_log", None: "none"}[form_of(table)]
    return max((int(name.name.partition(".")[0]) for name in (Path(table) / log).glob("[0-9]*")), default=-1)
