"""Segments of the archive: file names, columns, and their form in the index in Redis.

A segment is a Parquet file with the batches of one offset range of a partition, `from_offset` to `last_offset`; a row
is one batch as it is served (base offset and leader epoch written, the rest as produced). `from_offset` is the next
offset expected before a row: ranges are contiguous, base offsets need not be. A row group has about 1 MiB, one read.
This module does not import pyarrow.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass
from typing import Final

FORMAT_VERSION: Final = 1

COLUMNS: Final = (
    ("from_offset", "int64"),
    ("base_offset", "int64"),
    ("last_offset", "int64"),
    ("records", "int32"),
    ("max_timestamp", "int64"),
    ("attributes", "int16"),
    ("producer_id", "int64"),
    ("producer_epoch", "int16"),
    ("base_sequence", "int32"),
    ("crc", "uint32"),
    ("batch", "binary"),
)
"""Name and Arrow type of each column, none nullable, sorted by offset; timestamps in ms."""

STATISTICS: Final = ("from_offset", "base_offset", "last_offset", "max_timestamp")
"""The columns with statistics, which readers search by."""

METADATA_KEY: Final = b"tidegate"
"""The file's key-value metadata: JSON of org, topic, topic_id, partition, version, and the segment's own fields."""


class SegmentUnreadable(Exception):
    """A segment cannot be read; the message has the file and the reason."""


class SegmentMissing(SegmentUnreadable):
    """The file does not exist: compaction replaced it, or the configured archive is the wrong one."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One published file with offsets `from_offset` to `last_offset`; `base_offset` is that of its first record.

    `size` is the bytes of its batches, `file` the path below the archive's root; timestamps in ms.
    """

    from_offset: int
    base_offset: int
    last_offset: int
    records: int
    size: int
    max_timestamp: int
    file: str

    @property
    def end_offset(self) -> int:
        """The offset after it."""
        return self.last_offset + 1

    def to_json(self) -> str:
        """The segment's member in the zset `segments`, whose score is the last offset."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Segment:
        """Parse what `to_json` wrote; unknown fields are ignored."""
        fields = json.loads(text)
        return cls(**{name: fields[name] for name in cls.__slots__})


def partition_folder(org: str, topic: str, topic_id: str, partition: int) -> str:
    """A partition's folder below the archive's root. A recreated topic has another id, and so another folder."""
    return f"raw/v{FORMAT_VERSION}/{org}/{topic}/{topic_id}/{partition}"


def new_file_name(base_offset: int, last_offset: int) -> str:
    """A unique file name, also across retries and tasks."""
    return f"{base_offset:020d}-{last_offset:020d}-{secrets.token_hex(8)}.parquet"


def below(uri: str, path: str) -> str:
    """A path below a folder or URI; a URI's query (`?endpoint_override=…`) stays at its end."""
    root, mark, query = uri.partition("?") if "://" in uri else (uri, "", "")
    return f"{root.rstrip('/')}/{path}{mark}{query}"
