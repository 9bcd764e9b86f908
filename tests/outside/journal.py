"""What a client saw, as it saw it: one JSON object a line, with the time that all processes of a machine share."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kit.history import now_ns


def journals_directory(name: str, otherwise: Path) -> Path:
    """The directory of one test's journals: in TIDEGATE_OUTSIDE_DIRECTORY where that is set, emptied before."""
    kept = os.environ.get("TIDEGATE_OUTSIDE_DIRECTORY")
    directory = Path(kept) / name if kept else otherwise
    if kept:
        shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    return directory


class Journal:
    """Written by one process; each entry has `at`, in ns, and `kind`."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("a", buffering=1)  # noqa: SIM115 - open as long as the process

    def note(self, kind: str, **fields: Any) -> None:
        """One entry, in the file before this returns."""
        self._file.write(json.dumps({"at": now_ns(), "kind": kind, **fields}) + "\n")


@dataclass(slots=True)
class JournalReader:
    """Reads what was added to a journal since the last time."""

    path: Path
    _offset: int = 0
    entries: list[dict[str, Any]] = field(default_factory=list)

    def more(self) -> Iterator[dict[str, Any]]:
        """New whole entries; all are kept in `entries`."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                entry = json.loads(line)
                self.entries.append(entry)
                yield entry
