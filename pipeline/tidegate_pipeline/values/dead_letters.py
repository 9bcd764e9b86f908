"""Records that cannot be decoded, quarantined: a Parquet table with the reason and the original bytes.

One file a record, named after its topic, partition and offset, so that a task that runs again writes the same file.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from tidegate_pipeline.archive.quarantine import PLACE, Quarantine
from tidegate_pipeline.errors import UndecodableValue

VALUES: Final = "quarantine/values"

VALUES_ARROW: Final = pa.schema(
    {
        **PLACE,
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "key": pa.binary(),
        "value": pa.binary(),
        "schema_id": pa.int64(),
        "reason": pa.string(),
    }
)
"""`ts` is when it was quarantined, `timestamp` the record's; key and value as they were produced."""


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Where a job puts them. `topic_ids` are those of its topics by name.

    `limit` is for one task: a topic partition's share of a micro-batch.
    """

    archive_path: str
    org: str
    topic_ids: Mapping[str, str]
    limit: int

    def add(self, rows: list[dict[str, Any]], before: int) -> int:
        """Put rows aside; `before` were by this task. Returns how many are now. Raises UndecodableValue."""
        count = before + len(rows)
        if count > self.limit:
            raise UndecodableValue(
                f"{describe(rows[-1])}; this is record {count} of one task that cannot be decoded, values.limit is"
                f" {self.limit}"
            )
        quarantine = Quarantine.open(self.archive_path)
        now_ms = int(time.time() * 1_000)
        for row in rows:
            placed = {"ts": now_ms, "org": self.org, "topic_id": self.topic_ids[row["topic"]]}
            quarantine.add_row(VALUES, f"{row['offset']:020d}", VALUES_ARROW, placed | row)
        return count


def describe(row: dict[str, Any]) -> str:
    """A record and why it cannot be decoded."""
    return f"{row['topic']}-{row['partition']} offset {row['offset']} cannot be decoded: {row['reason']}"
