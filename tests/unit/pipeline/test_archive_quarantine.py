"""The tables of what could not be read: each range once, whoever finds it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pyarrow import parquet

from tidegate_pipeline.archive.quarantine import Quarantine


def corrupt(base_offset: int, batch: bytes = b"\x00broken", ts: int = 1_700_000_000_000) -> dict[str, Any]:
    return {
        "ts": ts, "topic": "orders", "partition": 3, "base_offset": base_offset, "last_offset": base_offset + 9,
        "reason": "the CRC of the record batch is wrong", "batch": batch,
    }  # fmt: skip


def table(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = parquet.read_table(folder).to_pylist()
    return sorted(rows, key=lambda row: (row.get("base_offset", 0), row.get("batch", b"")))


def test_a_corrupt_batch_is_kept_with_its_bytes_and_the_reason(tmp_path: Path) -> None:
    assert Quarantine.open(str(tmp_path)).add([corrupt(40), corrupt(50)]) == 2

    first, second = table(tmp_path / "quarantine/batches")
    assert (first["ts"].timestamp(), first["topic"], first["partition"]) == (1_700_000_000, "orders", 3)
    assert (first["base_offset"], first["last_offset"], second["base_offset"]) == (40, 49, 50)
    assert (first["reason"], first["batch"]) == ("the CRC of the record batch is wrong", b"\x00broken")


def test_a_range_is_there_once_however_many_tasks_find_it(tmp_path: Path) -> None:
    rows = [corrupt(offset) for offset in range(0, 100, 10)]
    with ThreadPoolExecutor(4) as pool:
        added = list(pool.map(lambda at: Quarantine.open(str(tmp_path)).add(rows[at % 3 :]), range(8)))

    assert sum(added) >= 10
    assert [row["base_offset"] for row in table(tmp_path / "quarantine/batches")] == list(range(0, 100, 10))
    assert Quarantine.open(str(tmp_path)).add([corrupt(0, ts=5)]) == 0
    assert table(tmp_path / "quarantine/batches")[0]["ts"].timestamp() == 1_700_000_000, "the first sight is kept"


def test_the_same_offsets_of_a_topic_made_again_are_another_row(tmp_path: Path) -> None:
    Quarantine.open(str(tmp_path)).add([corrupt(0, b"one"), corrupt(0, b"two")])

    assert [row["batch"] for row in table(tmp_path / "quarantine/batches")] == [b"one", b"two"]


def test_lost_offsets_are_kept(tmp_path: Path) -> None:
    gap = {"ts": 5, "topic": "orders", "partition": 0, "wanted_offset": 100, "log_start": 250}
    quarantine = Quarantine.open(str(tmp_path))

    assert (quarantine.add_gaps([gap]), quarantine.add_gaps([gap])) == (1, 0)

    (row,) = table(tmp_path / "quarantine/gaps")
    assert (row["topic"], row["wanted_offset"], row["log_start"]) == ("orders", 100, 250)
