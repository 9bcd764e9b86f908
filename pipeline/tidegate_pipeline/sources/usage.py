"""Format `tidegate-usage`: what each broker served, from the stream that all of them write once a minute.

An entry gives a row for each topic with counts or a size, one for each group that committed, and one row with
neither, which shows that the broker was running.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

from tidegate.store.keys import ClusterKeys
from tidegate_pipeline.redis_access import Client
from tidegate_pipeline.sources.capped_streams import Fields
from tidegate_pipeline.sources.history_source import GroupFilter, HistorySource, time_ms
from tidegate_pipeline.spark_errors import reports_one_line

SCHEMA: Final = (
    "id string, ts timestamp, span_ms long, broker string, org string, topic string, group string, records long, "
    "stored_bytes long, produce_requests long, produced_bytes long, fetch_requests long, fetched_bytes long, "
    "redis_bytes long, archive_bytes long, commits long, back_commits long, back array<struct<topic:string,"
    "partition:int,from_offset:long,to_offset:long,client_id:string>>"
)
"""`ts` is the end of the `span_ms` in which it was counted; absent values are null."""

_SERVED: Final = 6
_HELD: Final = 2
_COMMITS: Final = 3


@reports_one_line
class UsageSource(HistorySource):
    """The stream `{cluster}:usage`."""

    @classmethod
    def name(cls) -> str:
        """As in `spark.read.format`."""
        return "tidegate-usage"

    def schema(self) -> str:
        """The columns."""
        return SCHEMA

    def streams(self, client: Client) -> list[str]:
        """The one."""
        return [ClusterKeys(self.settings.prefix).usage]

    def rows(self, entry_id: str, fields: Fields) -> Iterator[tuple[Any, ...]]:
        """The rows of one entry: its own first."""
        head = (
            entry_id,
            datetime.fromtimestamp(time_ms(entry_id, fields) / 1000, UTC),
            int(fields.get(b"span_ms", 0)),
            fields.get(b"broker", b"").decode(),
        )
        wanted = self.settings.wanted
        if wanted == GroupFilter():
            yield (*head, *[None] * (3 + _SERVED + _HELD + _COMMITS))
        topics, held, groups = (json.loads(fields.get(name, b"{}")) for name in (b"topics", b"held", b"groups"))
        for name in sorted({*topics, *held}):
            org, _, topic = name.partition("/")
            if wanted.group is None and wanted.holds("", org):
                counted, sizes = topics.get(name, [None] * _SERVED), held.get(name, [None] * _HELD)
                yield (*head, org, topic, None, *counted[:_SERVED], *sizes[:_HELD], *[None] * _COMMITS)
        for name, (commits, back_commits, back, *_) in sorted(groups.items()):
            org, _, encoded = name.partition("/")
            group = unquote(encoded)
            if wanted.holds(group, org):
                nothing = [None] * (_SERVED + _HELD)
                yield (*head, org, None, group, *nothing, commits, back_commits, list(map(_back, back)))


def _back(reported: list[Any]) -> tuple[str, int, int, int, str]:
    """`<topic>:<partition>`, from, to, client."""
    topic, _, partition = reported[0].rpartition(":")
    return topic, int(partition), *reported[1:4]
