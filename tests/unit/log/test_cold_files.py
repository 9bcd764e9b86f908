"""What a broker keeps of the archive."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest

from tidegate.log import archive_files
from tidegate.log.archive_files import ArchiveFiles
from tidegate.settings import Settings


@pytest.mark.parametrize(("open_files", "kept"), [(16, 4), (256, 10), (resource.RLIM_INFINITY, 10)])
def test_cached_segments_leave_most_open_files_to_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_files: int, kept: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (open_files, open_files))
    monkeypatch.setattr(archive_files, "FOOTERS_MAX", 10)
    files = ArchiveFiles(Settings(archive_path=str(tmp_path)))
    segment: Any = object()

    for number in range(20):
        files._keep_footer(str(number), segment)

    assert [number for number in range(20) if files.cached_footer(str(number))] == list(range(20 - kept, 20))
    files.close()
