"""Exactly once, whatever is killed when: what clients were told is stored is in the decoded table, each record once.

TIDEGATE_SEED repeats the moments, TIDEGATE_KILLS their number.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from bench.cluster import Cluster
from tests.spark.killing import JobUnderTest, Producing, Sums, killed_often
from tests.support.iceberg import catalog_environment
from tests.support.machines import chosen_seed
from tidegate_pipeline.tables.folder import files, form_of
from tidegate_pipeline.tables.iceberg_table import IcebergPlan

TOPIC = "killed"
PARTITIONS = 3
ICEBERG_TABLE = "lake.shop.killed"
KILLS = int(os.environ.get("TIDEGATE_KILLS", "20"))

CONFIG = """
[spark]
"spark.master" = "local[2]"
"spark.driver.memory" = "1g"
"spark.ui.enabled" = "false"
"""


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("form", ["parquet", "delta", "iceberg"])
@pytest.mark.usefixtures("java")
def test_table_has_every_record_once_though_its_job_is_killed_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    seed = chosen_seed()
    print(f"TIDEGATE_SEED={seed} repeats these {KILLS} kills")
    (tmp_path / "pipeline.toml").write_text(CONFIG)
    for name, value in catalog_environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    table = ICEBERG_TABLE if form == "iceberg" else str(tmp_path / "archive" / "table" / TOPIC)
    with Cluster(brokers=2) as cluster:

        def job(trigger: list[str], bytes_per_trigger: int) -> JobUnderTest:
            command = [sys.executable, "-m", "tidegate", "pipeline", "decode", "--topic", TOPIC, "--to", form]
            command += [*trigger, *(["--table", table] if form == "iceberg" else [])]
            paths = ["--config", str(tmp_path / "pipeline.toml"), "--checkpoint", str(tmp_path / "checkpoint")]
            environment = {
                "TIDEGATE_REDIS_URL": cluster.redis_url,
                "TIDEGATE_ARCHIVE_PATH": str(tmp_path / "archive"),
                "TIDEGATE_PIPELINE_SOURCE_MAX_BYTES_PER_TRIGGER": str(bytes_per_trigger),
                "XDG_STATE_HOME": str(tmp_path / "state"),
            }
            log = tmp_path / "job.log"
            return JobUnderTest([*command, *paths], environment, lambda: newest_version(table), log)

        producing = Producing(cluster.bootstrap, TOPIC, PARTITIONS, seed)
        producing.create_topic({"retention.ms": "-1"})
        with producing:
            lived_s = killed_often(job(["--every", "50ms"], 200_000), KILLS, seed, patience_s=300)
        job(["--once"], 64 << 20).run_to_the_end(timeout_s=600)

    counted = [file.removeprefix("file://") for file in table_files(table)]
    rows = ds.dataset(counted, format="parquet").to_table()
    names = ("partition", "offset", "value")
    found = Sums.of(zip(*(rows[name].to_pylist() for name in names), strict=True))
    listed = {str(file) for file in tmp_path.rglob("*day=*/*.parquet")}
    print(f"{found}; {len(counted)} of {len(listed)} files count; lived {[round(one, 1) for one in lived_s]} s")
    assert set(counted) <= listed
    assert found.distinct == found.rows
    assert found == producing.acknowledged


def table_files(table: str) -> list[str]:
    """The data files that count."""
    if table != ICEBERG_TABLE:
        return [file.path for file in files(table)]
    opened = IcebergPlan(table).table()
    assert opened is not None
    return [task.file.file_path for task in opened.scan().plan_files()]


def newest_version(table: str) -> int:
    """Micro-batches that the table's log has."""
    if table == ICEBERG_TABLE:
        opened = IcebergPlan(table).table()
        return -1 if opened is None else len(opened.snapshots())
    log = {"parquet": "_spark_metadata", "delta": "_delta_log", None: "none"}[form_of(table)]
    return max((int(name.name.partition(".")[0]) for name in (Path(table) / log).glob("[0-9]*")), default=-1)
