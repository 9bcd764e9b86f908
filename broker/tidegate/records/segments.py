"""Segments of the archive: their names, their columns, and how the index in Redis names them.

A segment is a Parquet file with the batches of one range of a partition, `from_offset` to `last_offset`; a row is
one batch as it is served (base offset and leader epoch written, the rest as it was produced). `from_offset` is
the next offset expected before a row: ranges have no holes, base offsets may. Row groups are about 1 MiB, so
that one is one cold fetch. Nothing here imports pyarrow.
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
"""The columns that keep statistics: what a reader searches by."""

METADATA_KEY: Final = b"tidegate"
"""The file's key-value metadata: JSON of org, topic, topic_id, partition, version, and the segment's own fields."""


class SegmentUnreadable(Exception):
    """A segment cannot be read; the message names the file and says why."""


class SegmentMissing(SegmentUnreadable):
    """There is no such file: it was replaced by a compacted one, or the archive is not where it is said to be."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One published file: offsets `from_offset` to `last_offset`, of which the first record's is `base_offset`.

    `size` is the bytes of its batches, `file` is the path below the archive's root, timestamps are in ms.
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
        """As the index holds it: the member of the zset `segments`, whose score is the last offset."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Segment:
        """What `to_json` wrote; fields of later versions are left alone."""
        fields = json.loads(text)
        return cls(**{name: fields[name] for name in cls.__slots__})


def partition_folder(org: str, topic: str, topic_id: str, partition: int) -> str:
    """Where a partition's segments are, below the archive's root. A topic made again has another id, and folder."""
    return f"raw/v{FORMAT_VERSION}/{org}/{topic}/{topic_id}/{partition}"


def new_file_name(base_offset: int, last_offset: int) -> str:
    """A name that no retry, and no other task, gives again."""
    return f"{base_offset:020d}-{last_offset:020d}-{secrets.token_hex(8)}.parquet"


def below(uri: str, path: str) -> str:
    """A path below a folder or URI; a URI's query (`?endpoint_override=…`) stays at its end."""
    root, mark, query = uri.partition("?") if "://" in uri else (uri, "", "")
    return f"{root.rstrip('/')}/{path}{mark}{query}"
