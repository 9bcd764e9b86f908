"""A table's folder: which files count, and whether a checkpoint belongs to it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.tables.compaction import compact
from tidegate_pipeline.tables.folder import check, files, form_of


def given_parquet(table: Path, micro_batches: int) -> list[str]:
    """A table as Spark's file sink leaves it, a file a micro-batch; and a file that no micro-batch has."""
    log = table / "_spark_metadata"
    log.mkdir(parents=True)
    named = []
    for number in range(micro_batches):
        path = table / f"day=2026-01-0{1 + number % 2}" / f"part {number}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"offset": pa.array([number], pa.int64())}), path)
        named.append(str(path))
        entry = {"path": f"file://{table}/{path.parent.name}/part%20{number}.parquet", "size": 9, "action": "add"}
        (log / str(number)).write_text(f"v1\n{json.dumps(entry)}")
    (table / "day=2026-01-01" / "killed.parquet").touch()
    return named


def test_table_log_decides_which_files_count(tmp_path: Path) -> None:
    named = given_parquet(tmp_path / "table", 3)

    assert form_of(str(tmp_path / "table")) == "parquet"
    assert [file.path for file in files(str(tmp_path / "table"))] == named
    with pytest.raises(UsageError, match="there is no table"):
        files(str(tmp_path / "nothing"))


def test_clean_copy_has_what_counts_and_nothing_else(tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    given_parquet(tmp_path / "table", 5)

    assert compact(table, None, str(tmp_path), 0, dry_run=True)["files"] == 5
    reported = compact(table, None, str(tmp_path), 0)

    assert (reported["rows"], reported["copy_files"]) == (5, 2)
    assert sorted(ds.dataset(reported["copy"], partitioning="hive").to_table()["offset"].to_pylist()) == list(range(5))
    assert Path(reported["copy"], "_SUCCESS").exists()
    with pytest.raises(UsageError, match="choose another folder"):
        compact(table, reported["copy"], "", 0)
    with pytest.raises(UsageError, match="where does the copy go"):
        compact(table, None, "", 0)


def test_checkpoint_belongs_to_a_table(tmp_path: Path) -> None:
    table, checkpoint = str(tmp_path / "table"), tmp_path / "checkpoint"
    check(table, "parquet", str(checkpoint), ["day"])  # neither is there

    given_parquet(tmp_path / "table", 1)
    with pytest.raises(UsageError, match="Spark would pass over new records"):
        check(table, "parquet", str(checkpoint), ["day"])
    with pytest.raises(UsageError, match="is a table in parquet"):
        check(table, "delta", str(checkpoint), ["day"])
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "0").touch()  # killed between the sink's commit and Spark's
    check(table, "parquet", str(checkpoint), ["day"])

    with pytest.raises(UsageError, match="is partitioned by day, not by hour, topic: give the same --partition-by"):
        check(table, "parquet", str(checkpoint), ["hour", "topic"])

    (checkpoint / "commits").mkdir()
    (checkpoint / "commits" / "0").touch()
    with pytest.raises(UsageError, match="there is no table at"):
        check(str(tmp_path / "other"), "delta", str(checkpoint), ["day"])


def test_files_of_a_micro_batch_that_runs_stay_in_a_delta_table(tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    write_deltalake(table, pa.table({"offset": pa.array([1], pa.int64())}))
    (tmp_path / "table" / "uncommitted.parquet").touch()

    compact(table, None, "", 1_800)

    assert (tmp_path / "table" / "uncommitted.parquet").exists()


def test_delta_table_is_compacted_in_place(tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    for number in range(3):
        write_deltalake(table, pa.table({"offset": pa.array([number], pa.int64())}), mode="append")
    (tmp_path / "table" / "killed.parquet").touch()

    reported = compact(table, None, "", 0)

    assert (reported["files"], reported["copy_files"], len(files(table))) == (3, 1, 1)
    assert not (tmp_path / "table" / "killed.parquet").exists()
    with pytest.raises(UsageError, match="--to is for Parquet"):
        compact(table, "elsewhere", "", 0)
