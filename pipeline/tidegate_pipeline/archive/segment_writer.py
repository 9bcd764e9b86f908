"""Rows of batches -> one segment: a Parquet file from which a broker serves a row group as it is.

Row groups of about `row_group_bytes`; statistics of what readers search by, no dictionary; the batches are compressed
where their producers did not do it. A file counts once the index in Redis names it, so it is written under its own
name, and is on the disk before that.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa
from pyarrow import compute, fs, parquet

from tidegate.records.batch_header import CODEC_BITS
from tidegate.records.segment_file import open_archive
from tidegate.records.segments import COLUMNS, FORMAT_VERSION, METADATA_KEY, STATISTICS, Segment, new_file_name
from tidegate_pipeline.archive.slicing import SegmentSlice
from tidegate_pipeline.errors import UsageError

SEGMENT_ARROW: Final = pa.schema([pa.field(name, getattr(pa, kind)(), nullable=False) for name, kind in COLUMNS])

Recompress = Literal["auto", "never", "always"]


class Shape(NamedTuple):
    """How segments are cut and stored; see the settings of `archive`."""

    segment_bytes: int = 128 << 20
    row_group_bytes: int = 1 << 20
    recompress: Recompress = "auto"


class ArchiveFolder(NamedTuple):
    """The root of an archive, in a local folder or an object store."""

    filesystem: fs.FileSystem
    root: str

    @classmethod
    def open(cls, uri: str) -> ArchiveFolder:
        """A folder or a URI. Raises UsageError."""
        if not uri:
            raise UsageError("archive.path is not set: where is the archive?")
        try:
            return cls(*open_archive(uri))
        except ValueError as error:
            raise UsageError(str(error)) from None

    def path(self, file: str) -> str:
        """A path below the root as the filesystem takes it."""
        return f"{self.root}/{file}"

    @property
    def is_local(self) -> bool:
        """Whether folders are made, and files synced, by us."""
        return bool(self.filesystem.type_name == "local")

    def sync(self, path: str) -> None:
        """On the disk: a file below the root, and the folders that lead to it. Object stores do it by themselves."""
        while self.is_local and len(path) >= len(self.root):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            path = os.path.dirname(path)


def write_segment(archive: ArchiveFolder, part: SegmentSlice, shape: Shape) -> Segment:
    """Write a range's batches, in order, to a file of its own; this does not publish it.

    There may be none: a range whose batches are all in quarantine.
    """
    rows = part.rows.select(SEGMENT_ARROW.names).cast(SEGMENT_ARROW)
    sizes = compute.binary_length(rows["batch"])
    base_offset = rows["base_offset"][0].as_py() if len(rows) else part.from_offset
    segment = Segment(
        from_offset=part.from_offset,
        base_offset=base_offset,
        last_offset=part.end_offset - 1,
        records=compute.sum(rows["records"]).as_py() or 0,
        size=compute.sum(sizes).as_py() or 0,
        max_timestamp=compute.max(rows["max_timestamp"]).as_py() if len(rows) else -1,
        file=f"{part.place.folder}/{new_file_name(base_offset, part.end_offset - 1)}",
    )
    note = {**part.place._asdict(), "version": FORMAT_VERSION, **asdict(segment)}
    path = archive.path(segment.file)
    if archive.is_local:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    batch_codec = "zstd" if _recompresses(rows, sizes, shape) else "none"
    with (
        archive.filesystem.open_output_stream(path) as sink,
        parquet.ParquetWriter(
            sink,
            SEGMENT_ARROW.with_metadata({METADATA_KEY: json.dumps(note)}),
            compression={name: batch_codec if name == "batch" else "none" for name in SEGMENT_ARROW.names},
            use_dictionary=False,
            write_statistics=list(STATISTICS),
        ) as writer,
    ):
        for start, count in _row_groups(sizes.to_pylist(), shape.row_group_bytes):
            writer.write_table(rows.slice(start, count), row_group_size=count)
    archive.sync(path)
    return segment


def _recompresses(rows: pa.Table, sizes: Any, shape: Shape) -> bool:
    """Whether the batch column is compressed: with `auto`, where most of its bytes are of batches that are not."""
    if shape.recompress != "auto":
        return shape.recompress == "always"
    plain = compute.equal(compute.bit_wise_and(rows["attributes"], pa.scalar(CODEC_BITS, pa.int16())), 0)
    return 2 * (compute.sum(sizes.filter(plain)).as_py() or 0) > (compute.sum(sizes).as_py() or 0)


def _row_groups(sizes: list[int], bytes_max: int) -> Iterator[tuple[int, int]]:
    """First row and number of rows of each group: as many as fit, one at least."""
    start, filled = 0, 0
    for at, size in enumerate(sizes):
        if at > start and filled + size > bytes_max:
            yield start, at - start
            start, filled = at, 0
        filled += size
    if start < len(sizes):
        yield start, len(sizes) - start
