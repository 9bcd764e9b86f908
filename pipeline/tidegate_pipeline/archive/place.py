"""The partition that a segment belongs to."""

from __future__ import annotations

from typing import NamedTuple

from tidegate.records.segments import partition_folder
from tidegate.store.keys import LogKeys


class Place(NamedTuple):
    """One partition of one life of a topic; `topic_id` in hex."""

    org: str
    topic: str
    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def folder(self) -> str:
        """Where its segments are, below the archive's root."""
        return partition_folder(self.org, self.topic, self.topic_id, self.partition)

    def keys(self, prefix: str) -> LogKeys:
        """Its keys in Redis."""
        return LogKeys.of(prefix, self.org, self.topic, self.partition, self.topic_id)

    @classmethod
    def of_file(cls, file: str) -> Place | None:
        """Whose segment a path below the archive's root is; None if it is not a segment's."""
        parts = file.split("/")
        if len(parts) != 7 or not parts[5].isdecimal() or not parts[6].endswith(".parquet"):
            return None
        place = cls(parts[2], parts[3], parts[4], int(parts[5]))
        return place if file.startswith(f"{place.folder}/") else None
