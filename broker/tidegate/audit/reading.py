"""Read the stream of security audit events, and show an event as a row of a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidegate.store.store import Store

SEARCHED_MAX: Final = 10_000
"""Events that one search reads; the stream may have more."""
_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events: of a principal, or of all; failures only, or all."""

    user: str = ""
    failed: bool = False

    def matches(self, event: Mapping[str, Any]) -> bool:
        """Whether an event is wanted."""
        if self.failed and event["status"] != "Failure":
            return False
        return not self.user or event["actor"]["user"]["name"] == self.user


async def newest(store: Store, wanted: EventFilter, count: int) -> list[dict[str, Any]]:
    """Up to `count` events that are wanted, of the last SEARCHED_MAX, newest first. Raises StoreUnavailable."""
    found: list[dict[str, Any]] = []
    before = "+"
    for _ in range(SEARCHED_MAX // _PAGE):
        entries = await store.read("XREVRANGE", store.cluster_keys.audit_events, before, "-", "COUNT", _PAGE)
        events = store.foreign_entries.leave_out(store.cluster_keys.audit_events, entries, _parsed)
        found += filter(wanted.matches, events)
        if len(found) >= count or len(entries) < _PAGE:
            break
        before = f"({entries[-1][0].decode()}"
    return found[:count]


def _parsed(_: bytes, fields: Sequence[bytes]) -> dict[str, Any]:
    return event_of(dict(zip(fields[::2], fields[1::2], strict=True)))


def event_of(fields: Mapping[bytes, bytes]) -> dict[str, Any]:
    """The event of a stream's entry. Raises UNREADABLE if no broker wrote it."""
    event: dict[str, Any] = json.loads(fields[b"event"])
    row(event)
    return event


def row(event: Mapping[str, Any]) -> dict[str, Any]:
    """An event in short; `count` is how many equal ones it stands for."""
    who = event["actor"]["user"]
    what = event["api"]["operation"] if "api" in event else f"{event['class_name']}: {event['activity_name']}"
    resources = [f"{one['type']}:{one['name']}" for one in event.get("resources", ())]
    if event["class_uid"] == 3001:
        resources = [event["user"]["name"]]
    return {
        "time_ms": event["time"],
        "who": who["name"],
        "org": who["org"]["name"],
        "host": event["src_endpoint"]["ip"],
        "what": what,
        "resources": resources,
        "status": event["status"],
        "count": event.get("count", 1),
        "detail": event.get("status_detail", ""),
    }
