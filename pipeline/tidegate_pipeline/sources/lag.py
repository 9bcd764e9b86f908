"""Format `tidegate-lag`: how far behind each group is in each partition, from the samples that a broker takes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

from tidegate.store.keys import ClusterKeys
from tidegate_pipeline.redis_access import Client
from tidegate_pipeline.sources.capped_streams import Fields
from tidegate_pipeline.sources.history_source import HistorySource, time_ms
from tidegate_pipeline.spark_errors import reports_one_line

SCHEMA: Final = (
    "ts timestamp, org string, group string, topic string, partition int, committed long, log_start long, "
    "log_end long, lag long, member string, committed_at timestamp, next_timestamp timestamp, head_timestamp timestamp"
)

_GROUP: Final = b"group"
_TIME: Final = b"time"


@reports_one_line
class LagSource(HistorySource):
    """The stream of samples."""

    @classmethod
    def name(cls) -> str:
        """As in `spark.read.format`."""
        return "tidegate-lag"

    def schema(self) -> str:
        """The columns."""
        return SCHEMA

    def streams(self, client: Client) -> list[str]:
        """There is one."""
        return [ClusterKeys(self.settings.prefix).lag]

    def rows(self, entry_id: str, fields: Fields) -> Iterator[tuple[Any, ...]]:
        """A row for each partition, if the group is wanted; none where the entry names no group."""
        org, _, encoded = fields.get(_GROUP, b"").decode().partition("/")
        group, at = unquote(encoded), _time(time_ms(entry_id, fields))
        if _GROUP in fields and self.settings.wanted.holds(group, org):
            for name, text in fields.items():
                if name not in (_GROUP, _TIME):
                    topic, _, partition = name.decode().rpartition(":")
                    yield at, org, group, topic, int(partition), *sample_columns(text.decode("utf-8", "replace"))


def sample_columns(text: str) -> tuple[Any, ...]:
    """The columns from `committed` on, from a partition's text; what is not known is null."""
    known, _, member = text.partition(" member=")
    pairs = (pair.partition("=") for pair in known.split(" "))
    numbers = {name: int(value) for name, _, value in pairs}
    return (
        *(numbers[name] for name in ("committed", "start", "end", "lag")),
        member or None,
        *(_time(numbers[name]) for name in ("committed_at", "next_time", "head_time")),
    )


def _time(at_ms: int) -> datetime | None:
    return None if at_ms < 0 else datetime.fromtimestamp(at_ms / 1000, UTC)
