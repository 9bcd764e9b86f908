"""The Iceberg sink without Spark: every record once, whatever is tried again; its maintenance."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from tests.support.iceberg import catalog_environment
from tidegate_pipeline.cli import application
from tidegate_pipeline.decode.schema import DECODED_ARROW
from tidegate_pipeline.errors import ArchiveConflict, PipelineError, UsageError
from tidegate_pipeline.tables import iceberg_upkeep
from tidegate_pipeline.tables.iceberg import IcebergWriter
from tidegate_pipeline.tables.iceberg_table import IcebergPlan, figures

START = datetime(2026, 3, 1, 23, 0, tzinfo=UTC)
NAME = "lake.shop.orders"


@pytest.fixture(autouse=True)
def _catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in catalog_environment(tmp_path).items():
        monkeypatch.setenv(name, value)


def rows(offsets: Iterable[int], partition: int = 0, schema: pa.Schema = DECODED_ARROW, **more: Any) -> pa.RecordBatch:
    """A record an hour, the first at 23:00 UTC."""
    found = [
        {
            "key": b"k", "value": b"%d" % offset, "topic": "orders", "partition": partition, "offset": offset,
            "timestamp": START + timedelta(hours=offset), "timestampType": 0, "headers": [{"key": "h", "value": None}],
            **more,
        }
        for offset in offsets
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(found, schema=schema)


def attempt(*tasks: list[pa.RecordBatch], plan: IcebergPlan | None = None, commit: bool = True) -> None:
    """A micro-batch, as Spark runs it."""
    plan = plan or IcebergPlan(NAME, "00")
    plan.prepared()
    writer = IcebergWriter(plan)
    messages: list[Any] = [pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(writer)).write(iter(t)))) for t in tasks]
    if commit:
        writer.commit([*messages, None], 0)


def stored() -> list[tuple[int, int]]:
    """(partition, offset) of every row, in order."""
    table = IcebergPlan(NAME).table()
    assert table is not None
    found = table.scan().to_arrow()
    return sorted(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True))


def test_iceberg_rerun_adds_nothing() -> None:
    attempt([rows(range(5))], [rows(range(3), partition=1)])
    attempt([rows(range(5))], [rows(range(3), partition=1)])  # committed, and the driver died before Spark knew
    attempt([rows(range(5, 8))], commit=False)  # files written, nothing committed
    attempt([rows(range(5, 8))])
    attempt([rows(range(6))])  # a lost checkpoint, micro-batches with other ends
    attempt([rows(range(6, 12))], [])

    assert stored() == [(0, offset) for offset in range(12)] + [(1, offset) for offset in range(3)]
    table = IcebergPlan(NAME).table()
    assert table is not None and len(table.snapshots()) == 3
    assert IcebergPlan(NAME, "00").offsets("orders", [0, 1, 2]) == {0: 12, 1: 3}
    assert IcebergPlan(NAME, "01").offsets("orders", [0]) == {}, "of the topic that was deleted"


def test_iceberg_two_queries_at_once() -> None:
    plan = IcebergPlan(NAME, "00")
    plan.prepared()
    first, second = IcebergWriter(plan), IcebergWriter(IcebergPlan(NAME, "00"))
    messages = [writer.write(iter([rows(range(4))])) for writer in (first, second)]
    other = IcebergWriter(IcebergPlan(NAME, "00"))
    of_other = other.write(iter([rows(range(4), partition=1)]))
    first.commit([messages[0]], 0)
    with pytest.raises(ArchiveConflict, match=r"offsets 0 to 3 go across 3, which lake\.shop\.orders has"):
        second.commit([messages[1]], 0)
    other.commit([of_other], 0)
    assert stored() == [(0, offset) for offset in range(4)] + [(1, offset) for offset in range(4)]


def test_iceberg_commits_beside_each_other_lose_nothing() -> None:
    plan = IcebergPlan(NAME, "00")
    plan.prepared()
    writers = [IcebergWriter(IcebergPlan(NAME, "00")) for _ in range(3)]
    messages = [writer.write(iter([rows(range(2), partition=at)])) for at, writer in enumerate(writers)]
    threads = [
        threading.Thread(target=writer.commit, args=([message], 0))
        for writer, message in zip(writers, messages, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert stored() == [(partition, offset) for partition in range(3) for offset in range(2)]
    assert IcebergPlan(NAME, "00").offsets("orders", range(3)) == {0: 2, 1: 2, 2: 2}


def test_iceberg_columns_and_partitions_evolve() -> None:
    value = pa.struct([("id", pa.int32()), ("city", pa.string())])
    at = DECODED_ARROW.get_field_index("value")
    older = DECODED_ARROW.set(at, pa.field("value", value))
    newer = DECODED_ARROW.set(at, pa.field("value", pa.struct([("id", pa.int64()), ("tags", pa.list_(pa.string()))])))
    partition_by = "hour(timestamp), bucket(4, key), value.city"
    attempt(
        [rows(range(2), schema=older, value={"id": 1, "city": "Ulm"})],
        plan=IcebergPlan(NAME, "00", older, partition_by),
    )
    attempt(
        [rows(range(2, 4), schema=newer, value={"id": 1 << 40, "tags": ["x"]})], plan=IcebergPlan(NAME, "00", newer)
    )
    table = IcebergPlan(NAME).table()
    assert table is not None
    assert [field.name for field in table.spec().fields] == ["timestamp_hour", "key_bucket", "value_city"]
    found = table.scan().to_arrow().sort_by("offset")["value"].to_pylist()
    assert found[0] == {"id": 1, "city": "Ulm", "tags": None}
    assert found[3] == {"id": 1 << 40, "city": None, "tags": ["x"]}
    wrong = DECODED_ARROW.set(at, pa.field("value", pa.int32()))
    with pytest.raises(UsageError, match="its columns cannot become those of the rows"):
        IcebergPlan(NAME, "00", wrong).prepared()


def test_iceberg_names_and_partition_fields_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"is catalog\.namespace\.table, not orders"):
        IcebergPlan("orders")
    with pytest.raises(UsageError, match="not a partition field"):
        IcebergPlan(NAME, partition_by="day(timestamp")
    with pytest.raises(UsageError, match="cannot be partitioned by nothing"):
        IcebergPlan(NAME, partition_by="nothing").prepared()
    with pytest.raises(UsageError, match="PYICEBERG_CATALOG__SEA__URI"):
        IcebergPlan("sea.shop.orders").table()


def test_maintain_merges_expires_and_removes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_PIPELINE_ARCHIVE_GC_GRACE", "0")
    for at in range(0, 12, 2):  # 23:00 of the first day, then the second
        attempt([rows(range(at, at + 2))])
    attempt([rows(range(12, 14))], commit=False)
    before = figures(NAME)
    result = CliRunner().invoke(application(), ["maintain", NAME, "--json"])
    assert result.exit_code == 0, result.output
    reported = json.loads(result.stdout)

    assert before["files"] == 7 == reported["files"]
    assert (reported["files_after"], reported["merged_files"]) == (2, 6)
    assert reported["expired_snapshots"] == 6
    assert stored() == [(0, offset) for offset in range(12)]
    assert len(list((tmp_path / "warehouse").rglob("*.parquet"))) == 2
    attempt([rows(range(10, 14))])
    assert stored() == [(0, offset) for offset in range(14)]


@pytest.mark.parametrize(
    "warehouse",
    [
        "lake",
        "./lake",
        "{0}/a/../lake",
        "file://{0}//lake",
        "{0}/lake#1",
        "{0}/lake?x=1",
        "file://{0}/la%20ke",
        "{0}/link",
    ],
)
def test_maintain_keeps_live_files_however_the_warehouse_is_spelt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warehouse: str
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", warehouse.format(tmp_path))
    for at in range(3):
        attempt([rows(range(at, at + 1))], plan=IcebergPlan(NAME, "00", partition_by="topic"))
    attempt([rows(range(3, 4))], commit=False)

    reported = iceberg_upkeep.maintain(NAME, timedelta())

    assert stored() == [(0, 0), (0, 1), (0, 2)]
    assert reported["removed_files"] > 0
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


def test_maintain_removes_nothing_where_it_does_not_find_the_live_files(monkeypatch: pytest.MonkeyPatch) -> None:
    attempt([rows([0])])
    attempt([rows([1])], commit=False)
    table = IcebergPlan(NAME).table()
    assert table is not None
    [task] = table.scan().plan_files()
    data = Path(task.file.file_path.removeprefix("file://"))
    data.rename(data.with_suffix(".moved"))
    unnamed = sorted(data.parents[1].rglob("*.parquet"))

    with pytest.raises(PipelineError, match=f"nothing was removed: .*{data.name}"):
        iceberg_upkeep.maintain(NAME, timedelta())

    assert sorted(data.parents[1].rglob("*.parquet")) == unnamed != []


@pytest.mark.parametrize(
    ("table", "message"),
    [("/nowhere/table", "there is no table at /nowhere/table"), ("lake.shop.none", "there is no table lake.shop.none")],
)
def test_maintain_names_a_table_that_is_not_there(table: str, message: str) -> None:
    result = CliRunner().invoke(application(), ["maintain", table])

    assert (result.exit_code, message in result.stderr) == (2, True)


def test_maintain_beside_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    for at in range(3):
        attempt([rows(range(at, at + 1))], plan=IcebergPlan(NAME, "00", partition_by="topic"))
    pending = IcebergWriter(IcebergPlan(NAME, "00"))
    messages = [pending.write(iter([rows([3])]))]
    merge = iceberg_upkeep._merge

    def commit_meanwhile(table: Any, run: Any) -> int:
        if messages:
            pending.commit([messages.pop()], 0)
        return merge(table, run)

    monkeypatch.setattr(iceberg_upkeep, "_merge", commit_meanwhile)
    reported = iceberg_upkeep.maintain(NAME, timedelta(days=1))
    assert reported["files_after"] == 1
    assert stored() == [(0, offset) for offset in range(4)]


def test_null_lists_and_maps_are_not_empty_ones() -> None:
    lists = [None, [], [{"key": "h", "value": None}], None]
    maps = [[("a", {"n": 1})], None, [], None]
    value = pa.map_(pa.string(), pa.struct({"n": pa.int64()}))
    schema = DECODED_ARROW.set(DECODED_ARROW.get_field_index("value"), pa.field("value", value))
    plan = IcebergPlan(NAME, "00", schema, partition_by="topic")
    for at in range(4):
        attempt([rows([at], schema=schema, headers=lists[at], value=maps[at])], plan=plan)

    def files() -> int:
        table = plan.table()
        assert table is not None
        read = [parquet.read_table(task.file.file_path) for task in table.scan().plan_files()]
        for found in (table.scan().to_arrow(), pa.concat_tables(read)):
            found = found.sort_by("offset")
            assert (found["headers"].to_pylist(), found["value"].to_pylist()) == (lists, maps)
        return len(read)

    assert files() == 4
    iceberg_upkeep.maintain(NAME, timedelta())
    assert files() == 1
