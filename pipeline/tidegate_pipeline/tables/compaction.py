"""Clean copies of decoded tables: fewer, larger files; for Parquet in a folder of its own that any reader may list.

A folder of Parquet that Spark's stream writes also holds files of killed tasks, so it is left alone, and what its log
names is copied. A copy is whole when it has `_SUCCESS`. A Delta table is rewritten in place, as a new version.
"""

from __future__ import annotations

import time
from datetime import timedelta
from math import ceil
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from tidegate.records.segments import below
from tidegate_pipeline.archive.segment_writer import ArchiveFolder
from tidegate_pipeline.decode.schema import DECODED_ARROW
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.tables.columns import DAY
from tidegate_pipeline.tables.folder import files, form_of, partition_names_of

_FILE_ROWS_MAX: Final = 4_000_000
_GROUP_ROWS_MAX: Final = 1 << 17
_ZSTD: Final = ds.ParquetFileFormat().make_write_options(compression="zstd")


def publish(path: str, to: str) -> dict[str, Any]:
    """Copy what a table's log names to a new folder. Raises UsageError."""
    source = [file.path for file in files(path)]
    folder = ArchiveFolder.open(to)
    if folder.filesystem.get_file_info(folder.root).type != fs.FileType.NotFound:
        raise UsageError(f"{to} exists: choose another folder")
    if not source:
        raise UsageError(f"{path} has no files yet")
    opened = ArchiveFolder.open(path)
    by = _partitioning(path, source[-1])
    newest = ds.dataset(source[-1:], filesystem=opened.filesystem, format="parquet", partitioning=by)
    rows = ds.dataset(
        source, filesystem=opened.filesystem, format="parquet", partitioning=by, schema=newest.schema
    )  # older files have fewer columns
    ds.write_dataset(
        rows, folder.root, filesystem=folder.filesystem, format="parquet", partitioning=by, file_options=_ZSTD,
        max_rows_per_file=_FILE_ROWS_MAX, max_rows_per_group=_GROUP_ROWS_MAX, use_threads=False,
        max_partitions=max(len({file.rpartition("/")[0] for file in source}), 1),
    )  # fmt: skip
    copied = ds.dataset(folder.root, filesystem=folder.filesystem, format="parquet", partitioning=by)
    for file in copied.files:
        folder.sync(file)
    folder.filesystem.open_output_stream(folder.path("_SUCCESS")).close()
    folder.sync(folder.path("_SUCCESS"))
    return {
        "table": path,
        "files": len(source),
        "copy": to,
        "copy_files": len(copied.files),
        "rows": copied.count_rows(),
    }


def _partitioning(path: str, file: str) -> ds.Partitioning:
    """That of a table, by the path of one of its files. What is no column of every table is text, as in the path."""
    types = {field.name: field.type for field in (*DECODED_ARROW, DAY)}
    names = partition_names_of(path, file)
    return ds.partitioning(pa.schema([pa.field(name, types.get(name, pa.string())) for name in names]), flavor="hive")


def rewrite(path: str, keep: timedelta) -> dict[str, Any]:
    """Merge small files of a Delta table; remove those that no version of the last `keep` names, killed tasks' too."""
    from deltalake import DeltaTable

    table = DeltaTable(path)
    reported = table.optimize.compact()
    removed = table.vacuum(
        retention_hours=ceil(keep / timedelta(hours=1)), dry_run=False, enforce_retention_duration=False, full=True
    )
    return {
        "table": path, "files": reported["numFilesRemoved"], "copy_files": reported["numFilesAdded"],
        "removed_files": len(removed), "version": table.version(),
    }  # fmt: skip


def compact(path: str, to: str | None, archive: str, keep_s: int, *, dry_run: bool = False) -> dict[str, Any]:
    """A clean copy of a Parquet table, by default below `<archive>/clean`; a Delta table in place.

    Raises UsageError.
    """
    form = form_of(path)
    if form is None:
        raise UsageError(f"there is no table at {path}")
    if form == "delta":
        if to is not None:
            raise UsageError("a Delta table is compacted in place: --to is for Parquet")
        return _counted(path, path) if dry_run else rewrite(path, timedelta(seconds=keep_s))
    if to is None:
        if not archive:
            raise UsageError("where does the copy go? archive.path in the settings, or --to")
        name = path.partition("?")[0].rstrip("/").rpartition("/")[2]
        to = below(archive, f"clean/{name}/{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
    return _counted(path, to) if dry_run else publish(path, to)


def _counted(path: str, to: str) -> dict[str, Any]:
    found = files(path)
    return {"table": path, "files": len(found), "bytes": sum(file.size for file in found), "copy": to}
