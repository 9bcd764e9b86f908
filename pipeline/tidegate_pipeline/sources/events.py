"""Format `tidegate-events`: what happened to groups, from the event streams of all shards.

docs/explain.md lists the kinds and what each field holds; kinds and fields of later versions pass through, what has
no column of its own in `detail`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

from tidegate.store.keys import ClusterKeys, ShardKeys, shard_of
from tidegate_pipeline.addresses import shown
from tidegate_pipeline.errors import PipelineError
from tidegate_pipeline.redis_access import Client, retry_while_unavailable
from tidegate_pipeline.sources.capped_streams import Fields
from tidegate_pipeline.sources.history_source import HistorySource
from tidegate_pipeline.spark_errors import reports_one_line

SCHEMA: Final = (
    "id string, ts timestamp, group string, org string, event string, generation int, member string, "
    "instance string, client_id string, client_host string, state_from string, state_to string, assignor string, "
    "topics array<string>, reason string, broker string, detail map<string,string>"
)

STATES: Final = {
    "rebalance_started": (None, "PreparingRebalance"),
    "barrier_joined": ("PreparingRebalance", "CompletingRebalance"),
    "stable": ("CompletingRebalance", "Stable"),
    "emptied": (None, "Empty"),
    "deleted": ("Empty", "Dead"),
}
"""Kind -> the state that a group leaves and the one that it enters; None where several are possible."""

_COLUMNS: Final = frozenset(
    {"time", "group", "kind", "generation", "member", "instance_id", "client_id", "host", "reason", "broker"}
)
_OFFSETS: Final = {"offsets_reset": 3, "offsets_deleted": 1, "offsets_expired": 1}
"""Kind -> words for each partition in its detail."""


@reports_one_line
class EventsSource(HistorySource):
    """The event streams of all shards."""

    @classmethod
    def name(cls) -> str:
        """As in `spark.read.format`."""
        return "tidegate-events"

    def schema(self) -> str:
        """The columns."""
        return SCHEMA

    def streams(self, client: Client) -> list[str]:
        """One for each shard, or that of the shard which a group is in."""
        prefix = self.settings.prefix
        info = ClusterKeys(prefix).info
        kept = retry_while_unavailable(lambda: client.hget(info, "coordinator_shards"), self.settings.retry_s)
        if kept is None:
            raise PipelineError(f"no cluster at {shown(self.settings.url)} under the prefix {prefix}: no {info}")
        shards = int(kept)
        group = self.settings.wanted.group
        numbers = range(shards) if group is None else [shard_of(group, shards)]
        return [ShardKeys(prefix, number).events for number in numbers]

    def rows(self, entry_id: str, fields: Fields) -> Iterator[tuple[Any, ...]]:
        """One row, if the group is wanted."""
        row = event_row(entry_id, {name.decode(): value.decode("utf-8", "replace") for name, value in fields.items()})
        if self.settings.wanted.holds(row[2], row[3]):
            yield row


def event_row(entry_id: str, fields: dict[str, str]) -> tuple[Any, ...]:
    """The columns of one event; what is empty is null."""
    kind = fields.get("kind", "")
    org, _, encoded = fields.get("group", "").partition("/")
    state_from, state_to = STATES.get(kind, (None, None))
    detail = fields.get("detail", "")
    words = detail.split()[:: _OFFSETS[kind]] if kind in _OFFSETS else []
    at_ms = int(fields.get("time") or entry_id.partition("-")[0])
    return (
        entry_id,
        datetime.fromtimestamp(at_ms / 1000, UTC),
        unquote(encoded),
        org,
        kind,
        int(fields["generation"]) if fields.get("generation") else None,
        fields.get("member") or None,
        fields.get("instance_id") or None,
        fields.get("client_id") or None,
        fields.get("host", "").removeprefix("/") or None,
        state_from,
        state_to,
        detail or None if kind == "barrier_joined" else None,
        sorted({word.rpartition(":")[0] for word in words}) or None,
        fields.get("reason") or None,
        fields.get("broker") or None,
        {name: value for name, value in fields.items() if name not in _COLUMNS and value},
    )
