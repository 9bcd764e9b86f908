"""Tables with the newest row of each key, without Spark: as a dict of the records, whatever is tried again."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.support.iceberg import catalog_environment
from tests.support.machines import chosen_seed
from tidegate_pipeline.decode.schema import DECODED_ARROW
from tidegate_pipeline.errors import ArchiveConflict, UsageError
from tidegate_pipeline.tables import compaction, iceberg_upkeep, upserts
from tidegate_pipeline.tables.delta import DeltaPlan, DeltaWriter
from tidegate_pipeline.tables.delta_upserts import DeltaStatePlan, DeltaStateWriter
from tidegate_pipeline.tables.iceberg_table import STATE_PARTITION_BY, IcebergPlan
from tidegate_pipeline.tables.iceberg_upserts import IcebergStateWriter

NAME = "lake.shop.accounts"
START = datetime(2026, 3, 1, tzinfo=UTC)
PARTITIONS = 2

Record = tuple[bytes | None, bytes | None]
"""Key and value."""
VALUES = pa.struct({"balance": pa.int64(), "tags": pa.list_(pa.string())})


class StateTable:
    """A table of either format; `run` is a micro-batch with a task for each list of rows."""

    def __init__(self, form: str, folder: Path, columns: pa.Schema = DECODED_ARROW) -> None:
        self.form, self.folder, self.columns = form, folder, columns

    def writer(self) -> Any:
        if self.form == "delta":
            return DeltaStateWriter(DeltaStatePlan(str(self.folder), "00", self.columns))
        plan = IcebergPlan(NAME, "00", self.columns, STATE_PARTITION_BY, is_upsert=True)
        plan.prepared()
        return IcebergStateWriter(plan)

    def write(self, *tasks: list[pa.RecordBatch]) -> list[Any]:
        packed = pickle.dumps(self.writer())
        return [pickle.loads(pickle.dumps(pickle.loads(packed).write(iter(task)))) for task in tasks]

    def run(self, *tasks: list[pa.RecordBatch]) -> None:
        self.writer().commit([*self.write(*tasks), None], 0)

    def maintain(self) -> None:
        if self.form == "delta":
            compaction.rewrite(str(self.folder), timedelta())
        else:
            iceberg_upkeep.maintain(NAME, timedelta())

    def rows(self) -> list[dict[str, Any]]:
        """By partition and key; none before the first commit of rows has created the table."""
        if self.form == "delta":
            if not DeltaTable.is_deltatable(str(self.folder)):
                return []
            found = DeltaTable(str(self.folder)).to_pyarrow_table()
        else:
            table = IcebergPlan(NAME).table()
            if table is None:
                return []
            found = table.scan().to_arrow()
        return found.sort_by([("partition", "ascending"), ("key", "ascending")]).to_pylist()

    def state(self) -> dict[tuple[int, bytes], tuple[int, Any]]:
        rows = self.rows()
        state = {(row["partition"], row["key"]): (row["offset"], row["value"]) for row in rows}
        assert len(state) == len(rows), "a row a key"
        return state


@pytest.fixture(params=["delta", "iceberg"])
def table(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateTable:
    for name, value in catalog_environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    return StateTable(request.param, tmp_path / "state")


def rows(
    log: Sequence[Record], start: int, end: int, partition: int = 0, schema: pa.Schema = DECODED_ARROW
) -> pa.RecordBatch:
    found = [
        {
            "key": log[offset][0], "value": log[offset][1], "topic": "accounts", "partition": partition,
            "offset": offset, "timestamp": START + timedelta(hours=offset), "timestampType": 0,
            "headers": [{"key": "h", "value": b"%d" % offset}] if offset % 2 else None,
        }
        for offset in range(start, end)
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(found, schema=schema)


def newest(logs: Sequence[Sequence[Record]]) -> dict[tuple[int, bytes], tuple[int, Any]]:
    state = {
        (partition, key): (offset, value)
        for partition, log in enumerate(logs)
        for offset, (key, value) in enumerate(log)
    }
    return {place: row for place, row in state.items() if row[1] is not None}


def test_random_records_leave_the_newest_of_each_key(table: StateTable, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(chosen_seed())
    monkeypatch.setattr(upserts, "HELD_BYTES_MAX", 3_000)  # tasks reduce rows, and write several files
    logs: list[list[Record]] = [[] for _ in range(PARTITIONS)]
    committed = [0] * PARTITIONS
    for _ in range(8):
        for log in logs:
            log += [
                (b"k%d" % chance.randrange(12), None if chance.random() < 0.3 else chance.randbytes(8))
                for _ in range(chance.randrange(30))
            ]
        ends = [chance.randint(start, len(log)) for start, log in zip(committed, logs, strict=True)]
        tasks: list[list[pa.RecordBatch]] = []
        for partition, (start, end) in enumerate(zip(committed, ends, strict=True)):
            cut = chance.randint(start, end)
            tasks += [[rows(logs[partition], *one, partition)] for one in ((start, cut), (cut, end)) if one[0] < one[1]]
        if chance.random() < 0.5:
            table.write(*tasks)  # killed before the commit
        table.run(*tasks)
        committed = ends
        if chance.random() < 0.5:
            table.run(*tasks)  # the driver died before Spark knew of the commit
        if chance.random() < 0.3:
            table.maintain()
        assert table.state() == newest([log[:end] for log, end in zip(logs, committed, strict=True)])
    table.run(*[[rows(log, 0, len(log), partition)] for partition, log in enumerate(logs)])  # a lost checkpoint
    assert table.state() == newest(logs)


def test_upserted_rows_are_whole_and_leave_no_files(table: StateTable) -> None:
    schema = DECODED_ARROW.set(DECODED_ARROW.get_field_index("value"), pa.field("value", VALUES))
    table.columns = schema
    log: list[Any] = [(b"a", {"balance": 1, "tags": ["x"]}), (b"b", {"balance": 2, "tags": None})]
    table.run([rows(log, 0, 2, schema=schema)])
    log += [(b"a", {"balance": 3, "tags": ["x", "y"]}), (b"b", None)]
    table.run([rows(log, 2, 4, schema=schema)])

    (row,) = table.rows()
    assert {name: row[name] for name in ("key", "value", "offset", "timestamp", "headers")} == {
        "key": b"a", "value": {"balance": 3, "tags": ["x", "y"]}, "offset": 2,
        "timestamp": START + timedelta(hours=2), "headers": None,
    }  # fmt: skip
    assert list(table.folder.parent.rglob("staged-*")) == []

    wider = pa.struct([*VALUES, pa.field("currency", pa.string())])
    table.columns = schema.set(schema.get_field_index("value"), pa.field("value", wider))
    log.append((b"c", {"balance": 5, "tags": None, "currency": "EUR"}))
    table.run([rows(log, 4, 5, schema=table.columns)])
    assert [row["value"]["currency"] for row in table.rows()] == [None, "EUR"], "an evolved schema"


def test_two_queries_do_not_both_commit(table: StateTable) -> None:
    log: list[Record] = [(b"a", b"1"), (b"a", b"2")]
    table.run([rows(log, 0, 1)])
    first, second = table.write([rows(log, 1, 2)]), table.write([rows(log, 1, 2)])
    table.writer().commit(first, 1)
    with pytest.raises(ArchiveConflict, match="another query writes this table"):
        table.writer().commit(second, 1)
    table.writer().abort(second, 1)
    assert table.state() == {(0, b"a"): (1, b"2")}
    assert list(table.folder.parent.rglob("staged-*")) == []


def test_record_without_key_is_named(table: StateTable) -> None:
    with pytest.raises(UsageError, match="topic accounts partition 1 offset 1: no key"):
        table.run([rows([(b"a", b"1"), (None, b"2")], 0, 2, partition=1)])


def test_table_of_all_records_is_not_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in catalog_environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    log: list[Record] = [(b"a", b"1")]
    appending = DeltaWriter(DeltaPlan(str(tmp_path / "state"), "00"))
    appending.commit([appending.write(iter([rows(log, 0, 1)]))], 0)
    IcebergPlan(NAME, "00").prepared()
    refused: list[Callable[[], None]] = [
        lambda: StateTable("delta", tmp_path / "state").run([rows([*log, *log], 1, 2)]),
        lambda: StateTable("iceberg", tmp_path).run([rows(log, 0, 1)]),
    ]
    for attempt in refused:
        with pytest.raises(UsageError, match="is a table of all records: choose another"):
            attempt()
