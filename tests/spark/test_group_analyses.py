"""Generations, storms and commits in Spark on scripted logs: batches, restarts and late events change nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidegate_pipeline.settings import CommitSettings, StormSettings, TimelineSettings, UsageSettings
from tidegate_pipeline.sources.events import SCHEMA as EVENTS
from tidegate_pipeline.sources.usage import SCHEMA as USAGE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LAG = "ts timestamp, org string, group string, lag long"
START_S = 1_700_000_000 - 1_700_000_000 % 60


def at(minute: float) -> str:
    """As JSON has it."""
    return datetime.fromtimestamp(START_S + minute * 60, UTC).isoformat()


@pytest.fixture
def spark(spark: SparkSession) -> SparkSession:
    """One task a micro-batch: a store of states costs more than what these tests put in it."""
    spark.conf.set("spark.sql.shuffle.partitions", 1)
    return spark


class Script:
    """A stream of JSON files: each that is written is one micro-batch."""

    def __init__(self, folder: Path, schema: str) -> None:
        self._folder, self._schema, self._files = folder, schema, 0
        folder.mkdir()

    def write(self, rows: Iterable[dict[str, Any]]) -> None:
        """The next micro-batch."""
        self._files += 1
        hidden, path = self._folder / f".{self._files}", self._folder / f"{self._files}.json"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(hidden, (self._files, self._files))
        hidden.rename(path)

    def read(self, spark: SparkSession) -> DataFrame:
        """All of it, file by file."""
        return spark.readStream.schema(self._schema).option("maxFilesPerTrigger", 1).json(str(self._folder))


def run(frame: DataFrame, folder: Path) -> int:
    """Read what is there into a table; rows that were too late."""
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "table"))
    )
    assert query.awaitTermination(400)
    return sum(
        operator["numRowsDroppedByWatermark"]
        for progress in query.recentProgress
        for operator in progress.stateOperators
    )


def table(spark: SparkSession, folder: Path) -> list[dict[str, Any]]:
    found = spark.read.parquet(str(folder / "table")).collect()
    return sorted((row.asDict(recursive=True) for row in found), key=repr)


def event(minute: float, kind: str, group: str = "g", generation: int = 1, **more: Any) -> dict[str, Any]:
    """A row of `tidegate-events`; what has no column is in its detail."""
    columns = {
        name: more.pop(name) for name in ("member", "instance", "client_id", "reason", "assignor") if name in more
    }
    detail = {name: str(value) for name, value in more.items()}
    head = {"id": f"{int((START_S + minute * 60) * 1000)}-0", "ts": at(minute), "org": "default", "group": group}
    return head | {"event": kind, "generation": generation, "detail": detail} | columns


def storm(group: str, first: float, count: int = 5) -> list[dict[str, Any]]:
    """So many generations, a minute between them."""
    return [
        event(first + number, "rebalance_started", group, number, instance="shard-1", cause="static_member_restarted")
        for number in range(count)
    ]


def pieces(rows: Sequence[dict[str, Any]], count: int) -> list[Sequence[dict[str, Any]]]:
    size = -(-len(rows) // count)
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def test_storms_open_and_close_in_any_batches_and_what_is_too_late_is_dropped(
    spark: SparkSession, tmp_path: Path
) -> None:
    from tidegate_pipeline.history.frames import incidents

    rows = sorted(storm("a", 0) + storm("b", 3) + storm("quiet", 2, 4) + storm("a", 30, 6), key=lambda row: row["ts"])
    later = storm("later", 91, 5) + storm("b", 98.5, 3)  # by then the watermark is at 98 minutes
    tables = {}
    for name, batches in (("whole", [rows]), ("pieces", pieces(rows, 3))):
        events, ticks = Script(tmp_path / f"{name}-events", EVENTS), Script(tmp_path / f"{name}-ticks", "ts timestamp")
        for batch in batches:
            events.write(batch)
            ticks.write([])
        if name == "pieces":
            run(incidents(events.read(spark), ticks.read(spark), StormSettings()), tmp_path / name)
            before = table(spark, tmp_path / name)
            assert sum(row["change"] == "closed" for row in before) == 2, "of the last storm nobody knows yet"
        events.write(storm("b", 97.5, 2) + storm("late", 90, 7))  # the watermark is at 33 minutes: none is too late
        ticks.write([{"ts": at(100)}])
        for batch in ([], later):  # what is too late is judged by the watermark of the batch before
            events.write(batch)
            ticks.write([])
        dropped = run(incidents(events.read(spark), ticks.read(spark), StormSettings()), tmp_path / name)
        assert dropped == 5
        tables[name] = table(spark, tmp_path / name)

    assert tables["whole"] == tables["pieces"]
    reported = [(row["group"], row["change"], row["generations"]) for row in tables["whole"]]
    assert sorted(reported) == [
        ("a", "closed", 5), ("a", "closed", 6), ("a", "opened", 5), ("a", "opened", 5), ("b", "closed", 5),
        ("b", "opened", 5), ("b", "opened", 5), ("late", "opened", 5),
    ]  # fmt: skip
    opened = next(row for row in tables["whole"] if row["group"] == "a" and row["change"] == "opened")
    assert opened["culprits"] == [
        {"member": "instance shard-1", "pattern": "static_flapping", "generations": 5, "events": 5}
    ]
    assert opened["patterns"] == {"static_flapping": 5} and opened["closed_at"] is None


def test_generations_are_one_row_each_in_any_batches(spark: SparkSession, tmp_path: Path) -> None:
    from tidegate_pipeline.history.frames import generations

    rows = []
    for number in range(1, 7):
        for group in ("a", "b"):
            rows += [
                event(number, "member_joined", group, number - 1, member=f"m{number}", client_id="c", members=number),
                event(number + 0.1, "rebalance_started", group, number - 1, member=f"m{number}", cause="member_joined"),
                event(number + 0.2, "barrier_joined", group, number, member="m1", assignor="range", members=number),
                event(number + 0.3, "assignment_stored", group, number, detail=f"t=aaaa{'abc'[number % 3] * 4}"),
                event(number + 0.4, "stable", group, number),
            ]
    rows.sort(key=lambda row: (row["ts"], row["group"]))
    tables = {}
    for name, count in (("whole", 1), ("pieces", 3)):
        events = Script(tmp_path / f"{name}-events", EVENTS)
        for number, batch in enumerate(pieces(rows, count)):
            events.write(reversed(batch))  # a micro-batch has no order
            if number == 1:
                run(generations(events.read(spark), TimelineSettings()), tmp_path / name)
        run(generations(events.read(spark), TimelineSettings()), tmp_path / name)
        tables[name] = table(spark, tmp_path / name)

    assert tables["whole"] == tables["pieces"]
    of_a = sorted((row for row in tables["whole"] if row["group"] == "a"), key=lambda row: row["generation"])
    assert [(row["generation"], row["outcome"], row["duration_ms"]) for row in of_a] == [
        (number, "stable", 18_000) for number in range(1, 7)
    ]
    assert [row["moved_partitions"] for row in of_a] == [None, 1, 1, 1, 1, 1]
    first = of_a[0]
    assert first["started_at"].timestamp() - first["first_join_at"].timestamp() == 6
    assert (first["members_after"], first["assignor"], first["leader"]) == (1, "range", "m1")


def test_commits_that_stop_burst_and_decrease(spark: SparkSession, tmp_path: Path) -> None:
    from tidegate_pipeline.history.frames import anomalies

    counted: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    for minute in range(40):
        head = {"ts": at(minute + 1), "span_ms": 60_000, "broker": "1"}
        counted.append(head)
        for group in ("stops", "bursts", "back"):
            commits = {"stops": 0 if minute >= 20 else 60, "bursts": 900 if minute == 25 else 60}.get(group, 60)
            row = head | {"org": "default", "group": group, "commits": commits, "back_commits": 0, "back": []}
            if group == "back" and minute == 30:
                reported = {"topic": "t", "partition": 3, "from_offset": 90, "to_offset": 10, "client_id": "c"}
                row |= {"back_commits": 2, "back": [reported]}
            if commits:
                counted.append(row)
            waiting.append({"ts": at(minute + 0.5), "org": "default", "group": group, "lag": minute + 1})
    tables = {}
    for name, count in (("whole", 1), ("pieces", 3)):
        usage, lag = Script(tmp_path / f"{name}-usage", USAGE), Script(tmp_path / f"{name}-lag", LAG)
        for number, (some, others) in enumerate(zip(pieces(counted, count), pieces(waiting, count), strict=True)):
            usage.write(some)
            lag.write(others)
            if number == 1:
                run(anomalies(usage.read(spark), lag.read(spark), CommitSettings()), tmp_path / name)
        run(anomalies(usage.read(spark), lag.read(spark), CommitSettings()), tmp_path / name)
        tables[name] = table(spark, tmp_path / name)

    assert tables["whole"] == tables["pieces"]
    found = {row["anomaly"]: row for row in tables["whole"]}
    assert {(row["group"], name) for name, row in found.items()} == {
        ("stops", "silence"), ("bursts", "burst"), ("back", "back")
    }  # fmt: skip
    assert len(tables["whole"]) == 3
    assert found["silence"]["since_at"].timestamp() == START_S + 20 * 60
    assert found["burst"]["commits"] == 900 and found["burst"]["mean"] == pytest.approx(60)
    back = found["back"]
    assert (back["topic"], back["partition"], back["from_offset"], back["to_offset"], back["times"]) == (
        "t",
        3,
        90,
        10,
        2,
    )


def test_usage_by_the_hour(spark: SparkSession) -> None:
    from tidegate_pipeline.history.frames import usage_by_interval

    def reported(minute: float, topic: str | None, *figures: int | None) -> tuple[Any, ...]:
        ts = datetime.fromtimestamp(START_S - START_S % 3600 + minute * 60, UTC)
        org = None if topic is None else "default"
        return ("1-0", ts, 60_000, "1", org, topic, None, *figures, None, None, None)

    nothing = (None,) * 6
    rows = [reported(minute, "t", 10, 1_000, 2, 1_100, 1, 500, 1_000 * minute, 0) for minute in range(1, 61)]
    rows += [reported(60.4, "t", 1, 1, 1, 1, 1, 1, None, None)]  # most of it was before the hour
    rows += [
        reported(60.6, "t", *nothing, 7, 9),
        reported(30, "held", *nothing, 600, 60_000),
        reported(5, None, *nothing, None, None),
    ]
    found = usage_by_interval(spark.createDataFrame(rows, USAGE), UsageSettings()).orderBy("topic", "from_at").collect()

    held, first, second = (row.asDict() for row in found)
    assert (first["org"], first["topic"], first["to_at"] - first["from_at"]) == ("default", "t", timedelta(hours=1))
    assert [first[name] for name in ("records", "stored_bytes", "produce_requests")] == [601, 60_001, 121]
    assert [first[name] for name in ("produced_bytes", "fetch_requests", "fetched_bytes")] == [66_001, 61, 30_001]
    assert first["redis_byte_hours"] == pytest.approx(30_500) and first["archive_byte_hours"] == 0
    assert second["records"] == 0 and second["redis_byte_hours"] == pytest.approx(7 / 60)
    assert held["redis_byte_hours"] == 10 and held["archive_byte_hours"] == 1_000
