"""Where the fields of a group's records are, as `fields` finds them, in code that numba compiles: all in one walk.

It is compiled on first use, for seconds; the outcome is kept in a folder that all workers of a machine share.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from tidegate_pipeline.decode.fields import Areas, Fields, HeaderFields, NeedsSlowPath, Octets, Positions


def _cache_folder() -> str:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "tidegate" / "numba"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return str(folder)
    return tempfile.mkdtemp(prefix="tidegate-numba-")


if "NUMBA_CACHE_DIR" not in os.environ:
    os.environ["NUMBA_CACHE_DIR"] = _cache_folder()
from numba import njit  # noqa: E402  (it reads the variable when it is imported)


def read_fields(areas: Areas) -> Fields:
    """The fields of every record, each within its record; headers are counted only. Raises NeedsSlowPath."""
    octets = np.frombuffer(areas.data, np.uint8)
    starts, ends, counts = (np.array(column, np.int64) for column in (areas.starts, areas.ends, areas.counts))
    found = np.empty((len(Fields.__slots__), sum(areas.counts)), np.int64)
    if not _walk(octets, starts, ends, counts, found):
        raise NeedsSlowPath("a record is not what it should be")
    return Fields(*found)


def read_headers(areas: Areas, fields: Fields) -> HeaderFields:
    """The headers of every record. Raises NeedsSlowPath."""
    octets = np.frombuffer(areas.data, np.uint8)
    found = np.empty((len(HeaderFields.__slots__), fields.header_count.sum()), np.int64)
    if not _walk_headers(octets, fields.headers_at, fields.end, fields.header_count, found):
        raise NeedsSlowPath("a header is not what it should be")
    return HeaderFields(*found)


# Without reference counts: numba's are atomic, and cost more than the varint that a call decodes.
_OPTIONS: Final[dict[str, Any]] = {"cache": True, "nogil": True, "error_model": "numpy", "_nrt": False}


def _compiled(function: Any) -> Any:
    return njit(**_OPTIONS)(function)


@_compiled
def _varint(octets: Octets, at: int, end: int) -> Any:
    """The zigzag varint at a position and the position behind it, which is beyond `end` when it is not whole."""
    value, shift = np.uint64(0), np.uint64(0)
    while at < end:
        byte = np.uint64(octets[at])
        at += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            if shift == np.uint64(63) and byte > np.uint64(1):
                break
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), at
        shift += np.uint64(7)
        if shift > np.uint64(63):
            break
    return np.int64(0), end + 1


@_compiled
def _walk(octets: Octets, starts: Positions, ends: Positions, counts: Positions, found: Any) -> bool:
    index = 0
    for area in range(len(starts)):
        at, area_end = starts[area], ends[area]
        for _ in range(counts[area]):
            length, at = _varint(octets, at, area_end)
            if at > area_end or length < 0 or length > area_end - at:
                return False
            end = at + length
            found[0, index], at = _varint(octets, at + 1, end)
            found[1, index], at = _varint(octets, at, end)
            for field in (2, 4):
                length, at = _varint(octets, at, end)
                if at > end or length > end - at:
                    return False
                found[field, index] = at
                found[field + 1, index] = max(length, -1)
                at += max(length, 0)
            count, at = _varint(octets, at, end)
            if at > end or count < 0 or count > end - at or (count == 0 and at != end):
                return False
            found[6, index] = count
            found[7, index] = at
            found[8, index] = at = end
            index += 1
        if at != area_end:
            return False
    return True


@_compiled
def _walk_headers(octets: Octets, headers_at: Positions, ends: Positions, counts: Positions, found: Any) -> bool:
    index = 0
    for record in range(len(counts)):
        at, end = headers_at[record], ends[record]
        for _ in range(counts[record]):
            for field in (0, 2):
                length, at = _varint(octets, at, end)
                if at > end or length > end - at or (field == 0 and length < 0):
                    return False
                found[field, index] = at
                found[field + 1, index] = max(length, -1)
                at += max(length, 0)
            index += 1
        if at != end:
            return False
    return True
