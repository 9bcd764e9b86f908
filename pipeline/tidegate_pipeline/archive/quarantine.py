"""Two Parquet tables of unreadable data: corrupt batches, and offsets that were removed before they were read.

`<archive>/quarantine/batches` and `<archive>/quarantine/gaps` have one file per row, named after its content: a task
that runs again writes the same file, so no row appears twice.
"""

from __future__ import annotations

import os
import secrets
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyarrow import fs, parquet

from tidegate_pipeline.archive.segment_writer import ArchiveFolder
from tidegate_pipeline.sources.offset_ranges import PartitionRange

BATCHES: Final = "quarantine/batches"
GAPS: Final = "quarantine/gaps"

BATCHES_ARROW: Final = pa.schema(
    {
        "ts": pa.timestamp("ms", tz="UTC"),
        "topic": pa.string(),
        "partition": pa.int32(),
        "base_offset": pa.int64(),
        "last_offset": pa.int64(),
        "reason": pa.string(),
        "batch": pa.binary(),
    }
)
"""A corrupt batch: when it was found, its offsets as far as they are known, why, and its bytes."""

GAPS_ARROW: Final = pa.schema(
    {
        "ts": pa.timestamp("ms", tz="UTC"),
        "topic": pa.string(),
        "partition": pa.int32(),
        "wanted_offset": pa.int64(),
        "log_start": pa.int64(),
    }
)
"""Offsets `wanted_offset` to `log_start` (exclusive) were in no tier any more."""

_NAME_PARTS: Final = 5


class Quarantine:
    """Both tables of one archive. Safe from any number of tasks and drivers at once."""

    def __init__(self, archive: ArchiveFolder) -> None:
        self._archive = archive

    @classmethod
    def open(cls, archive_path: str) -> Quarantine:
        """The quarantine of the archive at a path or URI. Raises UsageError."""
        return cls(ArchiveFolder.open(archive_path))

    def add(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Add corrupt batches, with the fields of BATCHES_ARROW, `ts` in ms. Returns how many are new."""
        return sum(
            self._put(
                f"{BATCHES}/{row['topic']}-{row['partition']}-{row['base_offset']:020d}-{row['last_offset']:020d}"
                f"-{zlib.crc32(row['batch']):08x}.parquet",
                BATCHES_ARROW,
                row,
            )
            for row in rows
        )

    def count(self, ranges: Iterable[PartitionRange]) -> int:
        """The number of corrupt batches whose base offset is in one of the ranges."""
        wanted = {(one.topic, str(one.partition)): one for one in ranges}
        return sum(offset in wanted.get((topic, partition), ()) for topic, partition, offset in self._batches())

    def base_offsets(self, topic: str, partition: int) -> set[int]:
        """The base offsets of the corrupt batches of a partition."""
        return {offset for name, index, offset in self._batches() if (name, index) == (topic, str(partition))}

    def _batches(self) -> Iterator[tuple[str, str, int]]:
        """Topic, partition and base offset of each corrupt batch, by the names of the files."""
        selector = fs.FileSelector(self._archive.path(BATCHES), allow_not_found=True)
        names = (file.base_name.rsplit("-", 4) for file in self._archive.filesystem.get_file_info(selector))
        return ((name[0], name[1], int(name[2])) for name in names if len(name) == _NAME_PARTS)

    def add_gaps(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Add lost offsets, with the fields of GAPS_ARROW, `ts` in ms. Returns how many are new."""
        return sum(
            self._put(
                f"{GAPS}/{row['topic']}-{row['partition']}-{row['wanted_offset']:020d}-{row['log_start']:020d}.parquet",
                GAPS_ARROW,
                row,
            )
            for row in rows
        )

    def _put(self, file: str, schema: pa.Schema, row: Mapping[str, Any]) -> bool:
        filesystem, path = self._archive.filesystem, self._archive.path(file)
        if filesystem.get_file_info(path).type != fs.FileType.NotFound:
            return False
        table = pa.Table.from_pylist([dict(row)], schema=schema)
        if not self._archive.is_local:
            parquet.write_table(table, path, filesystem=filesystem)
            return True
        os.makedirs(os.path.dirname(path), exist_ok=True)
        unfinished = f"{os.path.dirname(path)}/.{secrets.token_hex(8)}"  # readers of folders pass over such names
        parquet.write_table(table, unfinished)
        self._archive.sync(unfinished)  # the archive leaves it out, and Redis is trimmed: it is all there is
        os.replace(unfinished, path)
        self._archive.sync(path)
        return True
