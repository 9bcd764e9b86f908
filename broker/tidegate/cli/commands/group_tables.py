"""The tables and texts of the group commands."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from tidegate.cli.output import Column
from tidegate.diagnosis.formatting import format_duration, format_member, format_timestamp, ranges


def _ago(ms: int) -> str:
    return f"{format_duration(int(time.time() * 1000) - ms)} ago"


def _number(value: int) -> str:
    return f"{value:,}"


def _host(value: str) -> str:
    return value.removeprefix("/")


def _words(value: str) -> str:
    return value.replace("_", " ")


def _partitions(owned: Mapping[str, list[int]]) -> str:
    return " ".join(f"{topic}:{ranges(partitions)}" for topic, partitions in owned.items()) or "none"


def _given_up(revoking: Mapping[str, list[int]]) -> str:
    return _partitions(revoking) if revoking else ""


LIST: Final = [
    Column("group", "GROUP"),
    Column("state", "STATE"),
    Column("type", "TYPE"),
    Column("members", "MEMBERS", right=True),
    Column("generation", "GENERATION", right=True),
    Column("lag", "LAG", _number, right=True),
    Column("state_since_ms", "SINCE", _ago),
    Column("severity", "SEVERITY"),
    Column("trouble", "TROUBLE", _words),
]

MEMBERS: Final = [
    Column("member_id", "MEMBER"),
    Column("client_id", "CLIENT"),
    Column("client_host", "HOST"),
    Column("instance_id", "INSTANCE"),
    Column("session_timeout_ms", "SESSION", format_duration, right=True),
    Column("rebalance_timeout_ms", "REBALANCE", format_duration, right=True),
    Column("last_contact_age_ms", "LAST REQUEST", format_duration, right=True),
    Column("phase", "NOW"),
    Column("leads", "LEADS", lambda value: "yes" if value else ""),
    Column("epoch", "EPOCH", right=True),
    Column("owned", "PARTITIONS", _partitions),
    Column("revoking", "TO GIVE UP", _given_up),
    Column("in_flight", "ACQUIRED", right=True),
]

LAG: Final = [
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", right=True),
    Column("committed", "COMMITTED", right=True),
    Column("end", "END", right=True),
    Column("lag", "LAG", _number, right=True),
    Column("commit_age_ms", "COMMITTED AGO", format_duration, right=True),
    Column("client_id", "CLIENT"),
    Column("host", "HOST", _host),
    Column("owner", "OWNER"),
]

HISTORY: Final = [
    Column("time_ms", "BEGAN", format_timestamp),
    Column("generation", "GENERATION", right=True),
    Column("members", "MEMBERS", right=True),
    Column("calm_ms", "STABLE BEFORE", format_duration, right=True),
    Column("joining_ms", "JOINING", format_duration, right=True),
    Column("syncing_ms", "ASSIGNING", format_duration, right=True),
    Column("stable_ms", "TOTAL", format_duration, right=True),
    Column("outcome", "OUTCOME"),
    Column("sentence", "CAUSE"),
]

EVENTS: Final = [
    Column("time_ms", "TIME", format_timestamp),
    Column("generation", "GENERATION", right=True),
    Column("kind", "KIND"),
    Column("cause", "CAUSE"),
    Column("member_id", "MEMBER"),
    Column("client_id", "CLIENT"),
    Column("host", "HOST", _host),
    Column("instance_id", "INSTANCE"),
    Column("reason", "REASON"),
    Column("detail", "DETAIL"),
    Column("members", "MEMBERS", right=True),
    Column("broker", "BROKER", right=True),
    Column("duration_ms", "DURATION", format_duration, right=True),
]

FINDINGS: Final = [
    Column("group", "GROUP"),
    Column("kind", "KIND"),
    Column("severity", "SEVERITY"),
    Column("sentence", "SENTENCE"),
    Column("evidence", "EVIDENCE"),
    Column("advice", "ADVICE"),
]


def member_rows(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Members as rows; ages are computed from the server's clock."""
    rows = []
    for member in found["members"]:
        last_contact, member_id = member["last_contact_ms"], member["member_id"]
        acquired = sum(share["in_flight"].get(member_id, 0) for share in found["shares"])
        rows.append(
            {
                **member,
                "last_contact_age_ms": None if last_contact is None else max(found["now_ms"] - last_contact, 0),
                "in_flight": acquired if found["shares"] else None,
            }
        )
    return rows


def facts(found: Mapping[str, Any]) -> dict[str, Any]:
    """A group without members and partitions, for programs."""
    lists = {"members", "pending", "partitions"}
    return {
        **{name: value for name, value in found.items() if name not in lists},
        "members": len(found["members"]),
        "static_members": sum(member["instance_id"] is not None for member in found["members"]),
        "ids_not_used": len(found["pending"]),
        "lag": sum(partition["lag"] or 0 for partition in found["partitions"]),
    }


def pairs(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A group as label and value, for people."""
    members, now, since_ms = found["members"], found["now_ms"], found["state_since_ms"]
    static = sum(member["instance_id"] is not None for member in members)
    leader = next((member for member in members if member["leads"]), None)
    last = found["last_rebalance"]
    lines = [
        ("group", found["group_id"]),
        ("id", found["id"]),
        ("locator", found["locator"]),
        ("tier", f"{found['tier']} ({found['org']})" if found["tier"] else ""),
        ("created", format_timestamp(found["created_ms"])),
        ("state", f"{found['state']} since {format_timestamp(since_ms)} ({format_duration(now - since_ms)})"),
        ("type", found["type"]),
        ("generation", str(found["generation"]))
        if found["target_epoch"] is None
        else ("group epoch", f"{found['generation']}, target assignment of epoch {found['target_epoch']}"),
        ("protocol", " ".join(part for part in (found["protocol_type"], found["protocol"]) if part)),
        ("leader", f"{leader['member_id']} ({_who(leader)})" if leader else ""),
        ("members", f"{len(members)}: {static} static, {len(members) - static} dynamic"),
        ("subscribed", ", ".join(found["subscribed"] or ()) if found["subscribed"] is not None else "not known"),
        ("lag", _number(sum(partition["lag"] or 0 for partition in found["partitions"]))),
        *_share_pairs(found["shares"]),
        (
            "last rebalance",
            f"{format_timestamp(last['time_ms'])}: {last['sentence']} ({last['outcome']})" if last else "",
        ),
        ("session timeout", _timeouts(members, "session_timeout_ms")),
        ("rebalance timeout", _timeouts(members, "rebalance_timeout_ms")),
        ("key in Redis", found["key"]),
    ]
    for name, what in (("join_deadline_ms", "join barrier ends"), ("sync_deadline_ms", "sync barrier ends")):
        if found[name]:
            lines.insert(6, (what, f"{format_timestamp(found[name])} (in {format_duration(found[name] - now)})"))
    return lines


def _share_pairs(shares: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """What is in flight of a share group."""
    if not shares:
        return []
    acquired = sum(sum(share["in_flight"].values()) for share in shares)
    names = "returned", "waiting", "redelivered", "failed", "dead_lettered", "dropped"
    totals = {name: sum(share[name] for share in shares) for name in names}
    return [
        ("acquired", f"{_number(acquired)} records, {_number(totals['returned'])} wait for another delivery"),
        ("waiting", f"{_number(totals['waiting'])} for a time, a backoff or an earlier record of their key"),
        ("redelivered", _number(totals["redelivered"])),
        ("failed", _number(totals["failed"])),
        ("dead-lettered", f"{_number(totals['dead_lettered'])}, {_number(totals['dropped'])} dropped"),
    ]


def _who(member: Mapping[str, Any]) -> str:
    return format_member(member["client_id"], member["client_host"], member["instance_id"])


def _timeouts(members: list[dict[str, Any]], name: str) -> str:
    values = sorted({member[name] for member in members})
    return " to ".join(format_duration(value) for value in (values[:1] + values[-1:] if len(values) > 1 else values))
