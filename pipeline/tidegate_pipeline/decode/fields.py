"""Where the fields of a group's records are: the walk in Python, every column in numpy.

A record is `length varint, attributes int8, timestamp delta varlong, offset delta varint, key length varint, key,
value length varint, value, header count varint, headers`; varints are zigzag. Only the lengths are walked one by
one; a column of varints is decoded for all records at once. Nothing here copies keys or values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]
Octets = NDArray[np.uint8]

_SHIFT_MAX: Final = 63
_HEADERS_MAX: Final = 200


class NeedsSlowPath(Exception):
    """The records are damaged, or of a kind that the fast decoder does not support: use the slow one."""


@dataclass(frozen=True, slots=True)
class Areas:
    """The records areas of a group, one item an area; `data` holds them all, and some bytes behind the last."""

    data: bytes | bytearray
    starts: Sequence[int]
    ends: Sequence[int]
    counts: Sequence[int]


@dataclass(frozen=True, slots=True)
class Fields:
    """One item a record, positions in the areas' data. A length of -1 is null."""

    timestamp_delta: Positions
    offset_delta: Positions
    key_at: Positions
    key_length: Positions
    value_at: Positions
    value_length: Positions
    header_count: Positions
    headers_at: Positions
    end: Positions


@dataclass(frozen=True, slots=True)
class HeaderFields:
    """One item a header: by record, and then in their order."""

    name_at: Positions
    name_length: Positions
    value_at: Positions
    value_length: Positions


def read_fields(areas: Areas) -> Fields:
    """The fields of every record, each within its record; headers are counted only. Raises NeedsSlowPath."""
    octets = np.frombuffer(areas.data, np.uint8)
    try:
        starts = np.fromiter(_starts(areas), np.int64, sum(areas.counts))
        length, at = _varints(octets, starts)
        end = at + length
        timestamp_delta, at = _varints(octets, at + 1)
        offset_delta, at = _varints(octets, at)
        key_length, key_at, at = _fields(octets, at, end)
        value_length, value_at, at = _fields(octets, at, end)
        header_count, at = _varints(octets, at)
    except IndexError as error:
        raise NeedsSlowPath("a field reaches beyond the areas") from error
    if ((at > end) | (header_count < 0) | (header_count > end - at)).any():
        raise NeedsSlowPath("a wrong count of headers")
    if ((at < end) & (header_count == 0)).any():
        raise NeedsSlowPath("bytes follow the value of a record")
    return Fields(
        timestamp_delta, offset_delta, key_at, key_length, value_at, value_length, header_count, at, end
    )  # fmt: skip


def read_headers(areas: Areas, fields: Fields) -> HeaderFields:
    """The headers of every record: the first of each record, then the second of each, ... Raises NeedsSlowPath."""
    octets = np.frombuffer(areas.data, np.uint8)
    counts = fields.header_count
    if counts.max() > _HEADERS_MAX:
        raise NeedsSlowPath("many headers: one by one is as quick")
    found = HeaderFields(*np.empty((4, counts.sum()), np.int64))
    records = np.flatnonzero(counts)
    item = (np.cumsum(counts) - counts)[records]
    left, at, end = counts[records], fields.headers_at[records], fields.end[records]
    try:
        while left.size:
            found.name_length[item], found.name_at[item], at = _fields(octets, at, end)
            found.value_length[item], found.value_at[item], at = _fields(octets, at, end)
            last = left == 1
            if (at[last] != end[last]).any():
                raise NeedsSlowPath("bytes follow the last header of a record")
            item, left, at, end = item[~last] + 1, left[~last] - 1, at[~last], end[~last]
    except IndexError as error:
        raise NeedsSlowPath("a header reaches beyond the areas") from error
    if (found.name_length < 0).any():
        raise NeedsSlowPath("the name of a header is null")
    return found


def _starts(areas: Areas) -> Iterator[int]:
    """Where each record begins; the records must fill their area."""
    data = areas.data
    for position, end, count in zip(areas.starts, areas.ends, areas.counts, strict=True):
        for _ in repeat(None, count):
            yield position
            length = data[position]
            if length >= 0x80:
                position += 1
                byte = data[position]
                length += (byte - 1) << 7  # and the continuation bit goes
                shift = 14
                while byte >= 0x80:
                    position += 1
                    byte = data[position]
                    length += (byte - 1) << shift
                    shift += 7
                    if shift > _SHIFT_MAX:
                        raise NeedsSlowPath("a record is too long")
            position += 1 + (length >> 1)
        if position != end:
            raise NeedsSlowPath("the records do not fill their area")


def _varints(octets: Octets, at: Positions) -> tuple[Positions, Positions]:
    """The zigzag varint at each position, and the position behind it. Raises NeedsSlowPath, IndexError."""
    value = octets[at].astype(np.uint64)
    at = at + 1
    longer = np.flatnonzero(value >= 0x80)
    shift = 7
    while longer.size:
        byte = octets[at[longer]].astype(np.uint64)
        if shift == _SHIFT_MAX and (byte > 1).any():
            raise NeedsSlowPath("a varint is too long")
        value[longer] += (byte - 1) << shift  # and the continuation bit goes
        at[longer] += 1
        longer = longer[byte >= 0x80]
        shift += 7
    return ((value >> 1) ^ -(value & 1)).view(np.int64), at


def _fields(octets: Octets, at: Positions, end: Positions) -> tuple[Positions, Positions, Positions]:
    """Length (-1 is null) and position of the field at each position, and the position behind it."""
    length, at = _varints(octets, at)
    np.maximum(length, -1, out=length)
    taken = np.maximum(length, 0)
    if (taken > end - at).any():
        raise NeedsSlowPath("a field reaches beyond its record")
    return length, at, at + taken
