"""Rows of batches are cut into ranges without a hole, and written so that a broker can serve them."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from tests.support.archive import TOPIC_ID, raw_rows
from tests.support.segments import batches_from
from tidegate.records.build import NewRecord, build_batch
from tidegate.records.segment_file import SegmentFile
from tidegate.records.segments import COLUMNS, STATISTICS
from tidegate_pipeline.archive.place import Place
from tidegate_pipeline.archive.quarantine import Quarantine
from tidegate_pipeline.archive.segment_writer import ArchiveFolder, Shape, write_segment
from tidegate_pipeline.archive.slicing import SegmentSlice, slice_segments
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.replay.translation import Row, Table

PLACE = Place("default", "orders", TOPIC_ID, 0)


def ranges(trims: list[SegmentSlice]) -> list[tuple[int, int, int]]:
    return [(one.place.partition, one.from_offset, one.end_offset) for one in trims]


def batches_of(one: SegmentSlice) -> list[bytes]:
    return [bytes(value) for value in one.rows["batch"].to_pylist()]


def written(folder: Path, rows: pa.RecordBatch, shape: Shape = Shape()) -> tuple[Path, SegmentFile]:  # noqa: B008
    archive = ArchiveFolder.open(str(folder))
    (part,) = slice_segments([rows], "default", 1 << 30)
    segment = write_segment(archive, part, shape)
    return folder / segment.file, SegmentFile(archive.filesystem, archive.path(segment.file))


@pytest.mark.parametrize(
    "write",
    [
        lambda root: written(root, raw_rows(batches_from(0, [1]))),
        lambda root: Quarantine.open(str(root)).add(
            [
                {
                    **{"ts": 1, "org": "o", "topic": "t", "topic_id": "a1", "partition": 0},
                    **{"base_offset": 0, "last_offset": 0, "reason": "", "batch": b""},
                }
            ],
            "plan",
        ),
        lambda root: Table(str(root), "job", "a", "00", "b").add([Row(0, 0, 9, 0, 0, 9)]),
    ],
    ids=["segment", "quarantine", "translation"],
)
def test_segments_are_synced_before_redis_drops_them(
    write: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    monkeypatch.setattr(os, "fsync", lambda file: synced.add(os.readlink(f"/proc/self/fd/{file}")))

    write(tmp_path)

    (file,) = tmp_path.rglob("*.parquet")
    folders = [folder for folder in file.parents if folder == tmp_path or tmp_path in folder.parents]
    assert {str(path) for path in (file, *folders)} <= synced


def test_offset_range_is_split_by_bytes_and_across_arrow_batches() -> None:
    batches = batches_from(10, [1, 2, 3, 4, 5], value=b"x" * 100)
    rows = raw_rows(batches)

    trims = list(slice_segments([rows.slice(0, 2), rows.slice(2, 0), rows.slice(2)], "default", 400))

    assert ranges(trims) == [(0, 10, 13), (0, 13, 20), (0, 20, 25)]
    assert [batch for one in trims for batch in batches_of(one)] == batches


def test_task_may_contain_several_partitions_and_several_ranges_of_one() -> None:
    rows = [
        raw_rows(batches_from(0, [2, 2])),
        raw_rows(batches_from(9, [1])),
        raw_rows(batches_from(10, [1]), partition=1),
        raw_rows(batches_from(11, [1]), partition=1, topic_id="f" * 32),
    ]

    trims = list(slice_segments(rows, "default", 1 << 20))

    assert ranges(trims) == [(0, 0, 4), (0, 9, 10), (1, 10, 11), (1, 11, 12)]
    assert trims[3].place == Place("default", "orders", "f" * 32, 1)


def test_ranges_keep_the_offsets_that_have_no_batch() -> None:
    one, two = batches_from(5, [2]) + batches_from(20, [1])

    (part,) = slice_segments([raw_rows([one, (7, 9), two, (21, 30)], from_offset=3)], "default", 1 << 20)
    (nothing,) = slice_segments([raw_rows([(0, 4)])], "default", 1 << 20)

    assert ranges([part]) == [(0, 3, 31)]
    assert batches_of(part) == [one, two]
    assert part.rows["from_offset"].to_pylist() == [3, 7], "the one after the hole follows the one before"
    assert ranges([nothing]) == [(0, 0, 5)]
    assert len(nothing.rows) == 0


@settings(max_examples=100, deadline=None)
@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=30),
    slices=st.lists(st.integers(0, 30), max_size=5),
    segment_bytes=st.integers(1, 3_000),
)
def test_segment_slices_are_contiguous_and_lose_nothing(
    counts: list[int], slices: list[int], segment_bytes: int
) -> None:
    batches = batches_from(7, counts, value=b"x" * 50)
    rows = raw_rows(batches)
    at = [0, *sorted(min(one, len(rows)) for one in slices), len(rows)]

    trims = list(slice_segments([rows.slice(a, b - a) for a, b in pairwise(at)], "default", segment_bytes))

    assert [batch for one in trims for batch in batches_of(one)] == batches
    assert [one.from_offset for one in trims] == [7, *(one.end_offset for one in trims[:-1])]
    assert trims[-1].end_offset == 7 + sum(counts)
    assert all(one.size >= segment_bytes for one in trims[:-1])
    assert all(one.size - len(batches_of(one)[-1]) < segment_bytes for one in trims)


def test_segment_is_what_a_broker_reads(tmp_path: Path) -> None:
    batches = batches_from(100, [1, 5, 2, 9, 3, 4], value=b"x" * 300, timestamp=1_000)
    path, file = written(tmp_path, raw_rows(batches, from_offset=98), Shape(row_group_bytes=3_000))

    groups = [file.read(at) for at in range(len(file.row_groups))]

    assert [len(group) for group in groups] == [3, 1, 2]
    assert [bytes(group.batch(at)) for group in groups for at in range(len(group))] == batches
    assert all(b"".join(batches).find(bytes(group.data)) >= 0 for group in groups), "end to end in one buffer"
    assert file.row_groups[0] == (98, 100, 107, 1_000)
    assert path.parent == tmp_path / "raw/v1/default/orders" / TOPIC_ID / "0"
    assert path.name.startswith(f"{100:020d}-{123:020d}-")
    assert {name: file.fields[name] for name in ("org", "topic", "topic_id", "partition", "version")} == {
        "org": "default", "topic": "orders", "topic_id": TOPIC_ID, "partition": 0, "version": 1,
    }  # fmt: skip
    assert (file.fields["from_offset"], file.fields["last_offset"], file.fields["records"]) == (98, 123, 24)


def test_columns_are_as_agreed_and_only_those_searched_by_have_statistics(tmp_path: Path) -> None:
    batches = batches_from(0, [1, 2], producer_id=9, epoch=3, sequence=70)
    path, _ = written(tmp_path, raw_rows(batches))

    file = parquet.ParquetFile(path)
    group = file.metadata.row_group(0)

    assert [(field.name, str(field.type), field.nullable) for field in file.schema_arrow] == [
        (name, kind, False) for name, kind in COLUMNS
    ]
    columns = [group.column(at) for at in range(group.num_columns)]
    assert {column.path_in_schema for column in columns if column.is_stats_set} == set(STATISTICS)
    assert not any(column.has_dictionary_page for column in columns)
    assert file.read(columns=["producer_id", "producer_epoch", "base_sequence", "records"]).to_pylist() == [
        {"producer_id": 9, "producer_epoch": 3, "base_sequence": 70, "records": count} for count in (1, 2)
    ]


@pytest.mark.parametrize(
    ("recompress", "codecs", "expected"),
    [
        ("auto", [0, 0, 3], "ZSTD"),
        ("auto", [3, 3, 0], "UNCOMPRESSED"),
        ("never", [0], "UNCOMPRESSED"),
        ("always", [4], "ZSTD"),
    ],
)
def test_batches_are_compressed_where_their_producers_did_not(
    tmp_path: Path, recompress: str, codecs: list[int], expected: str
) -> None:
    value = random.Random(1).randbytes(2_000)
    batches = [
        build_batch([NewRecord(value)], codec=codec, base_offset=at, leader_epoch=0) for at, codec in enumerate(codecs)
    ]
    path, file = written(tmp_path, raw_rows(batches), Shape(recompress=recompress))  # type: ignore[arg-type]

    group = parquet.ParquetFile(path).metadata.row_group(0)

    assert [group.column(at).compression for at in range(group.num_columns)] == ["UNCOMPRESSED"] * 10 + [expected]
    assert [bytes(file.read(0).batch(at)) for at in range(len(batches))] == batches


def test_range_with_no_good_batch_is_a_segment_without_rows(tmp_path: Path) -> None:
    path, file = written(tmp_path, raw_rows([(5, 9)]))

    assert file.row_groups == []
    assert (file.fields["from_offset"], file.fields["last_offset"], file.fields["records"]) == (5, 9, 0)
    assert json.loads(parquet.read_schema(path).metadata[b"tidegate"])["size"] == 0


def test_place_of_file_parses_paths() -> None:
    file = f"{PLACE.folder}/{0:020d}-{1:020d}-ab.parquet"

    assert Place.of_file(file) == PLACE
    assert Place.of_file("quarantine/batches/part-0.parquet") is None
    assert Place.of_file(file.replace("raw/v1", "raw/v2")) is None


def test_archive_needs_a_path_that_can_be_opened() -> None:
    with pytest.raises(UsageError, match=r"archive\.path is not set"):
        ArchiveFolder.open("")
    with pytest.raises(UsageError, match="cannot be opened at nowhere://"):
        ArchiveFolder.open("nowhere://x")
