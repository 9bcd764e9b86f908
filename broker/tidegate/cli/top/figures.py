"""The data of the live screens: rates, order, short texts for 80 columns. Does not import textual."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidegate.cli.client.admin_client import SEVERITIES
from tidegate.diagnosis.formatting import format_duration, ranges

_STATES: Final = {"PreparingRebalance": "joining", "CompletingRebalance": "assigning"}
_LARGE: Final = ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k"))


@dataclass(frozen=True, slots=True)
class Line:
    """One group. `rate` is the growth of its lag, records/s, None at the first refresh."""

    group: str
    state: str
    members: int
    lag: int
    rate: float | None
    since_ms: int
    severity: str
    trouble: str
    sentence: str


class Rates:
    """The growth rate of each group's lag between refreshes."""

    def __init__(self) -> None:
        self._observed: dict[str, tuple[float, int]] = {}

    def lines(self, rows: Iterable[Mapping[str, Any]], now_s: float, now_ms: int) -> list[Line]:
        """The groups of one refresh; `now_s` from a monotonic clock."""
        found, observed = [], {}
        for row in rows:
            before = self._observed.get(row["group"])
            observed[row["group"]] = now_s, row["lag"]
            span_s = now_s - before[0] if before else 0
            rate = (row["lag"] - before[1]) / span_s if before and span_s > 0 else None
            found.append(
                Line(
                    row["group"],
                    _STATES.get(row["state"], row["state"].lower()),
                    row["members"],
                    row["lag"],
                    rate,
                    max(now_ms - row["state_since_ms"], 0),
                    row["severity"],
                    row["trouble"].replace("_", " "),
                    row.get("sentence", ""),
                )
            )
        self._observed = observed
        return found


ORDERS: Final[dict[str, Callable[[Line], Any]]] = {
    "trouble": lambda line: (SEVERITIES.index(line.severity), -line.lag, line.group),
    "lag": lambda line: (-line.lag, line.group),
    "rate": lambda line: (-(line.rate or 0), line.group),
    "members": lambda line: (-line.members, line.group),
    "since": lambda line: (line.since_ms, line.group),
    "name": lambda line: line.group,
}
"""Sort orders by name."""


def chosen(lines: Iterable[Line], order: str, text: str) -> list[Line]:
    """Lines whose id, state or finding contains the text, in order."""
    wanted = text.lower()
    found = (line for line in lines if wanted in f"{line.group} {line.state} {line.trouble}".lower())
    return sorted(found, key=ORDERS[order])


def short(count: float) -> str:
    """A count in at most seven characters."""
    for size, unit in _LARGE:
        if abs(count) >= size:
            return f"{count / (1_000 if unit == 'k' else size):,.1f}{unit}"
    return f"{count:,.0f}"


def rate(value: float | None) -> str:
    """The rate with its sign: + means that the group falls behind."""
    return "" if value is None else "0" if round(value) == 0 else f"{'+' if value > 0 else ''}{short(value)}"


def cells(line: Line) -> tuple[str, ...]:
    """The cells of a row."""
    return (
        line.group,
        line.state,
        str(line.members),
        short(line.lag),
        rate(line.rate),
        format_duration(line.since_ms),
        line.trouble,
    )


# -- one group


def facts(found: Mapping[str, Any], summary: str, now_ms: int) -> list[str]:
    """The lines above the tables; `now_ms` by Redis's clock."""
    protocol = " ".join(part for part in (found["protocol_type"], found["protocol"]) if part)
    lag = sum(one["lag"] or 0 for one in found["partitions"])
    numbered = "generation" if found.get("target_epoch") is None else "group epoch"
    lines = [
        f"{found['state']} for {format_duration(now_ms - found['state_since_ms'])}   "
        f"{numbered} {found['generation']}   {protocol}   lag {lag:,}"
    ]
    if found.get("shares"):
        totals = {name: sum(one[name] for one in found["shares"]) for name in ("returned", "waiting", "failed")}
        acquired = sum(sum(one["in_flight"].values()) for one in found["shares"])
        lines.append(f"acquired {acquired:,}   " + "   ".join(f"{name} {count:,}" for name, count in totals.items()))
    if revoking := [one["client_id"] or one["member_id"] for one in found["members"] if one["phase"] == "revoking"]:
        lines.append(f"revocation not confirmed by {', '.join(revoking[:3])}{' …' if len(revoking) > 3 else ''}")
    if barrier := barrier_line(found, now_ms):
        lines.append(barrier)
    if last := found.get("last_rebalance"):
        lines.append(
            f"last rebalance {format_duration(now_ms - last['time_ms'])} ago: {last['sentence']} ({last['outcome']})"
        )
    return [*lines, summary] if summary else lines


def barrier_line(found: Mapping[str, Any], now_ms: int) -> str:
    """The open barrier: its kind, remaining time and awaited members; "" when none is open."""
    for field, what, awaited in (
        ("join_deadline_ms", "join", "missing"),
        ("sync_deadline_ms", "assignment", "unsynced"),
    ):
        if found[field]:
            left = max(found[field] - now_ms, 0)
            late = [one["client_id"] or one["member_id"] for one in found["members"] if one["phase"] == awaited]
            names = f"; waits for {', '.join(late[:3])}{' …' if len(late) > 3 else ''}" if late else ""
            return f"{what} barrier ends in {left / 1000:.0f} s{names}"
    return ""


def member_cells(member: Mapping[str, Any], now_ms: int) -> tuple[str, ...]:
    """Name, time since the last heartbeat, activity, owned partitions."""
    last_contact = "" if member["last_contact_ms"] is None else format_duration(now_ms - member["last_contact_ms"])
    owned = " ".join(f"{topic}:{ranges(partitions)}" for topic, partitions in (member["owned"] or {}).items())
    name = member["instance_id"] or member["client_id"] or member["member_id"]
    return name, member["client_host"].removeprefix("/"), str(member["phase"]), last_contact, owned


def partition_cells(one: Mapping[str, Any], names: Mapping[str, str]) -> tuple[str, ...]:
    """Partition, committed offset, end, lag, owner."""
    committed, end = one["committed"], one["log_end"]
    return (
        f"{one['topic']}:{one['partition']}",
        "" if committed is None else f"{committed:,}",
        "" if end is None else f"{end:,}",
        "" if one["lag"] is None else f"{one['lag']:,}",
        names.get(one["owner"] or "", one["owner"] or ""),
    )


def names_of(members: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Member id -> display name."""
    return {one["member_id"]: one["instance_id"] or one["client_id"] or one["member_id"] for one in members}
