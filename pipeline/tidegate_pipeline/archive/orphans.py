"""Files that the index does not name: of failed tasks, of micro-batches that ran again, of compaction. And old topics.

A file is removed when the index of its partition is there, does not name it, and it is older than `gc_grace`, which is
longer than a micro-batch may take: what runs now is not published yet. A file that reaches above the end of the
archive is kept whatever its age: with an older index (Redis restored from an old copy) it may be all there is.
So it may where the segment that the index names for its range is not there.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from pyarrow import fs

from tidegate.records.segments import FORMAT_VERSION
from tidegate_pipeline.archive.index import ArchiveIndex
from tidegate_pipeline.archive.place import Place
from tidegate_pipeline.archive.segment_writer import ArchiveFolder
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.redis_access import Client

_NO_END: Final = 1 << 63
_NAME: Final = re.compile(r"/\d+-(\d+)-[0-9a-f]+\.parquet$")


@dataclass(slots=True)
class Collected:
    """What became of unpublished files; `above_end` and `of_unknown_topics` were kept."""

    files_removed: int = 0
    bytes_removed: int = 0
    young: int = 0
    above_end: int = 0
    of_unknown_topics: int = 0

    def take(self, file: StoredFile, end: int, older_than: float) -> bool:
        """Count an unpublished file; whether it is to be removed."""
        if file.written_at >= older_than:
            self.young += 1
            return False
        if file.last_offset >= end:
            self.above_end += 1
            return False
        self.files_removed += 1
        self.bytes_removed += file.size
        return True


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the archive: its path below the root, its bytes, when it was written (seconds since 1970).

    In a store without modification times no file is old.
    """

    file: str
    size: int
    written_at: float

    @property
    def last_offset(self) -> int:
        """From its name; -1 if the name does not contain it."""
        found = _NAME.search(self.file)
        return int(found[1]) if found else -1


def stored_files(archive: ArchiveFolder, folder: str = f"raw/v{FORMAT_VERSION}") -> dict[Place, list[StoredFile]]:
    """Every segment file that is there, published or not, by partition."""
    selector = fs.FileSelector(archive.path(folder), allow_not_found=True, recursive=True)
    files: defaultdict[Place, list[StoredFile]] = defaultdict(list)
    for info in archive.filesystem.get_file_info(selector):
        file = info.path.removeprefix(f"{archive.root}/")
        place = Place.of_file(file) if info.type == fs.FileType.File else None
        if place is not None:
            files[place].append(StoredFile(file, info.size, info.mtime.timestamp() if info.mtime else inf))
    return dict(sorted(files.items()))


def unpublished(index: ArchiveIndex, files: Iterable[StoredFile]) -> list[StoredFile]:
    """Those that the index does not name. List the files first: one published meanwhile is then in the index.

    What was replaced by a compacted segment counts as written when that was: readers may hold its name since then.
    Where that file was not listed it is newer than the list, or gone, and then nothing may be old.
    """
    listed = {file.file: file for file in files}
    segments = list(index.all_segments())
    named, lasts = {segment.file for segment in segments}, [segment.last_offset for segment in segments]
    found = []
    for file in listed.values():
        if file.file not in named:
            at, written_at = bisect_left(lasts, file.last_offset), file.written_at
            if at < len(segments):
                covering = listed.get(segments[at].file)
                written_at = max(written_at, covering.written_at if covering else inf)
            found.append(replace(file, written_at=written_at))
    return found


def collect(
    archive: ArchiveFolder,
    client: Client,
    prefix: str,
    org: str,
    known: Collection[Place],
    older_than: float,
    *,
    deleted_topics: bool = False,
    dry_run: bool = False,
) -> Collected:
    """Remove orphans of an organisation written before `older_than` (seconds since 1970), or only count them.

    `known` are all its partitions in the catalogue. Files of others stay, unless `deleted_topics`: then their index
    goes too. Raises UsageError where the catalogue is empty: that is the wrong Redis rather than no topics.
    """
    if deleted_topics and not known:
        raise UsageError("there are no topics here: is this the right Redis? nothing was removed")
    reported = Collected()
    for place, files in stored_files(archive, f"raw/v{FORMAT_VERSION}/{org}").items():
        keys = place.keys(prefix)
        index = ArchiveIndex(client, keys)
        if place in known:
            orphans, end = unpublished(index, files), index.state().end
        elif deleted_topics and client.hget(keys.meta, "state") != b"ready":  # else it was made just now
            orphans, end = files, _NO_END
            if not dry_run:
                index.forget()
        else:
            reported.of_unknown_topics += len(files)
            continue
        for file in orphans:
            if reported.take(file, end, older_than) and not dry_run:
                archive.filesystem.delete_file(archive.path(file.file))
    return reported
