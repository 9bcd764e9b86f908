"""Maintenance of an Iceberg table: small files merged, old snapshots expired, files that no snapshot names removed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from pyarrow import fs
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files

from tidegate_pipeline.archive.segment_writer import ArchiveFolder
from tidegate_pipeline.errors import PipelineError, UsageError
from tidegate_pipeline.tables.iceberg_table import IcebergPlan, without_retries

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table

FILE_BYTES: Final = 128 << 20
"""Files below it are merged up to about it."""
_COMMITS_MAX: Final = 10


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
    """Data files, manifests and their lists below the table's location."""
    named = set(table.inspect.all_files()["file_path"].to_pylist())
    for snapshot in table.snapshots():
        named.add(snapshot.manifest_list)
        named |= {manifest.manifest_path for manifest in snapshot.manifests(table.io)}
    paths = {urlsplit(name).netloc + urlsplit(name).path for name in named}
    folder = ArchiveFolder.open(table.location())
    removed = 0
    for part in ("data", "metadata"):
        selector = fs.FileSelector(folder.path(part), recursive=True, allow_not_found=True)
        for info in folder.filesystem.get_file_info(selector):
            old = info.type == fs.FileType.File and info.mtime is not None and info.mtime < limit
            if old and info.path.endswith((".parquet", ".avro")) and info.path not in paths:
                folder.filesystem.delete_file(info.path)
                removed += 1
    return removed
