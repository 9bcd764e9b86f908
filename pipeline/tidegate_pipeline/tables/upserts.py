"""Rows of a micro-batch that replace rows of a table: the newest of each key, in files for the driver.

A key belongs to one topic partition, as for compaction. Tasks write what they have, the newest of each key, to files of
the table's folder that no version names; the driver merges them into the table and deletes them. Those of failed tasks
are removed with other unnamed files by `maintain`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import WriterCommitMessage

from tidegate_pipeline.archive.segment_writer import ArchiveFolder
from tidegate_pipeline.errors import PipelineError, UsageError

KEYS: Final = ("topic", "partition", "key")
HELD_BYTES_MAX: Final = 128 << 20
"""Rows in a task's memory, from which on they are reduced to the newest of each key, and become a file."""

Place = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """What a task wrote: files below the table's folder, and for each (topic, partition) its first and last offset."""

    files: tuple[str, ...]
    ranges: Mapping[Place, tuple[int, int]]


def check_columns(columns: pa.Schema, format_name: str) -> None:
    """Raises UsageError."""
    for name in ("key", "value"):
        if name not in columns.names:
            raise UsageError(f"{format_name} with upsert=true takes rows with the column {name}")


def newest(rows: pa.Table) -> pa.Table:
    """The row of each key with the greatest offset."""
    order = pc.sort_indices(rows, sort_keys=[("offset", "ascending")])
    rank = np.empty(len(rows), np.int64)
    rank[order.to_numpy()] = np.arange(len(rows))
    keys = rows.select(KEYS).append_column("rank", pa.array(rank))
    last = keys.group_by(list(KEYS)).aggregate([("rank", "max")])["rank_max"]
    return rows.take(pc.take(order, last.combine_chunks()))


def of_commit(folder: ArchiveFolder, messages: Sequence[WriterCommitMessage | None], columns: pa.Schema) -> pa.Table:
    """The newest row of each key of a micro-batch. Raises PipelineError where a file is gone."""
    names = [name for message in messages if isinstance(message, Staged) for name in message.files]
    try:
        tables = [pq.read_table(folder.path(name), filesystem=folder.filesystem) for name in names]
    except FileNotFoundError as error:
        raise PipelineError(f"{error}: it is gone before it was merged: start again") from error
    return newest(pa.concat_tables([table.cast(columns) for table in tables] or [columns.empty_table()]))


def ranges_of(messages: Sequence[WriterCommitMessage | None]) -> dict[Place, tuple[int, int]]:
    """The offsets of a micro-batch; several tasks may have had a partition."""
    ranges: dict[Place, tuple[int, int]] = {}
    for message in messages:
        for place, (first, last) in message.ranges.items() if isinstance(message, Staged) else ():
            known = ranges.get(place, (first, last))
            ranges[place] = min(first, known[0]), max(last, known[1])
    return ranges


def remove(folder: ArchiveFolder, messages: Sequence[WriterCommitMessage | None]) -> None:
    """The files of a micro-batch that is in the table, or never will be."""
    for message in messages:
        for name in message.files if isinstance(message, Staged) else ():
            with suppress(OSError):
                folder.filesystem.delete_file(folder.path(name))


class StagingTask:
    """One task's rows, without those that the table has."""

    def __init__(
        self, folder: ArchiveFolder, prefix: str, columns: pa.Schema, last_offset: Callable[[str, int], int]
    ) -> None:
        """`prefix` of the files' names; `last_offset` of a topic partition is that of the table, -1 for none."""
        self._folder, self._prefix, self._columns = folder, prefix, columns
        self._last_offset = last_offset
        self._there: dict[Place, int] = {}
        self._ranges: dict[Place, tuple[int, int]] = {}
        self._held: list[pa.Table] = []
        self._files: list[str] = []

    def run(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Raises UsageError for a record without a key."""
        for batch in iterator:
            rows = pa.Table.from_batches([batch]).select(self._columns.names).cast(self._columns)
            for topic in pc.unique(rows["topic"]).to_pylist():
                of_topic = rows.filter(pc.equal(rows["topic"], topic))
                for partition in pc.unique(of_topic["partition"]).to_pylist():
                    self._take((topic, partition), of_topic.filter(pc.equal(of_topic["partition"], partition)))
            if _size(self._held) >= HELD_BYTES_MAX:
                self._held = [newest(pa.concat_tables(self._held))]
                if _size(self._held) >= HELD_BYTES_MAX // 2:
                    self._flush()
        self._flush()
        return Staged(tuple(self._files), self._ranges)

    def _take(self, place: Place, rows: pa.Table) -> None:
        if place not in self._there:
            self._there[place] = self._last_offset(*place)
        rows = rows.filter(pc.greater(rows["offset"], self._there[place]))
        if not len(rows):
            return
        first, last = pc.min_max(rows["offset"]).as_py().values()
        if rows["key"].null_count:
            offset = rows.filter(pc.is_null(rows["key"]))["offset"][0]
            raise UsageError(f"topic {place[0]} partition {place[1]} offset {offset}: no key, and upserts are by key")
        known = self._ranges.get(place, (first, last))
        self._ranges[place] = min(first, known[0]), max(last, known[1])
        self._held.append(rows)

    def _flush(self) -> None:
        if not self._held:
            return
        name = f"{self._prefix}staged-{secrets.token_hex(16)}.parquet"
        path = self._folder.path(name)
        if self._folder.is_local:
            self._folder.filesystem.create_dir(path.rpartition("/")[0])
        rows = newest(pa.concat_tables(self._held))
        pq.write_table(rows, path, filesystem=self._folder.filesystem, compression="lz4")
        self._files.append(name)
        self._held = []


def _size(tables: Iterable[pa.Table]) -> int:
    return sum(table.nbytes for table in tables)
