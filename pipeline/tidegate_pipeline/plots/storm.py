"""A rebalance storm: generations over time, incidents as bands, and below it who caused each rebalance."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from tidegate_pipeline.plots.figure import COLORS, QUIET, TROUBLE, legend_beside, panels, save, time_axis
from tidegate_pipeline.plots.tables import Row

MEMBERS_MAX: Final = 16
"""Members with a row of their own: those that caused most."""
_NAME_MAX: Final = 34
_PATTERNS_MAX: Final = 4

_CAUSES: Final = {
    "member_joined": ("o", COLORS[2]),
    "member_left": ("v", COLORS[0]),
    "member_removed": ("s", COLORS[0]),
    "session_timed_out": ("X", TROUBLE),
    "did_not_sync": ("P", TROUBLE),
    "static_member_restarted": ("D", COLORS[3]),
    "subscription_changed": ("^", COLORS[1]),
    "leader_rejoined": ("*", COLORS[5]),
    "writes_lost": ("h", COLORS[7]),
}
_STEPS: Final = ("started", "first_join", "joined", "assigned", "synced")
_UNKNOWN_CAUSE: Final = (".", QUIET)


def draw_storm(generations: Sequence[Row], incidents: Sequence[Row], path: Path) -> None:
    """Rows of the tables `timeline` and `storms`, of one group."""
    rows = sorted((row for row in generations if times(row)), key=times)
    members = most_troublesome(rows)
    figure, (upper, lower) = panels((2.4, max(1.1, 0.5 + 0.2 * len(members))))
    first, last = times(rows[0])[0], max(times(row)[-1] for row in rows)
    _generations(upper, rows)
    for number, one in enumerate(latest(incidents)):
        _band(upper, lower, one, (first, last), labelled=number == 0)
    upper.set_title(f"Rebalances of group {rows[0]['group']}")
    upper.set_ylabel("generation")
    upper.yaxis.get_major_locator().set_params(integer=True)
    legend_beside(upper)

    for cause in dict.fromkeys(row["cause"] for row in rows):
        caused = [row for row in rows if row["cause"] == cause and row["member"] in members]
        if not caused:
            continue
        marker, color = _CAUSES.get(cause, _UNKNOWN_CAUSE)
        places = [members.index(row["member"]) for row in caused]
        label = (cause or "not known").replace("_", " ")
        lower.plot([times(row)[0] for row in caused], places, marker, color=color, markersize=5, label=label)
    lower.set_yticks(range(len(members)), [_short(member) for member in members])
    lower.set_ylim(len(members) - 0.4, -0.6)
    lower.set_ylabel("because of")
    legend_beside(lower, "cause of the rebalance")
    time_axis(lower, times(rows[0])[0], last)
    save(figure, path)


def times(row: Row) -> list[datetime]:
    """What is known of when a generation came about, in order; what was cut from the events is not."""
    return sorted(row[f"{step}_at"] for step in _STEPS if row[f"{step}_at"] is not None)


def most_troublesome(rows: Sequence[Row]) -> list[str]:
    """The members that caused rebalances, most first."""
    counts: dict[str, int] = {}
    for row in rows:
        if row["member"]:
            counts[row["member"]] = counts.get(row["member"], 0) + 1
    return sorted(counts, key=lambda member: (-counts[member], member))[:MEMBERS_MAX]


def latest(incidents: Sequence[Row]) -> list[Row]:
    """The last row of each incident: how it closed, or else how it opened."""
    found: dict[str, Row] = {}
    for row in incidents:
        if row["incident"] not in found or row["change"] == "closed":
            found[row["incident"]] = row
    return list(found.values())


def _generations(axes: Any, rows: Sequence[Row]) -> None:
    begins, numbers = [times(row)[0] for row in rows], [row["generation"] for row in rows]
    ends = [*begins, times(rows[-1])[-1]]
    axes.step(ends, [*numbers, numbers[-1]], where="post", color=COLORS[0], label="generation")
    cut_short = [(times(row)[0], row["generation"]) for row in rows if row["outcome"] != "stable"]
    if cut_short:
        axes.plot(*zip(*cut_short, strict=True), "o", markersize=3.5, color=TROUBLE, label="cut short or emptied")


def _band(upper: Any, lower: Any, incident: Row, span: tuple[datetime, datetime], *, labelled: bool) -> None:
    begin, until = incident["first_at"], incident["last_at"] if incident["change"] == "closed" else span[1]
    for axes in (upper, lower):
        label = "storm" if labelled and axes is upper else None
        axes.axvspan(begin, until, color=TROUBLE, alpha=0.13, linewidth=0, label=label, zorder=0)
    patterns = sorted(dict(incident["patterns"]).items(), key=lambda one: (-one[1], one[0]))[:_PATTERNS_MAX]
    reported = [f"{incident['generations']} generations", *(f"{name.replace('_', ' ')}: {n}" for name, n in patterns)]
    side, by = ("right", -4) if begin - span[0] > (span[1] - span[0]) / 2 else ("left", 4)  # away from the legend
    upper.annotate(
        "\n".join(reported), (begin, 1.0),
        xycoords=("data", "axes fraction"), xytext=(by, -4), textcoords="offset points", ha=side, va="top",
        fontsize=7.5, color=TROUBLE,
    )  # fmt: skip


def _short(member: str) -> str:
    return member if len(member) <= _NAME_MAX else f"{member[: _NAME_MAX - 1]}…"
