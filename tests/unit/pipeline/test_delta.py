"""The Delta sink without Spark: every record once, whatever is tried again."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import parquet

from tidegate_pipeline.decode.schema import DECODED_ARROW
from tidegate_pipeline.errors import ArchiveConflict, PipelineError, UsageError
from tidegate_pipeline.tables import compaction, delta
from tidegate_pipeline.tables.delta import DeltaPlan, DeltaWriter, Tabled
from tidegate_pipeline.tables.delta_upserts import DeltaStatePlan
from tidegate_pipeline.tables.folder import TableFile, check
from tidegate_pipeline.tables.topic_ids import topic_ids

START = datetime(2026, 3, 1, 23, 0, tzinfo=UTC)


def rows(offsets: Iterable[int], partition: int = 0, topic: str = "orders") -> pa.RecordBatch:
    """A record an hour, the first of a topic at 23:00 UTC."""
    found = [
        {
            "key": None, "value": b"%d" % offset, "topic": topic, "partition": partition, "offset": offset,
            "timestamp": START + timedelta(hours=offset), "timestampType": 0,
            "headers": [{"key": "h", "value": None}] if offset % 2 else None,
        }
        for offset in offsets
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(found, schema=DECODED_ARROW)


def attempt(
    path: Path, *tasks: list[pa.RecordBatch], topic_id: str = "00", commit: bool = True, plan: DeltaPlan | None = None
) -> None:
    """A micro-batch, as Spark runs it."""
    plan = plan or DeltaPlan(str(path), topic_id)
    messages: list[Any] = [
        pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(DeltaWriter(plan))).write(iter(task)))) for task in tasks
    ]
    if commit:
        DeltaWriter(plan).commit([*messages, None], 0)


def test_delta_file_deleted_before_its_commit_is_not_named(tmp_path: Path) -> None:
    attempt(tmp_path, [rows(range(3))])
    writer = DeltaWriter(DeltaPlan(str(tmp_path), "00"))
    message = writer.write(iter([rows(range(3, 6))]))
    (tmp_path / message.files[0].path).unlink()

    with pytest.raises(PipelineError, match="gone before it was committed, and 0 more"):
        writer.commit([message], 1)
    assert stored(tmp_path) == [(0, offset) for offset in range(3)]


@pytest.mark.parametrize("path", ["delta", "parquet"])
def test_delta_committed_files_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")))
    table = tmp_path / path
    if path == "delta":
        attempt(table, [rows(range(3))])
        log, data = sorted((table / "_delta_log").glob("*.json")), table.rglob("*.parquet")
        expected = [*map(str, data), str(log[-1])]
    else:
        parquet.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
        monkeypatch.setattr(compaction, "files", lambda _: [TableFile(str(tmp_path / "a.parquet"), 1)])
        compaction.publish(str(tmp_path), str(table))
        expected = [*map(str, table.rglob("*.parquet")), str(table / "_SUCCESS")]

    assert len(expected) >= 2
    assert set(expected) <= set(synced) and synced.index(expected[0]) < synced.index(expected[-1])
    assert str(table) in synced


def stored(path: Path) -> list[tuple[int, int]]:
    """(partition, offset) of every row, in order."""
    table = DeltaTable(str(path)).to_pyarrow_table()
    assert table.schema.field("timestamp").type == pa.timestamp("us", "UTC")
    assert [value.decode() for value in table["value"].to_pylist()] == [str(o) for o in table["offset"].to_pylist()]
    return sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


def test_days_are_partitions_and_a_micro_batch_is_one_version(tmp_path: Path) -> None:
    attempt(tmp_path, [rows(range(5)), rows(range(5, 30))], [rows(range(10), partition=1)], [])

    table = DeltaTable(str(tmp_path))
    assert stored(tmp_path) == [(0, o) for o in range(30)] + [(1, o) for o in range(10)]
    assert table.version() == 1
    assert sorted(table.partitions(), key=str) == [
        {"day": day.date().isoformat()} for day in (START, START + timedelta(days=1), START + timedelta(days=2))
    ]
    found = DeltaTable(str(tmp_path)).to_pyarrow_dataset().to_table(columns=["offset", "day", "headers"])
    assert all(
        day == (START + timedelta(hours=offset)).date()
        for offset, day in zip(found["offset"].to_pylist(), found["day"].to_pylist(), strict=True)
    )
    assert {len(headers or ()) for headers in found["headers"].to_pylist()} == {0, 1}


def test_delta_rerun_adds_nothing(tmp_path: Path) -> None:
    attempt(tmp_path, [rows(range(5))])
    attempt(tmp_path, [rows(range(5))])  # committed, and the driver died before Spark knew
    attempt(tmp_path, [rows(range(5, 8))], commit=False)  # files written, nothing committed
    attempt(tmp_path, [rows(range(5, 8))])
    attempt(tmp_path, [rows(range(6))])  # a lost checkpoint, micro-batches cut otherwise
    attempt(tmp_path, [rows(range(6, 12))])

    assert stored(tmp_path) == [(0, offset) for offset in range(12)]
    assert DeltaTable(str(tmp_path)).version() == 3
    assert DeltaPlan(str(tmp_path), "00").offsets("orders", [0, 1]) == {0: 12}


def test_two_queries_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = DeltaPlan(str(tmp_path), "00")
    first, second = DeltaWriter(plan), DeltaWriter(plan)
    attempt(tmp_path, [rows(range(2))])
    one, other = (writer.write(iter([rows(range(2, 6))])) for writer in (first, second))
    first.commit([one], 1)
    with pytest.raises(ArchiveConflict, match="go across 5"):
        second.commit([other], 1)

    stale = DeltaTable(str(tmp_path), version=1)  # looked before the other one committed
    monkeypatch.setattr(DeltaPlan, "table", lambda _: stale)
    with pytest.raises(ArchiveConflict, match="another query writes this table"):
        second.commit([other], 1)

    assert stored(tmp_path) == [(0, offset) for offset in range(6)]


def test_topic_made_again_begins_again(tmp_path: Path) -> None:
    attempt(tmp_path, [rows(range(5))])
    attempt(tmp_path, [rows(range(3))], topic_id="01")

    assert stored(tmp_path) == sorted([(0, o) for o in range(5)] + [(0, o) for o in range(3)])


def test_several_topics_each_by_their_id(tmp_path: Path) -> None:
    ids = topic_ids({"orders": "00", "payments": "01"})
    attempt(tmp_path, [rows(range(3)), rows(range(2), topic="payments")], topic_id=ids)
    attempt(tmp_path, [rows(range(5)), rows(range(2), topic="payments")], topic_id=ids)
    attempt(tmp_path, [rows(range(5))], topic_id="00")

    found = DeltaTable(tmp_path).to_pyarrow_table(columns=["topic", "offset"]).to_pylist()
    assert sorted((row["topic"], row["offset"]) for row in found) == [
        *(("orders", offset) for offset in range(5)), *(("payments", offset) for offset in range(2)),
    ]  # fmt: skip
    with pytest.raises(UsageError, match="rows of topic refunds, but topicId has no id of it"):
        attempt(tmp_path, [rows(range(1), topic="refunds")], topic_id=ids)
    with pytest.raises(UsageError, match="topicId is an id in hex, or JSON"):
        attempt(tmp_path, [rows(range(1))], topic_id="{")


OTHER_TYPES = [
    (pa.struct([("id", pa.int32())]), pa.struct([("id", pa.int64())]), "value.id is int32, and of the rows int64"),
    (pa.struct([("id", pa.int64())]), pa.struct([("id", pa.string())]), "value.id is int64, and of the rows string"),
    (pa.binary(), pa.struct([("id", pa.int64())]), "value is binary, and of the rows struct"),
    (pa.list_(pa.float64()), pa.list_(pa.float32()), "value is double, and of the rows float"),
]


@pytest.mark.parametrize(("before", "after", "reported"), OTHER_TYPES)
@pytest.mark.parametrize("state", [False, True], ids=["all", "upsert"])
def test_column_of_another_type_is_refused(
    tmp_path: Path, before: pa.DataType, after: pa.DataType, reported: str, state: bool
) -> None:
    """deltalake commits such files, and no reader can read the table any more."""

    def plan(value: pa.DataType) -> DeltaPlan:
        columns = DECODED_ARROW.set(DECODED_ARROW.get_field_index("value"), pa.field("value", value))
        return (DeltaStatePlan if state else DeltaPlan)(str(tmp_path), "00", columns)

    plan(before).create()

    with pytest.raises(UsageError, match=reported):
        plan(after).evolved(DeltaTable(tmp_path))
    assert plan(before).evolved(DeltaTable(tmp_path)).version() == 0


def test_large_days_are_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "FILE_BYTES_MAX", 200)
    monkeypatch.setattr(delta, "ROW_GROUP_BYTES", 100)
    written = DeltaWriter(DeltaPlan(str(tmp_path), "00")).write(iter([rows([i, i + 24]) for i in range(1, 20)]))

    assert isinstance(written, Tabled)
    assert len(written.files) > 4
    assert sum(file.rows for file in written.files) == 38
    assert {file.values["day"] for file in written.files} == {"2026-03-02", "2026-03-03"}


def test_delta_partitioned_by_hour_and_columns(tmp_path: Path) -> None:
    city = pa.struct([("city", pa.string())])
    columns = DECODED_ARROW.set(DECODED_ARROW.get_field_index("value"), pa.field("value", city))
    plan = DeltaPlan(str(tmp_path), "00", columns, "hour(timestamp), topic, value.city")
    cities = ["a/b c", None, "Zürich", "a/b c", ""]
    given = rows(range(5))
    at = given.schema.get_field_index("value")
    given = given.set_column(at, "value", pa.array([{"city": city} for city in cities], city))
    attempt(tmp_path, [given], [given.slice(0, 2)], plan=plan)
    attempt(tmp_path, [given], plan=plan)

    table = DeltaTable(str(tmp_path))
    assert table.metadata().partition_columns == ["hour", "topic", "value_city"]
    found = table.to_pyarrow_table().sort_by("offset").to_pylist()
    assert [row["offset"] for row in found] == [0, 0, 1, 1, 2, 3, 4]  # both tasks of the first micro-batch
    assert {row["hour"] for row in found} == {f"2026-03-0{1 + (23 + o) // 24}-{(23 + o) % 24:02}" for o in range(5)}
    assert [row["value"]["city"] for row in found if row["value_city"]] == ["a/b c", "a/b c", "Zürich", "a/b c"]
    assert all(row["value"]["city"] in (row["value_city"], "") for row in found)
    chosen = table.to_pyarrow_table(filters=[("value_city", "=", "a/b c"), ("hour", "=", "2026-03-02-02")])
    assert chosen["offset"].to_pylist() == [3]
    assert table.to_pyarrow_table(columns=["topic"])["topic"].to_pylist() == ["orders"] * 7
    table.optimize.compact()
    assert len(DeltaTable(str(tmp_path)).to_pyarrow_table()) == 7

    with pytest.raises(UsageError, match="is partitioned by hour, topic, value_city, not by day: give the same"):
        DeltaPlan(str(tmp_path), "00").check_partitioning()


@pytest.mark.parametrize(
    ("partition_by", "message"),
    [
        ("value", "cannot partition by value: value is binary"),
        ("hour(offset)", r"cannot partition by hour\(offset\): offset is int64"),
        ("day(topic)", r"cannot partition by day\(topic\): topic is string"),
        ("value.city", "the rows have no column value.city"),
        ("nothing", "the rows have no column nothing"),
        ("day(timestamp", "is not a partition field"),
        ("minute(timestamp)", "by day, hour, month or year"),
    ],
)
def test_delta_partitioning_that_is_refused(tmp_path: Path, partition_by: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DeltaPlan(str(tmp_path), "00", partition_by=partition_by).check_partitioning()


def test_delta_task_of_many_partitions_flushes_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "HELD_BYTES_MAX", 2_000)
    attempt(tmp_path, [rows(range(at, at + 10)) for at in range(0, 100, 10)], plan=DeltaPlan(
        str(tmp_path), "00", partition_by="hour(timestamp)"
    ))  # fmt: skip

    assert stored(tmp_path) == [(0, offset) for offset in range(100)]
    assert len(DeltaTable(str(tmp_path)).file_uris()) == 100


def test_delta_table_partitioned_otherwise_is_refused_before_its_query(tmp_path: Path) -> None:
    attempt(tmp_path, [rows(range(1))])
    check(str(tmp_path), "delta", str(tmp_path / "checkpoint"), ["day"])
    check(str(tmp_path), "delta", str(tmp_path / "checkpoint"), None)

    with pytest.raises(UsageError, match="is partitioned by day, not by hour: give the same --partition-by"):
        check(str(tmp_path), "delta", str(tmp_path / "checkpoint"), ["hour"])
