"""The file of `tidegate backup`: JSON lines, compressed by gzip (docs/security.md describes each kind of line).

The first line is the header, the last one counts the others and has the SHA-256 of their bytes. A file is written under
another name first, so a file of this name is complete. Reading checks everything before it is used.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tidegate.cli.failures import CommandFailed

FORMAT: Final = "tidegate-backup"
VERSION: Final = 1
HEADER: Final = "header"
END: Final = "end"
KINDS: Final = ("user", "acl", "quota", "config", "group", "offsets", "segments", "topic")
_LINE_BYTES_MAX: Final = 256 << 20
"""A group's configs and share-partitions, or a topic's partitions: 100,000 partitions take 20 MB."""

Line = dict[str, Any]


class BackupWriter:
    """Writes a backup with mode 0600; without `complete`, nothing is left of it."""

    def __init__(self, path: Path) -> None:
        """Raises CommandFailed if the file exists or cannot be written."""
        self._path, self._partial = path, path.with_name(f"{path.name}.partial")
        self._sha256, self._lines = hashlib.sha256(), 0
        if path.exists():
            raise CommandFailed(f"{path} exists: choose another path")
        try:
            self._partial.unlink(missing_ok=True)
            handle = os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise CommandFailed(f"{self._partial}: {error.strerror}") from None
        self._raw = os.fdopen(handle, "wb")
        self._file = gzip.GzipFile("", "wb", compresslevel=6, fileobj=self._raw, mtime=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._raw.close()
        self._partial.unlink(missing_ok=True)

    def write(self, line: Mapping[str, Any]) -> None:
        """Add a line."""
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        self._file.write(data)
        self._sha256.update(data)
        self._lines += 1

    def complete(self) -> str:
        """End the file and give it its name; returns the checksum."""
        checksum = self._sha256.hexdigest()
        self.write({"kind": END, "lines": self._lines, "sha256": checksum})
        self._file.close()
        self._raw.flush()
        os.fsync(self._raw.fileno())
        os.replace(self._partial, self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return checksum


@dataclass(slots=True)
class Verified:
    """A backup whose every line was read."""

    path: Path
    header: Line
    checksum: str
    counts: Counter[str] = field(default_factory=Counter)
    """Lines of each kind."""

    def lines(self, *kinds: str) -> Iterator[Line]:
        """The lines of these kinds, in their order. Raises CommandFailed if the file has changed."""
        digest = hashlib.sha256()
        for _, data, line in _read(self.path):
            if line["kind"] == END:
                break
            digest.update(data)
            if line["kind"] in kinds:
                yield line
        if digest.hexdigest() != self.checksum:
            raise CommandFailed(f"{self.path}: it was changed while it was read")


def verify(path: Path) -> Verified:
    """Read a whole backup. Raises CommandFailed that names what is damaged."""
    digest, header, counts, number = hashlib.sha256(), None, Counter[str](), 0
    for number, data, line in _read(path):
        kind = line["kind"]
        if header is None:
            header = _check_header(path, line)
        elif kind == END:
            if (line.get("lines"), line.get("sha256")) != (number - 1, digest.hexdigest()):
                raise CommandFailed(f"{path}: damaged: its checksum does not match its lines")
            return Verified(path, header, digest.hexdigest(), counts)
        elif kind not in KINDS:
            raise CommandFailed(f"{path}: damaged: line {number} is of an unknown kind")
        counts[kind] += 1
        digest.update(data)
    raise CommandFailed(f"{path}: damaged: it ends after line {number}, without its last line")


def _check_header(path: Path, line: Line) -> Line:
    if line["kind"] != HEADER or line.get("format") != FORMAT:
        raise CommandFailed(f"{path}: not a backup made by `tidegate backup create`")
    if line.get("version") != VERSION:
        raise CommandFailed(
            f"{path}: version {line.get('version')} of the format; this tidegate reads version {VERSION}"
        )
    return line


def _read(path: Path) -> Iterator[tuple[int, bytes, Line]]:
    """Number, bytes and content of each line. Raises CommandFailed."""
    number = 0
    try:
        with gzip.open(path, "rb") as file:
            while data := file.readline(_LINE_BYTES_MAX):
                number += 1
                line = json.loads(data)
                if not isinstance(line, dict) or not isinstance(line.get("kind"), str):
                    raise ValueError("no object with a kind")
                yield number, data, line
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        what = "damaged" if number else "not a backup, or damaged"
        raise CommandFailed(f"{path}: {what} after line {number}: {error}") from None
    except OSError as error:
        raise CommandFailed(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise CommandFailed(f"{path}: damaged: line {number}: {error}") from None
