"""Plots: what is read of the tables, how it is described, and that a file is written."""

from __future__ import annotations

import json
import math
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from matplotlib.image import imread
from pyarrow import parquet
from typer.testing import CliRunner

from tidegate_pipeline.cli import application
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.plots.lag import by_partition, stuck_stretches, together, total
from tidegate_pipeline.plots.storm import MEMBERS_MAX, latest, most_troublesome
from tidegate_pipeline.plots.tables import parse_time

START = datetime(2026, 11, 21, 18, tzinfo=UTC)


def minute(number: float) -> datetime:
    return START + timedelta(minutes=number)


def window(number: int, partition: int = 0, lag: int = 0, still: int = 0, **more: Any) -> dict[str, Any]:
    """A row of the table `lag`."""
    return {
        "window_start": minute(number), "window_end": minute(number + 1), "org": "default", "group": "billing",
        "topic": "orders", "partition": partition, "samples": 6, "lag_min": lag, "lag_max": lag + 5, "lag_last": lag,
        "committed": 100, "log_end": 100 + lag, "records_in_per_s": 10.0, "records_out_per_s": None if still else 8.0,
        "behind_s": 1.0, "member": "m", "stuck_windows": still, "stuck": still >= 3,
    } | more  # fmt: skip


def generation(number: int, member: str, cause: str = "member_joined", outcome: str = "stable") -> dict[str, Any]:
    """A row of the table `timeline`."""
    times = {f"{step}_at": minute(number) for step in ("started", "first_join", "joined", "assigned", "synced")}
    return times | {
        "org": "default", "group": "billing", "generation": number, "outcome": outcome, "cause": cause,
        "member": member,
    }  # fmt: skip


def incident(change: str, name: str = "1") -> dict[str, Any]:
    """A row of the table `storms`."""
    return {
        "org": "default", "group": "billing", "incident": name, "change": change, "opened_at": minute(5),
        "first_at": minute(2), "last_at": minute(20), "generations": 12,
        "patterns": [("session_timeout", 3), ("static_flapping", 9)],
    }  # fmt: skip


def write_table(archive: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """As Spark's file sink leaves it, with what a killed task left."""
    folder = archive / name
    (folder / "_spark_metadata").mkdir(parents=True)
    table = pa.Table.from_pylist([{column: row[column] for column in row if column != "patterns"} for row in rows])
    if name == "storms":
        patterns = pa.array([row["patterns"] for row in rows], pa.map_(pa.string(), pa.int32()))
        table = table.append_column("patterns", patterns)
    day = folder / "day=2026-11-21"
    day.mkdir()
    parquet.write_table(table, day / "part-0.parquet", use_deprecated_int96_timestamps=name == "lag")
    (day / "part-killed.parquet").touch()
    entry = {"path": (day / "part-0.parquet").as_uri(), "size": 1, "isDir": False, "action": "add"}
    (folder / "_spark_metadata" / "0").write_text("v1\n" + json.dumps(entry))


def plot(archive: Path, *arguments: str) -> Any:
    """What `tidegate pipeline plot …` does."""
    return CliRunner().invoke(
        application(), ["plot", *arguments], env=dict(os.environ) | {"TIDEGATE_PIPELINE_ARCHIVE_PATH": str(archive)}
    )


def test_lag_is_plotted_from_committed_files(tmp_path: Path) -> None:
    rows = [window(n, 0, lag=max(0, n - 3) * 10, still=max(0, n - 3)) for n in range(12)]
    rows += [window(n, 1 + other, lag=other + n % 3) for n in range(12) for other in range(11)]
    write_table(tmp_path, "lag", rows)
    out = tmp_path / "lag.png"

    reported_text = plot(tmp_path, "lag", "--group", "billing", "--topic", "orders", "--out", str(out))
    assert (reported_text.exit_code, reported_text.output) == (0, f"{out}: lag of billing\n")
    assert imread(out).shape[1] > 800 and 10_000 < out.stat().st_size < 150_000
    reported_text = plot(tmp_path, "lag", "--group", "billing", "--out", str(tmp_path / "none" / "lag.png"))
    assert (reported_text.exit_code, reported_text.output) == (
        2,
        f"tidegate: --out {tmp_path}/none/lag.png: No such file or directory\n",
    )
    reported_text = plot(tmp_path, "storm", "--group", "billing", "--out", str(out))
    reported = f"tidegate: no table timeline in {tmp_path}: tidegate pipeline timeline writes it\n"
    assert (reported_text.exit_code, reported_text.output) == (2, reported)
    for wrong, message in (
        (("--group", "other"), "nothing in the table lag from 1970-01-01 00:00:00 to"),
        (
            ("--group", "billing", "--to", "2026-11-21T17:00"),
            "to 2026-11-21 17:00:00 UTC, org default, group billing",
        ),
        (("--group", "billing", "--from", "noon"), "not a time: noon"),
    ):
        reported_text = plot(tmp_path, "lag", *wrong, "--out", str(out))
        assert reported_text.exit_code == 2 and message in reported_text.output


def test_storm_is_plotted_and_a_group_without_one_too(tmp_path: Path) -> None:
    rows = [generation(n, f"instance shard-{n % 3}", "static_member_restarted") for n in range(2, 20)]
    rows += [
        generation(20, "app at 10.0.0.1", "not known before", outcome="not_synced"),
        generation(21, "", "") | {"started_at": None},
    ]
    write_table(tmp_path, "timeline", rows)
    out = tmp_path / "storm.png"

    reported_text = plot(tmp_path, "storm", "--group", "billing", "--out", str(out))
    assert (
        reported_text.exit_code == 0
        and reported_text.output.startswith("no storm: ")
        and "20 generations" in reported_text.output
    )
    calm = out.read_bytes()
    write_table(tmp_path, "storms", [incident("opened"), incident("closed")])
    assert plot(tmp_path, "storm", "--group", "billing", "--out", str(out)).exit_code == 0
    assert out.read_bytes() != calm and imread(out).shape[1] > 800


def test_stretches_begin_where_it_stood_still_first() -> None:
    stills = [0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2, 3]
    rows = [window(number, still=still) for number, still in enumerate(stills)]

    assert [[row["stuck_windows"] for row in run] for run in stuck_stretches(rows)] == [[1, 2, 3, 4], [1, 2, 3]]


def test_partitions_of_one_member_are_named_together() -> None:
    stuck = [window(number, lag=10 * number, still=number) for number in range(1, 5)]
    later = [one | {"member": "other"} for one in stuck]
    runs = {"orders-0": [stuck], "orders-1": [stuck[1:]], "orders-2": [later], "orders-3": [stuck[3:]]}

    assert [(sorted(names), run[0]["member"]) for names, run in together(runs)] == [
        (["orders-0", "orders-1"], "m"),
        (["orders-2"], "other"),
        (["orders-3"], "m"),
    ]


def test_partitions_are_ordered_by_their_lag_and_summed() -> None:
    rows = [window(0, 0, lag=1), window(0, 1, lag=9), window(1, 1, lag=2)]

    assert list(by_partition(rows)) == ["orders-1", "orders-0"]
    assert total(rows, "lag_last") == ([minute(0.5), minute(1.5)], [10, 2])


def test_rate_that_no_partition_knows_is_a_gap() -> None:
    rows = [window(0, still=1), window(1, 0, still=1), window(1, 1), window(2, records_out_per_s=0.0)]
    first, *known = total(rows, "records_out_per_s")[1]

    assert math.isnan(first) and known == [8, 0]


def test_plot_of_a_storm_selects_members() -> None:
    rows = [generation(1, "a"), generation(2, "b"), generation(3, "b"), generation(4, "")]
    many = [generation(n, f"m{n}") for n in range(40)]

    assert most_troublesome(rows) == ["b", "a"] and len(most_troublesome(many)) == MEMBERS_MAX
    reported = [incident("opened"), incident("opened", "2"), incident("closed")]
    assert [(one["incident"], one["change"]) for one in latest(reported)] == [("1", "closed"), ("2", "opened")]


def test_times_as_people_give_them() -> None:
    assert (
        parse_time("2026-11-21T18:00", START)
        == parse_time("2026-11-21T19:00+01:00", START)
        == parse_time(None, START)
        == START
    )
    assert timedelta(minutes=89) < datetime.now(UTC) - parse_time("90m", START) < timedelta(minutes=91)
    with pytest.raises(UsageError, match="not a time"):
        parse_time("soon", START)
