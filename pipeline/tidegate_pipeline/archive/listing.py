"""The committed files of a table, from `_spark_metadata` of Spark's file sink; the folder also has others.

Tasks that were killed leave files that no reader may see, some of them empty.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from pyarrow import fs

from tidegate_pipeline.archive.segment_writer import ArchiveFolder
from tidegate_pipeline.errors import PipelineError, UsageError

_LOG: Final = "_spark_metadata"
_ENTRY: Final = re.compile(r"(\d+)(\.compact)?")
_VERSION: Final = "v1"


def committed_files(archive: ArchiveFolder, table: str) -> list[dict[str, Any]]:
    """Path and size of each file of the table in folder `table` below the archive's root. Raises UsageError."""
    folder = archive.path(f"{table.strip('/')}/{_LOG}")
    infos = archive.filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    found = [(match, info) for info in infos if (match := _ENTRY.fullmatch(info.base_name))]
    if not found:
        raise UsageError(f"{table} is neither a topic nor a table that Spark's file sink wrote: there is no {folder}")
    compacted = max((int(match[1]) for match, _ in found if match[2]), default=-1)
    newest = {
        (int(match[1]), not match[2]): info.path
        for match, info in found
        if int(match[1]) > compacted or (int(match[1]) == compacted and match[2])
    }
    files: dict[str, dict[str, Any]] = {}
    for _, path in sorted(newest.items()):
        for entry in _entries(archive, path):
            if entry["action"] == "delete":
                files.pop(entry["path"], None)
            else:
                files[entry["path"]] = {"path": entry["path"], "size": entry["size"]}
    return list(files.values())


def _entries(archive: ArchiveFolder, path: str) -> list[dict[str, Any]]:
    with archive.filesystem.open_input_file(path) as opened:
        version, *lines = opened.read().decode().splitlines()
    if version != _VERSION:
        raise PipelineError(f"{path}: version {version} of Spark's log of files is not known here, only {_VERSION}")
    return [json.loads(line) for line in lines if line]
