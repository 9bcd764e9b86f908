"""A decoded table's folder: what is in it by its log, and whether a checkpoint belongs to it.

A plain listing also finds files of killed tasks, some of them empty. The log is `_spark_metadata` for Parquet by
Spark's file sink, `_delta_log` for Delta.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs, parquet

from tidegate_pipeline.archive.listing import committed_files
from tidegate_pipeline.archive.segment_writer import ArchiveFolder
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.tables.partition_fields import partitioned_otherwise
from tidegate_pipeline.topics import Topic

Form = Literal["parquet", "delta", "iceberg"]
"""An Iceberg table is in a catalog, not in a folder: see `iceberg_table`."""

_SCHEME: Final = re.compile(r"^\w+://")
_LOGS: Final[dict[Form, str]] = {"parquet": "_spark_metadata", "delta": "_delta_log"}


class TableFile(NamedTuple):
    """A file of a table: its path as the filesystem takes it, and its size in bytes."""

    path: str
    size: int


def form_of(path: str) -> Form | None:
    """What kind of table is there; None for none."""
    return next((form for form, log in _LOGS.items() if _names(path, log)), None)


def check(path: str, form: Form, checkpoint: str, partition_names: Sequence[str] | None) -> None:
    """That table, checkpoint and partition columns (None: any) belong together. Raises UsageError.

    Spark's file sink knows micro-batches by number: with another checkpoint it would pass over new ones in silence.
    """
    there = form_of(path)
    if there is not None and there != form:
        raise UsageError(f"{path} is a table in {there}: choose another with --table")
    if there is None and _names(checkpoint, "commits"):
        raise UsageError(
            f"there is no table at {path}, but its query has run: remove the checkpoint {checkpoint} to begin again"
        )
    if there == "parquet" and not _names(checkpoint, "offsets"):  # it may have died before its first commit
        raise UsageError(
            f"{path} was written by a query whose checkpoint is not {checkpoint}: Spark would pass over new records."
            " Give its checkpoint, another --table, or --to delta, which continues by offset"
        )
    names = None if there is None or partition_names is None else _partition_names(path, form)
    if names is not None and partition_names is not None and names != list(partition_names):
        raise partitioned_otherwise(path, names, partition_names)


def _partition_names(path: str, form: Form) -> list[str] | None:
    if form == "delta":
        from deltalake import DeltaTable

        return list(DeltaTable(path).metadata().partition_columns)
    found = files(path)
    return partition_names_of(path, found[0].path) if found else None


def partition_names_of(path: str, file: str) -> list[str]:
    """The partition columns of a Parquet table, by one of its files."""
    below = file.rpartition(f"{ArchiveFolder.open(path).root}/")[2]
    return [folder.partition("=")[0] for folder in below.split("/")[:-1]]


def files(path: str) -> list[TableFile]:
    """The files that count. Raises UsageError where there is no table."""
    form = form_of(path)
    if form is None:
        raise UsageError(f"there is no table at {path}")
    if form == "delta":
        return _delta_files(path)
    opened = ArchiveFolder.open(path)
    parent, _, name = opened.root.rpartition("/")
    listed = committed_files(opened._replace(root=parent), name)
    return [TableFile(unquote(_SCHEME.sub("", file["path"])), file["size"]) for file in listed]


def _delta_files(path: str) -> list[TableFile]:
    from deltalake import DeltaTable

    actions = DeltaTable(path).get_add_actions(flatten=True)
    names, sizes = (actions[name].to_pylist() for name in ("path", "size_bytes"))
    opened = ArchiveFolder.open(path)
    return [TableFile(opened.path(unquote(name)), size) for name, size in zip(names, sizes, strict=True)]


def next_offsets(path: str, topic: Topic) -> dict[int, int]:
    """The next offset of each partition, as a Delta table knows it; those that it has."""
    from tidegate_pipeline.tables.delta import DeltaPlan

    return DeltaPlan(path, topic.topic_id).offsets(topic.name, range(topic.partition_count))


def value_type(path: str, form: Form) -> pa.DataType | None:
    """The type of the table's column `value`; None where there is no table, or nothing in it yet."""
    found = files(path) if form_of(path) == form else []
    if not found:
        return None
    if form == "delta":
        from deltalake import DeltaTable

        return pa.schema(DeltaTable(path).schema()).field("value").type
    return parquet.read_schema(found[-1].path, filesystem=ArchiveFolder.open(path).filesystem).field("value").type


def _names(path: str, folder: str) -> list[str]:
    """The names in a folder of the table; none where it is not there."""
    opened = ArchiveFolder.open(path)
    infos = opened.filesystem.get_file_info(fs.FileSelector(opened.path(folder), allow_not_found=True))
    return [info.base_name for info in infos if info.type == fs.FileType.File and not info.base_name.startswith(".")]
