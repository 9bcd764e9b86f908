"""What a broker keeps of the archive."""

from __future__ import annotations

import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow.fs import LocalFileSystem

from tests.support.segments import batches_from, write_segment
from tidegate.log import archive_files
from tidegate.log.archive_files import ArchiveFiles
from tidegate.log.lru_cache import LruCache
from tidegate.memory import shares_of
from tidegate.records.segment_file import SegmentFile
from tidegate.settings import Settings


@pytest.mark.parametrize(("open_files", "kept"), [(16, 4), (256, 10), (resource.RLIM_INFINITY, 10)])
def test_cached_segments_leave_most_open_files_to_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_files: int, kept: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (open_files, open_files))
    monkeypatch.setattr(archive_files, "FOOTERS_MAX", 10)
    files = ArchiveFiles(Settings(archive_path=str(tmp_path)))
    segment: Any = SimpleNamespace(memory_bytes=0)

    for number in range(20):
        files._keep_footer(str(number), segment)

    assert [number for number in range(20) if files.cached_footer(str(number))] == list(range(20 - kept, 20))
    files.close()


def test_cached_footers_stay_within_their_share_of_memory(tmp_path: Path) -> None:
    memory_max = 384 << 20
    files = ArchiveFiles(Settings(archive_path=str(tmp_path), memory_max=memory_max))
    segment = write_segment(tmp_path, batches_from(0, [1] * 200), row_group_batches=1)
    footer = SegmentFile(LocalFileSystem(), files.path_of(segment))
    count = shares_of(memory_max).archive_footers // footer.memory_bytes

    for number in range(8):
        files._keep_footer(str(number), footer)

    assert 1 <= count < 8
    assert [number for number in range(8) if files.cached_footer(str(number))] == list(range(8 - count, 8))
    assert files.size == count * footer.memory_bytes
    files.close()


def test_row_groups_and_footers_share_the_memory_of_the_archive() -> None:
    shares = shares_of(2 << 30)

    assert shares.archive_footers == shares.archive_cache == ((2 << 30) - (192 << 20)) // 32


def test_entry_above_the_limit_is_not_cached_and_evicts_no_other() -> None:
    cache = LruCache[str, int](10)
    cache.put("a", 1, 6)

    cache.put("b", 2, 11)
    assert (cache.get("a"), cache.get("b"), cache.bytes) == (1, None, 6)


def test_least_recently_used_entry_is_evicted_first() -> None:
    cache = LruCache[str, int](10)
    cache.put("a", 1, 4)
    cache.put("b", 2, 4)
    cache.get("a")

    cache.put("c", 3, 4)
    assert (cache.get("a"), cache.get("b"), cache.get("c"), cache.bytes) == (1, None, 3, 8)
    cache.drop("a")
    assert (len(cache), cache.bytes) == (1, 4)
