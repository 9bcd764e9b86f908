"""One group: findings, the open rebalance barrier, members, partitions, rebalances."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aiohttp import web

from tidegate.diagnosis.formatting import format_member
from tidegate.diagnosis.group_snapshot import GroupSnapshot, MemberSnapshot
from tidegate.http import group_views
from tidegate.http.console.lag_trend import Lag, Place, read_partitions
from tidegate.http.console.site import Console, console_of, named, org_of, page
from tidegate.http.console.timeline import bars

REBALANCES_SHOWN: Final = 50
EVENTS_SHOWN: Final = 100
_IN_BARRIER_S, _CALM_S = 1, 5
"""Refresh interval of the page."""
_STATES: Final = {"PreparingRebalance": "join", "CompletingRebalance": "sync"}
_PHASE_ORDER: Final = ("missing", "unsynced", "revoking", "away", "joined", "waiting", "behind", "synced")
_PHASE_TEXTS: Final = {
    "missing": "has to rejoin",
    "joined": "has joined",
    "waiting": "waits for the leader",
    "revoking": "has to confirm a revocation",
    "away": "static member that left for a while",
    "behind": "learns of its assignment at its next heartbeat",
    "unsynced": "has to sync",
    "synced": "working",
}


async def _observe(console: Console, org: str, group_id: str) -> tuple[group_views.GroupView, Any, Any]:
    found = await asyncio.gather(
        group_views.view(console.context, org, group_id),
        group_views.history(console.context, org, group_id, EVENTS_SHOWN),
        read_partitions(console.context.store, console.context.store.group_keys(org, group_id).ref),
    )
    return found[0], found[1], found[2]


async def group(request: web.Request) -> web.StreamResponse:
    console, org, group_id = console_of(request), org_of(request), named(request, "group")
    found, history, lags = await console.observe(("group", org, group_id), lambda: _observe(console, org, group_id))
    reported, shown, partitions = await asyncio.to_thread(_converted, found, lags)
    snapshot = found.snapshot
    barrier = barrier_of(snapshot)
    return await page(
        request,
        "group.html",
        group=reported,
        summary=shown["summary"],
        findings=shown["findings"],
        severity=next((one["severity"] for one in shown["findings"] if one["severity"] != "note"), ""),
        barrier=barrier,
        every_s=_IN_BARRIER_S if barrier is not None else _CALM_S,
        members=member_rows(snapshot, partitions),
        partitions=partitions,
        sharers={one.member_id: format_member(one.client_id, one.client_host, None) for one in snapshot.members},
        lag=sum(one["lag"] or 0 for one in partitions),
        behind_ms=max((one["behind_ms"] for one in partitions if one["behind_ms"]), default=None),
        rebalances=history["rebalances"][:REBALANCES_SHOWN],
        bars=bars(history["rebalances"], snapshot.now_ms),
        events=history["events"],
        now_ms=snapshot.now_ms,
    )


def _converted(
    found: group_views.GroupView, lags: Mapping[Place, Sequence[Lag]]
) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """The group, its findings, and its rows of partitions."""
    reported = group_views.described(found)
    return reported, group_views.explained(found), partition_rows(reported["partitions"], lags, found.snapshot)


def barrier_of(snapshot: GroupSnapshot) -> dict[str, Any] | None:
    """The open barrier: members that joined, members awaited, its deadline; None when none is open."""
    kind = _STATES.get(snapshot.state)
    if kind is None:
        return None
    done = ("joined",) if kind == "join" else ("synced", "waiting")
    ends_ms = snapshot.join_deadline_ms if kind == "join" else snapshot.sync_deadline_ms
    leader = next((member for member in snapshot.members if member.leads), None)
    awaited = [member for member in snapshot.members if member.phase not in done]
    return {
        "kind": kind,
        "awaited": awaited,
        "arrived": [member for member in snapshot.members if member.phase in done],
        "count": len(snapshot.members),
        "leader": leader if kind == "sync" and leader is not None and leader in awaited else None,
        "pending": snapshot.pending,
        "open_ms": snapshot.now_ms - snapshot.state_since_ms,
        "ends_ms": ends_ms,
        "left_ms": max(ends_ms - snapshot.now_ms, 0) if ends_ms else None,
        "total_ms": max(ends_ms - snapshot.state_since_ms, 1) if ends_ms else None,
    }


def member_rows(snapshot: GroupSnapshot, partitions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Members with their partitions and lag; awaited members first."""
    lag = Counter[str]()
    for one in partitions:
        if one["owner"]:
            lag[one["owner"]] += one["lag"] or 0
    ordered = sorted(snapshot.members, key=lambda one: (_PHASE_ORDER.index(one.phase), one.client_id, one.member_id))
    acquired = Counter[str]()
    for share in snapshot.shares:
        acquired.update(share.in_flight)
    return [
        _member_row(one, snapshot.now_ms, lag[one.member_id], acquired[one.member_id] if snapshot.shares else None)
        for one in ordered
    ]


def _member_row(member: MemberSnapshot, now_ms: int, lag: int, acquired: int | None) -> dict[str, Any]:
    return {
        "member": member,
        "phase": _PHASE_TEXTS[member.phase],
        "owned": list((member.owned or {}).items()),
        "owned_count": sum(map(len, (member.owned or {}).values())),
        "revoking": list((member.revoking or {}).items()),
        "acquired": acquired,
        "lag": lag,
        "last_contact_ago_ms": None if member.last_contact_ms is None else max(now_ms - member.last_contact_ms, 0),
        "session_left_ms": max(member.session_ends_ms - now_ms, 0),
    }


def partition_rows(
    reported: Sequence[Mapping[str, Any]], lags: Mapping[Place, Sequence[Lag]], snapshot: GroupSnapshot
) -> list[dict[str, Any]]:
    """Partitions with their lag trend, largest lag first."""
    owners = {member.member_id: member.instance_id or member.client_id for member in snapshot.members}
    rows = []
    for one in reported:
        trend = lags.get((one["topic"], one["partition"]), ())
        behind = 0 if one["lag"] == 0 else (trend[-1].behind_ms or None) if trend else None
        rows.append(
            {
                **one,
                "owner_name": owners.get(one["owner"], ""),
                "behind_ms": behind,
                "trend": [sample.records for sample in trend],
            }
        )
    return sorted(rows, key=lambda row: (-(row["lag"] or 0), row["topic"], row["partition"]))


async def lag(request: web.Request) -> web.StreamResponse:
    """A group's lag over the last half hour for its chart: times in s, records, seconds behind."""
    console, org, group_id = console_of(request), org_of(request), named(request, "group")
    await console.trend.read(console.context.store)
    points = console.trend.of(console.context.store.group_keys(org, group_id).ref)
    return web.json_response(
        {
            "time_s": [one.time_ms / 1000 for one in points],
            "records": [one.records for one in points],
            "behind_s": [None if one.behind_ms is None else round(one.behind_ms / 1000, 1) for one in points],
        }
    )
