"""Maintenance of an Iceberg table: small files merged, old snapshots expired, files that no snapshot names removed."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Set
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pyarrow import fs
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import ArrowScan, PyArrowFileIO, _dataframe_to_data_files

from tidegate_pipeline.errors import PipelineError, UsageError
from tidegate_pipeline.tables.iceberg_table import IcebergPlan, without_retries

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table

FILE_BYTES: Final = 128 << 20
"""Files below it are merged up to about it."""
_COMMITS_MAX: Final = 10
_PARTS: Final = ("data", "metadata")


def maintain(name: str, keep: timedelta) -> dict[str, Any]:
    """Merge small files, expire snapshots older than `keep`, remove unnamed files older than it. Raises UsageError."""
    table = _table(name)
    before = len(list(table.scan().plan_files()))
    for _ in range(_COMMITS_MAX):
        try:
            merged = sum(_merge(table, run) for run in list(_runs(table)))
            break
        except CommitFailedException:
            table = _table(name)  # a query committed meanwhile
    else:
        raise PipelineError(f"{name}: {_COMMITS_MAX} commits failed beside other writers")
    limit = datetime.now(UTC) - keep
    count = len(table.snapshots())
    table.maintenance.expire_snapshots().older_than(limit.replace(tzinfo=None)).commit()
    table = _table(name)
    return {
        "table": name, "files": before, "files_after": len(list(table.scan().plan_files())), "merged_files": merged,
        "expired_snapshots": count - len(table.snapshots()), "removed_files": _remove_unnamed(table, limit),
    }  # fmt: skip


def _table(name: str) -> Table:
    table = IcebergPlan(name).table()
    if table is None:
        raise UsageError(f"there is no table {name}")
    return table


def _runs(table: Table) -> Iterator[list[FileScanTask]]:
    """Small files of one partition that make about one file; those with row deletes are left to who wrote them."""
    runs: dict[tuple[int, str], list[FileScanTask]] = defaultdict(list)
    for task in table.scan().plan_files():
        if task.delete_files or task.file.file_size_in_bytes >= FILE_BYTES // 2:
            continue
        key = (task.file.spec_id, repr(task.file.partition))
        run = runs[key]
        if run and sum(one.file.file_size_in_bytes for one in run) + task.file.file_size_in_bytes > FILE_BYTES:
            yield runs.pop(key)
            run = runs[key]
        run.append(task)
    yield from (run for run in runs.values() if len(run) > 1)


def _merge(table: Table, run: list[FileScanTask]) -> int:
    scan = table.scan()
    rows = ArrowScan(table.metadata, table.io, scan.projection(), scan.row_filter).to_table(run)
    files: list[DataFile] = list(_dataframe_to_data_files(table.metadata, rows, table.io))
    if sum(file.record_count for file in files) != sum(task.file.record_count for task in run):
        raise PipelineError(f"{table.name()}: merged files have {len(rows)} rows, not those of the files before")
    with (
        without_retries(table).transaction() as transaction,
        transaction.update_snapshot(snapshot_properties={"tidegate.maintenance": "merge"}).overwrite() as overwrite,
    ):
        for task in run:
            overwrite.delete_data_file(task.file)
        for file in files:
            overwrite.append_data_file(file)
    return len(run)


def _remove_unnamed(table: Table, limit: datetime) -> int:
    """Data files, manifests and their lists below the table's location. Raises PipelineError before the first one."""
    named = set(table.inspect.all_files()["file_path"].to_pylist())
    for snapshot in table.snapshots():
        named.add(snapshot.manifest_list)
        named |= {manifest.manifest_path for manifest in snapshot.manifests(table.io)}
    paths = {_path(name) for name in named}
    scheme, netloc, _ = PyArrowFileIO.parse_location(table.location())
    filesystem, root = PyArrowFileIO(table.io.properties).fs_by_scheme(scheme, netloc), _path(table.location())
    found = {info.path: info for part in _PARTS for info in _listed(filesystem, f"{root}/{part}")}
    _check_listing(table, root, paths, found.keys())
    removed = [path for path, info in found.items() if path not in paths and info.mtime and info.mtime < limit]
    for path in removed:
        filesystem.delete_file(path)
    return len(removed)


def _path(location: str) -> str:
    """A path as pyiceberg reads and writes it and as a listing has it, however its location is spelt."""
    path: str
    scheme, _, path = PyArrowFileIO.parse_location(location)
    return os.path.realpath(path) if scheme == "file" else path.rstrip("/")


def _listed(filesystem: fs.FileSystem, folder: str) -> list[fs.FileInfo]:
    infos = filesystem.get_file_info(fs.FileSelector(folder, recursive=True, allow_not_found=True))
    return [info for info in infos if info.type == fs.FileType.File and info.path.endswith((".parquet", ".avro"))]


def _check_listing(table: Table, root: str, paths: Set[str], found: Set[str]) -> None:
    """That the listing has what the table names: otherwise nobody knows which files nothing names."""
    below = tuple(f"{root}/{part}/" for part in _PARTS)
    missing = sorted(path for path in paths - found if path.startswith(below))
    if not missing and found and paths and paths.isdisjoint(found):
        missing = sorted(paths)
    if missing:
        raise PipelineError(
            f"{table.name()}: nothing was removed: {len(missing)} files that the table names are not found below"
            f" {root}, such as {missing[0]}"
        )
