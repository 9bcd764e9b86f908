"""One event of a group for the analyses; docs/explain.md describes the fields of each kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tidegate_pipeline.sources.capped_streams import id_key

COLUMNS = (
    "id", "unix_millis(ts) as time_ms", "event as kind", "generation", "detail['cause'] as cause", "member", "instance",
    "client_id", "client_host as host", "reason", "coalesce(assignor, detail['detail']) as detail",
    "cast(detail['members'] as int) as members",
)  # fmt: skip
"""Of the source `tidegate-events`, as SQL."""


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """`who` is what stays of a member over its member ids: its instance, else its client id and host."""

    time_ms: int
    kind: str
    generation: int = 0
    cause: str = ""
    member: str = ""
    instance: str = ""
    client_id: str = ""
    host: str = ""
    reason: str = ""
    detail: str = ""
    members: int = 0
    id: str = "0-0"

    @property
    def who(self) -> str:
        """The member as people know it; "" for nobody."""
        if self.instance:
            return f"instance {self.instance}"
        return f"{self.client_id} at {self.host}" if self.client_id or self.host else ""


def events_of(rows: Iterable[Any]) -> list[GroupEvent]:
    """Rows of `COLUMNS`, of one group, in the order in which it happened: a micro-batch may bring them in another.

    Rows without an id only advance time and are no events.
    """
    return [
        GroupEvent(
            row.time_ms,
            row.kind,
            row.generation or 0,
            row.cause or "",
            row.member or "",
            row.instance or "",
            row.client_id or "",
            row.host or "",
            row.reason or "",
            row.detail or "",
            row.members or 0,
            row.id,
        )
        for row in sorted((row for row in rows if row.id is not None), key=lambda row: id_key(row.id))
    ]
