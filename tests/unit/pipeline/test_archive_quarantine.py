"""The tables of what could not be read: each range once, whoever finds it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pyarrow import parquet

from tidegate_pipeline.archive.place import Place
from tidegate_pipeline.archive.quarantine import Quarantine

PLAN = "0123"


def corrupt(base_offset: int, batch: bytes = b"\x00broken", ts: int = 1_700_000_000_000) -> dict[str, Any]:
    return {
        "ts": ts, "org": "default", "topic": "or-ders", "topic_id": "a1", "partition": 3,
        "base_offset": base_offset, "last_offset": base_offset + 9,
        "reason": "the CRC of the record batch is wrong", "batch": batch,
    }  # fmt: skip


def table(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = parquet.read_table(folder).to_pylist()
    return sorted(rows, key=lambda row: (row.get("base_offset", 0), row.get("batch", b"")))


def test_quarantine_corrupt_batch_is_stored_with_its_bytes_and_the_reason(tmp_path: Path) -> None:
    assert Quarantine.open(str(tmp_path)).add([corrupt(40), corrupt(50)], PLAN) == 2

    first, second = table(tmp_path / "quarantine/batches")
    assert (first["ts"].timestamp(), first["topic"], first["partition"]) == (1_700_000_000, "or-ders", 3)
    assert (first["base_offset"], first["last_offset"], second["base_offset"]) == (40, 49, 50)
    assert (first["reason"], first["batch"]) == ("the CRC of the record batch is wrong", b"\x00broken")


def test_range_is_there_once_however_many_tasks_find_it(tmp_path: Path) -> None:
    rows = [corrupt(offset) for offset in range(0, 100, 10)]
    with ThreadPoolExecutor(4) as pool:
        added = list(pool.map(lambda at: Quarantine.open(str(tmp_path)).add(rows[at % 3 :], PLAN), range(8)))

    assert sum(added) >= 10
    assert [row["base_offset"] for row in table(tmp_path / "quarantine/batches")] == list(range(0, 100, 10))
    assert Quarantine.open(str(tmp_path)).add([corrupt(0, ts=5)], PLAN) == 0
    assert table(tmp_path / "quarantine/batches")[0]["ts"].timestamp() == 1_700_000_000, "the first sight is kept"


def test_another_batch_of_the_same_offsets_is_another_row(tmp_path: Path) -> None:
    Quarantine.open(str(tmp_path)).add([corrupt(0, b"one"), corrupt(0, b"two")], PLAN)

    assert [row["batch"] for row in table(tmp_path / "quarantine/batches")] == [b"one", b"two"]


def test_quarantine_lost_offsets_are_stored(tmp_path: Path) -> None:
    place = {"ts": 5, "org": "default", "topic": "orders", "topic_id": "a1", "partition": 0}
    gap = {**place, "wanted_offset": 100, "log_start": 250}
    quarantine = Quarantine.open(str(tmp_path))

    assert (quarantine.add_gaps([gap]), quarantine.add_gaps([gap])) == (1, 0)

    (row,) = table(tmp_path / "quarantine/gaps")
    assert (row["topic"], row["wanted_offset"], row["log_start"]) == ("orders", 100, 250)


def test_batches_are_counted_by_plan_and_named_by_place(tmp_path: Path) -> None:
    quarantine = Quarantine.open(str(tmp_path))
    quarantine.add([corrupt(0), corrupt(10)], "one")
    quarantine.add([{**corrupt(10), "topic_id": "b2"}, {**corrupt(20), "org": "other"}], "two")
    quarantine.add([corrupt(10)], "two")

    assert [quarantine.count(plan) for plan in ("one", "two", "three")] == [2, 3, 0]
    places = [
        Place("default", "or-ders", "a1", 3),
        Place("default", "or-ders", "b2", 3),
        Place("other", "or-ders", "a1", 3),
    ]
    assert [quarantine.base_offsets(place) for place in places] == [{0, 10}, {10}, {20}]
    assert quarantine.base_offsets(Place("default", "ders", "a1", 3)) == set()
