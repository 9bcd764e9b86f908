"""Two Parquet tables of unreadable data: corrupt batches, and offsets that were removed before they were read.

`<archive>/quarantine/batches/<org>` and `<archive>/quarantine/gaps/<org>` have one file per row, named after its
content: a task that runs again writes the same file, so no row appears twice. A topic that was made again has another
topic id, so its rows are its own. `<archive>/quarantine/found/<plan>` has an empty file for each corrupt batch that a
micro-batch or a query found, so that its tasks can count them together.
"""

from __future__ import annotations

import os
import secrets
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
from pyarrow import fs, parquet

from tidegate_pipeline.archive.place import Place
from tidegate_pipeline.archive.segment_writer import ArchiveFolder

BATCHES: Final = "quarantine/batches"
GAPS: Final = "quarantine/gaps"
FOUND: Final = "quarantine/found"

PLACE: Final = {
    "ts": pa.timestamp("ms", tz="UTC"),
    "org": pa.string(),
    "topic": pa.string(),
    "topic_id": pa.string(),
    "partition": pa.int32(),
}

BATCHES_ARROW: Final = pa.schema(
    {
        **PLACE,
        "base_offset": pa.int64(),
        "last_offset": pa.int64(),
        "reason": pa.string(),
        "batch": pa.binary(),
    }
)
"""A corrupt batch: when it was found, its offsets as far as they are known, why, and its bytes."""

GAPS_ARROW: Final = pa.schema(
    {
        **PLACE,
        "wanted_offset": pa.int64(),
        "log_start": pa.int64(),
    }
)
"""Offsets `wanted_offset` to `log_start` (exclusive) were in no tier any more."""

_NAME_PARTS: Final = 6


class Quarantine:
    """Both tables of one archive. Safe from any number of tasks and drivers at once."""

    def __init__(self, archive: ArchiveFolder) -> None:
        self._archive = archive

    @classmethod
    def open(cls, archive_path: str) -> Quarantine:
        """The quarantine of the archive at a path or URI. Raises UsageError."""
        return cls(ArchiveFolder.open(archive_path))

    def add(self, rows: Iterable[Mapping[str, Any]], plan: str) -> int:
        """Add corrupt batches that a plan found: fields of BATCHES_ARROW, `ts` in ms. Returns how many are new."""
        new = 0
        for row in rows:
            name = (
                f"{_partition(row)}-{row['base_offset']:020d}-{row['last_offset']:020d}-{zlib.crc32(row['batch']):08x}"
            )
            new += self._put(f"{BATCHES}/{row['org']}/{name}.parquet", BATCHES_ARROW, row)
            self._mark(f"{FOUND}/{plan}/{name}")
        return new

    def count(self, plan: str) -> int:
        """The number of corrupt batches that the tasks of a plan found."""
        return len(self._names(f"{FOUND}/{plan}"))

    def count_ending(self, end: str) -> int:
        """As `count`, of all plans whose name begins so: a batch that several found counts once."""
        plans = (name for name in self._names(FOUND) if name.startswith(end))
        return len({name for plan in plans for name in self._names(f"{FOUND}/{plan}")})

    def base_offsets(self, place: Place) -> set[int]:
        """The base offsets of the corrupt batches of a partition."""
        names = (name.rsplit("-", _NAME_PARTS - 1) for name in self._names(f"{BATCHES}/{place.org}"))
        wanted = [place.topic, place.topic_id, str(place.partition)]
        return {int(name[3]) for name in names if name[:3] == wanted and len(name) == _NAME_PARTS}

    def _names(self, folder: str) -> list[str]:
        selector = fs.FileSelector(self._archive.path(folder), allow_not_found=True)
        return [file.base_name for file in self._archive.filesystem.get_file_info(selector)]

    def _mark(self, file: str) -> None:
        """An empty file; nothing is lost without it but a count."""
        path = self._archive.path(file)
        if self._archive.is_local:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        self._archive.filesystem.open_output_stream(path).close()

    def add_gaps(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Add lost offsets, with the fields of GAPS_ARROW, `ts` in ms. Returns how many are new."""
        return sum(
            self._put(
                f"{GAPS}/{row['org']}/{_partition(row)}-{row['wanted_offset']:020d}-{row['log_start']:020d}.parquet",
                GAPS_ARROW,
                row,
            )
            for row in rows
        )

    def add_row(self, table: str, name: str, schema: pa.Schema, row: Mapping[str, Any]) -> bool:
        """Add a row of `schema`, with the fields of PLACE and `ts` in ms, to a table; whether it is new."""
        return self._put(f"{table}/{row['org']}/{_partition(row)}-{name}.parquet", schema, row)

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


def _partition(row: Mapping[str, Any]) -> str:
    return f"{row['topic']}-{row['topic_id']}-{row['partition']}"
