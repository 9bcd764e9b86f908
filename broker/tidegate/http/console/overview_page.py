"""The overview: groups, worst first, below a summary of brokers and Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from tidegate.http import group_views
from tidegate.http.broker_views import brokers
from tidegate.http.console.lag_trend import Lag
from tidegate.http.console.site import Console, console_of, org_of, page
from tidegate.http.overview_views import GROUPS_MAX, troubles
from tidegate.http.people import PERSON, is_bound
from tidegate.http.redis_views import redis

_SEVERITIES: Final = ("stuck", "trouble", "")

Row = dict[str, Any]

SORTS: Final[dict[str, Callable[[Row], Any]]] = {
    "trouble": lambda row: (_SEVERITIES.index(row["severity"]), -row["lag"], row["group"]),
    "group": lambda row: row["group"],
    "members": lambda row: (-row["members"], row["group"]),
    "lag": lambda row: (-row["lag"], row["group"]),
    "behind": lambda row: (-(row["behind_ms"] or 0), row["group"]),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """Filter and order of the groups."""

    words: str = ""
    only: str = ""
    """`trouble`: groups with findings; else a state; "" for all."""
    sort: str = "trouble"

    def of(self, rows: Sequence[Row]) -> list[Row]:
        """The matching groups, in order."""
        words = self.words.lower().split()
        return sorted((row for row in rows if self._wants(row, words)), key=SORTS[self.sort])

    def _wants(self, row: Row, words: Sequence[str]) -> bool:
        text = f"{row['group']} {row['id']} {row['state']} {row['severity']} {row['sentence']}".lower()
        fits = not self.only or (bool(row["severity"]) if self.only == "trouble" else row["state"] == self.only)
        return fits and all(word in text for word in words)


async def group_rows(console: Console, org: str) -> tuple[list[Row], int]:
    """Groups with findings and lag, and the number of groups left out.

    Raises StoreUnavailable.
    """
    store = console.context.store
    (views, left_out), _ = await asyncio.gather(
        group_views.view_first(console.context, org, GROUPS_MAX), console.trend.read(store)
    )
    refs = [store.stored_group_keys(org, one.snapshot.group_id).ref for one in views]
    groups = await group_views.all_listed(views)
    rows = [_row(one, of, console.trend.of(ref)) for one, of, ref in zip(views, groups, refs, strict=True)]
    return rows, left_out


def _row(found: group_views.GroupView, listed: Row, trend: Sequence[Lag]) -> Row:
    snapshot, worst = found.snapshot, found.findings[0] if found.findings else None
    return {
        **listed,
        "sentence": worst.sentence if worst is not None and worst.severity else "",
        "state_for_ms": snapshot.now_ms - snapshot.state_since_ms,
        "missing": sum(member.phase == "missing" for member in snapshot.members),
        "behind_ms": trend[-1].behind_ms if trend else None,
        "trend": [one.records for one in trend],
        "now_ms": snapshot.now_ms,
    }


async def overview(request: web.Request) -> web.StreamResponse:
    console, org = console_of(request), org_of(request)
    only, sort = request.query.get("only", ""), request.query.get("sort", "")
    choice = Choice(request.query.get("q", "").strip(), only, sort if sort in SORTS else "trouble")
    (rows, left_out), whole = await asyncio.gather(
        console.observe(("groups", org), lambda: group_rows(console, org)),
        _whole_cluster(request, console),
    )
    chosen = choice.of(rows)
    return await page(
        request,
        "overview.html",
        rows=chosen,
        left_out=left_out,
        inspected=len(rows),
        total=len(rows) + left_out,
        stuck=sum(row["severity"] == "stuck" for row in rows),
        trouble=sum(row["severity"] == "trouble" for row in rows),
        lag=sum(row["lag"] for row in rows),
        members=sum(row["members"] for row in rows),
        states=sorted({row["state"] for row in rows}),
        choice=choice,
        **whole,
    )


async def _whole_cluster(request: web.Request, console: Console) -> dict[str, Any]:
    """Brokers and Redis, which a person of one organisation does not see."""
    if is_bound(request.get(PERSON)):
        return {"brokers": None, "redis": None, "troubles": ()}
    live, server = await asyncio.gather(
        console.observe("brokers", lambda: brokers(console.context)),
        console.observe("redis", lambda: redis(console.context)),
    )
    return {"brokers": live, "redis": server, "troubles": troubles(live, server)}
