"""The target offset of each record of a replay: Parquet below `<archive>/translation`, and offsets looked up in it.

A file holds the rows of one source partition from one micro-batch, and its name the source offsets: what is there is
never written again, so the table has each row once, whatever was tried again.
"""

from __future__ import annotations

import re
import secrets
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from tidegate_pipeline.archive.segment_writer import ArchiveFolder
from tidegate_pipeline.errors import UsageError

COLUMNS: Final = pa.schema(
    {
        "job": pa.string(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "source_base": pa.int64(),
        "source_last": pa.int64(),
        "target_topic": pa.string(),
        "target_partition": pa.int32(),
        "target_base": pa.int64(),
        "target_last": pa.int64(),
    }
)
"""`topic` and `partition` are the source's; bases and lasts are offsets, both inclusive."""

_FILE: Final = re.compile(r"(\d{20})-(\d{20})\.parquet")
_JOB: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")


class Row(NamedTuple):
    """Source offsets `source_base` to `source_last` stand at `target_base` to `target_last`, in order.

    Where both are equally many each stands at the same distance from the base; with `--repartition` a row is what
    one batch gave to one partition, and records between them went elsewhere.
    """

    partition: int
    source_base: int
    source_last: int
    target_partition: int
    target_base: int
    target_last: int

    def position(self, offset: int) -> int:
        """Where a consumer continues that has `offset` next, which is not behind the row; never too far."""
        if offset <= self.source_base or self.target_last - self.target_base != self.source_last - self.source_base:
            return self.target_base
        return self.target_base + offset - self.source_base


@dataclass(frozen=True, slots=True)
class Table:
    """The translations of one job from one topic to another. `root` is the archive's: a folder or a URI."""

    root: str
    job: str
    topic: str
    topic_id: str
    target: str

    def __post_init__(self) -> None:
        if not self.root:
            raise UsageError("a replay stores the target offsets of records: set archive.path")
        if not _JOB.fullmatch(self.job):
            raise UsageError(f"a job's name has letters, digits, . _ and -: {self.job!r}")

    def folder(self, partition: int) -> str:
        """Where the files of a partition are, below the root."""
        return f"translation/{self.job}/{self.topic}/{self.topic_id}/{self.target}/{partition}"

    def end(self, partition: int) -> int:
        """The offset after the last that is in the table, 0 before the first."""
        return max((last + 1 for _, last in self._files(partition)), default=0)

    def add(self, rows: Iterable[Row]) -> int:
        """Add what is not there yet; returns how many rows. A file appears whole or not at all."""
        by_partition: dict[int, list[Row]] = {}
        for row in rows:
            by_partition.setdefault(row.partition, []).append(row)
        added = 0
        for partition, found in sorted(by_partition.items()):
            end = self.end(partition)
            fresh = sorted(row for row in found if row.source_base >= end)
            if fresh:
                self._write(partition, fresh)
                added += len(fresh)
        return added

    def read(self, partition: int) -> list[Row]:
        """The rows of a source partition, in order of source offset."""
        return [row for file in sorted(self._files(partition)) for row in self._rows(partition, file)]

    def truncate(self, partition: int, end: int) -> None:
        """Forget source offsets from `end` on: a fail-over took them from the target."""
        for file in self._files(partition):
            if file[1] >= end:
                kept = [row for row in self._rows(partition, file) if row.source_last < end]
                if kept:
                    self._write(partition, kept)
                filesystem, _ = ArchiveFolder.open(self.root)
                filesystem.delete_file(self._path(partition, file))

    def _files(self, partition: int) -> list[tuple[int, int]]:
        filesystem, root = ArchiveFolder.open(self.root)
        selector = fs.FileSelector(f"{root}/{self.folder(partition)}", allow_not_found=True)
        names = (_FILE.fullmatch(info.base_name) for info in filesystem.get_file_info(selector))
        return [(int(name[1]), int(name[2])) for name in names if name]

    def _path(self, partition: int, file: tuple[int, int]) -> str:
        first, last = file
        return ArchiveFolder.open(self.root).path(f"{self.folder(partition)}/{first:020d}-{last:020d}.parquet")

    def _rows(self, partition: int, file: tuple[int, int]) -> list[Row]:
        filesystem, _ = ArchiveFolder.open(self.root)
        path = self._path(partition, file)
        table = pq.read_table(path, filesystem=filesystem, columns=list(Row._fields), partitioning=None)
        return [Row(*values) for values in zip(*(column.to_pylist() for column in table.columns), strict=True)]

    def _write(self, partition: int, rows: Sequence[Row]) -> None:
        archive = ArchiveFolder.open(self.root)
        folder = archive.path(self.folder(partition))
        archive.filesystem.create_dir(folder, recursive=True)
        columns = {name: list(values) for name, values in zip(Row._fields, zip(*rows, strict=True), strict=True)}
        columns |= {
            name: [value] * len(rows)
            for name, value in (("job", self.job), ("topic", self.topic), ("target_topic", self.target))
        }
        table = pa.table([columns[name] for name in COLUMNS.names], schema=COLUMNS)
        unfinished = f"{folder}/.{secrets.token_hex(8)}"
        pq.write_table(table, unfinished, filesystem=archive.filesystem)
        archive.sync(unfinished)  # Redis forgets it next
        path = self._path(partition, (rows[0].source_base, max(row.source_last for row in rows)))
        archive.filesystem.move(unfinished, path)
        archive.sync(path)


def translate(rows: Mapping[int, Sequence[Row]], committed: Mapping[int, int]) -> dict[int, int]:
    """Target partition -> offset to commit there, for the committed offset of each source partition.

    Exact where partitions were kept. Where keys were spread, the earliest: no record is passed over, some may come
    again. A partition whose records were all consumed continues behind the last.
    """
    positions: dict[int, list[int]] = {}
    ends: dict[int, int] = {}
    for partition, offset in committed.items():
        by_target: dict[int, list[Row]] = {}
        for row in rows.get(partition, ()):
            by_target.setdefault(row.target_partition, []).append(row)
        for target, found in by_target.items():
            ends[target] = max(ends.get(target, 0), found[-1].target_last + 1)
            at = bisect_left(found, offset, key=lambda row: row.source_last)
            if at < len(found):
                positions.setdefault(target, []).append(found[at].position(offset))
    return {target: min(positions.get(target, [end])) for target, end in sorted(ends.items())}
