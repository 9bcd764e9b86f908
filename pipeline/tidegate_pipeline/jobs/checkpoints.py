"""Read the checkpoint of a query without Spark: the last committed offsets of each source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def committed_offsets(checkpoint: Path | str) -> list[dict[str, Any]]:
    """The offsets of each source after the last micro-batch that was committed; none where there is no checkpoint.

    As Spark writes it: `offsets/<batch>` is a version, metadata, then a line a source; `commits/<batch>` what is done.
    """
    from pyarrow.fs import FileSelector, FileSystem, LocalFileSystem

    text = str(checkpoint)
    files, root = FileSystem.from_uri(text) if "://" in text else (LocalFileSystem(), text)
    commits = files.get_file_info(FileSelector(f"{root}/commits", allow_not_found=True))
    batches = [int(file.base_name) for file in commits if file.base_name.isdecimal()]
    if not batches:
        return []
    with files.open_input_stream(f"{root}/offsets/{max(batches)}") as stream:
        lines = stream.read().decode().splitlines()
    return [{} if line in ("", "-") else json.loads(line) for line in lines[2:]]
