"""Segments are read as they were written, row group by row group, without a copy of a batch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs, parquet

from tests.support.segments import batches_from, write_segment
from tidegate.records.batch import Batch
from tidegate.records.record import read_records
from tidegate.records.segment_file import SegmentFile, open_archive
from tidegate.records.segments import SegmentMissing, SegmentUnreadable

LOCAL = fs.LocalFileSystem()


def written(folder: Path, batches: list[bytes], **options: Any) -> SegmentFile:
    segment = write_segment(folder, batches, **options)
    return SegmentFile(LOCAL, f"{folder}/{segment.file}")


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_row_group_is_one_buffer_of_batches_end_to_end(tmp_path: Path, compression: str) -> None:
    batches = batches_from(100, [1, 5, 2, 9, 3, 4, 1, 1, 7, 2], value=b"x" * 300)
    file = written(tmp_path, batches, row_group_batches=4, compression=compression)

    groups = [file.read(at) for at in range(len(file.row_groups))]

    assert [len(group) for group in groups] == [4, 4, 2]
    assert groups[0].data.format == "B"
    assert [read_records(Batch.parse(groups[0].batch(at)))[0].offset for at in range(4)] == [100, 101, 106, 108]
    assert b"".join(bytes(group.data) for group in groups) == b"".join(batches)
    assert [bytes(group.batch(at)) for group in groups for at in range(len(group))] == batches
    assert [list(group.bases) for group in groups] == [[100, 101, 106, 108], [117, 120, 124, 125], [126, 133]]
    assert [list(group.lasts) for group in groups] == [[100, 105, 107, 116], [119, 123, 124, 125], [132, 134]]


def test_offset_is_found_by_row_group_and_then_by_batch(tmp_path: Path) -> None:
    file = written(tmp_path, batches_from(10, [5, 5, 5, 5, 5]), row_group_batches=2)

    found = [file.find(offset) for offset in (0, 10, 19, 20, 29, 30, 34, 35)]

    assert found == [0, 0, 0, 1, 1, 2, 2, 3]
    assert [file.read(1).find(offset) for offset in (0, 20, 24, 25, 29, 30)] == [0, 0, 0, 1, 1, 2]


def test_as_many_whole_batches_as_fit(tmp_path: Path) -> None:
    batches = batches_from(0, [1, 1, 1, 1], value=b"x" * 100)
    group, size = written(tmp_path, batches).read(0), len(batches[0])

    assert [group.fit(0, limit) for limit in (0, size - 1, size, 2 * size + 5, 99 * size)] == [0, 0, 1, 2, 4]
    assert [group.fit(3, limit) for limit in (size - 1, size, 2 * size)] == [0, 1, 1]


def test_footer_contains_what_a_search_needs(tmp_path: Path) -> None:
    batches = batches_from(7, [2], timestamp=50) + batches_from(11, [3], timestamp=40)
    file = written(tmp_path, batches, from_offset=5, row_group_batches=1)

    assert file.row_groups == [(5, 7, 8, 50), (9, 11, 13, 40)]
    assert (file.fields["topic"], file.fields["partition"], file.fields["version"]) == ("orders", 0, 1)


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    other = tmp_path / "other.parquet"
    segment = write_segment(tmp_path, batches_from(0, [1]))
    parquet.write_table(parquet.read_table(tmp_path / segment.file).replace_schema_metadata(None), other)
    torn = tmp_path / "torn.parquet"
    torn.write_bytes((tmp_path / segment.file).read_bytes()[:-40])

    with pytest.raises(SegmentMissing, match=r"gone\.parquet: there is no such file"):
        SegmentFile(LOCAL, str(tmp_path / "gone.parquet"))
    with pytest.raises(SegmentUnreadable, match=r"other\.parquet: it is not a segment"):
        SegmentFile(LOCAL, str(other))
    with pytest.raises(SegmentUnreadable, match=r"torn\.parquet"):
        SegmentFile(LOCAL, str(torn))
    with pytest.raises(SegmentUnreadable, match="format version 9 is not known here, only 1"):
        written(tmp_path, batches_from(0, [1]), version=9)


def test_threads_share_a_file_that_stays_open(tmp_path: Path) -> None:
    batches = batches_from(0, [1] * 64, value=b"x" * 3_000)
    file = written(tmp_path, batches, row_group_batches=2)
    with ThreadPoolExecutor(8) as threads:
        groups = list(threads.map(file.read, [at % 32 for at in range(320)]))

    assert [bytes(group.data) for group in groups[:32]] == [b"".join(batches[at : at + 2]) for at in range(0, 64, 2)]
    assert all(bytes(group.data) == bytes(groups[at % 32].data) for at, group in enumerate(groups))


def test_file_deleted_before_another_thread_opens_it_is_missing(tmp_path: Path) -> None:
    file = written(tmp_path, batches_from(0, [1]))
    Path(file.path).unlink()
    file._idle.clear()

    with pytest.raises(SegmentMissing):
        file.read(0)


def test_file_truncated_after_its_footer_was_read_is_unreadable(tmp_path: Path) -> None:
    file = written(tmp_path, batches_from(0, [1] * 4, value=b"x" * 9_000))
    Path(file.path).write_bytes(Path(file.path).read_bytes()[:5_000])

    with pytest.raises(SegmentUnreadable, match="row group 0"):
        file.read(0)


def test_archive_is_a_folder_or_a_uri(tmp_path: Path) -> None:
    local, root = open_archive(str(tmp_path))
    same, same_root = open_archive(f"file://{tmp_path}/")

    assert (local.type_name, root) == (same.type_name, same_root) == ("local", str(tmp_path))
    with pytest.raises(ValueError, match="cannot be opened at nope://x"):
        open_archive("nope://x")


@pytest.mark.parametrize("uri", ["nope://AKIA:s3cret@b/x", "s3://AKIA:s3cr/et@b/x", "s3://AKIA:s3cr@et@b/x?foo=1"])
def test_archive_that_cannot_be_opened_is_named_without_its_keys(uri: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be opened at \w+://\*\*\*@b/x") as reported:
        open_archive(uri)
    assert "s3cr" not in str(reported.value) and "et@" not in str(reported.value)


def test_footer_reports_the_memory_that_it_takes(tmp_path: Path) -> None:
    """pyarrow's objects of a footer take about 9 kB for a row group, and 30 kB without any."""
    batches = batches_from(0, [1] * 128)

    few = written(tmp_path / "few", batches, row_group_batches=128).memory_bytes
    many = written(tmp_path / "many", batches, row_group_batches=1).memory_bytes

    assert 25_000 < few < 50_000
    assert 9_000 < (many - few) / 127 < 12_000


def test_idle_remote_file_contains_no_bytes_of_its_last_read(tmp_path: Path) -> None:
    segment = write_segment(tmp_path, batches_from(0, [1], value=bytes(500_000)))
    file = SegmentFile(fs.SubTreeFileSystem(str(tmp_path), LOCAL), segment.file)
    before = pa.total_allocated_bytes()

    file.read(0)

    deadline_s = monotonic() + 60
    while pa.total_allocated_bytes() > before and monotonic() < deadline_s:  # a thread of pyarrow drops them
        sleep(0.001)
    assert pa.total_allocated_bytes() <= before
