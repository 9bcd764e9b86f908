"""Lag over time: each partition, when it was stuck, and the rates of appended and consumed records."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from matplotlib import dates as _dates

from tidegate_pipeline.plots.figure import COLORS, QUIET, TROUBLE, legend_beside, panels, save, time_axis
from tidegate_pipeline.plots.tables import Row

_DASHES: Final = ("-", "--", "-.", ":")
NAMED_MAX: Final = len(COLORS)
"""Partitions with a line of their own; the others are one line together."""


def draw_lag(rows: Sequence[Row], path: Path) -> None:
    """Rows of the table `lag`, of one group."""
    series = by_partition(rows)
    figure, (lag, rates) = panels((3.0, 1.5))
    for number, (color, name) in enumerate(zip(COLORS, series, strict=False)):
        _line(lag, name, series[name], color, _DASHES[number % len(_DASHES)])
    _mark_stuck(lag, {name: stuck_stretches(of_one) for name, of_one in series.items()})
    others = [row for name in list(series)[NAMED_MAX:] for row in series[name]]
    if others:
        times, sums = total(others, "lag_last")
        lag.plot(times, sums, color=QUIET, linestyle="--", label=f"{len(series) - NAMED_MAX} others, sum")
    first = next(iter(rows))
    lag.set_title(f"Lag of group {first['group']}")
    lag.set_ylabel("records behind")
    lag.margins(y=0.15)
    lag.set_ylim(bottom=0)
    legend_beside(lag)

    for name, label, color in (("in", "produced", COLORS[0]), ("out", "committed", COLORS[2])):
        times, sums = total(rows, f"records_{name}_per_s")
        rates.plot(times, sums, label=label, color=color, drawstyle="steps-mid")
    rates.axhline(0, color=QUIET, linewidth=0.6)
    rates.set_ylabel("records/s,\nall partitions")
    legend_beside(rates)
    time_axis(rates, rows[0]["window_start"], rows[-1]["window_end"])
    save(figure, path)


def by_partition(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """`topic-partition` -> its rows; those that were furthest behind first."""
    found: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[f"{row['topic']}-{row['partition']}"].append(row)
    return dict(sorted(found.items(), key=lambda item: (-max(row["lag_max"] for row in item[1]), item[0])))


def stuck_stretches(rows: Sequence[Row]) -> list[list[Row]]:
    """Runs of windows of one partition in which nothing was committed, as far as they were called stuck in the end.

    A run begins with the first window that stood still, not with the one in which that had lasted long enough.
    """
    stretches: list[list[Row]] = []
    run: list[Row] = []
    for row in [*rows, None]:
        if row is not None and row["stuck_windows"]:
            run.append(row)
            continue
        if any(one["stuck"] for one in run):
            stretches.append(run)
        run = []
    return stretches


def total(rows: Iterable[Row], column: str) -> tuple[list[datetime], list[float]]:
    """The sum over the partitions that are known, by window; NaN, which makes a gap in a line, where none is."""
    known: defaultdict[datetime, list[float]] = defaultdict(list)
    for row in rows:
        known[_middle(row)] += [] if row[column] is None else [row[column]]
    return sorted(known), [sum(known[time]) if known[time] else math.nan for time in sorted(known)]


def together(stretches: Mapping[str, Sequence[list[Row]]]) -> list[tuple[list[str], list[Row]]]:
    """Stretches that began within a window of each other, under one member: their partitions, and the worst of them."""
    found: list[tuple[list[str], list[Row]]] = []
    flat = [(name, run) for name, runs in stretches.items() for run in runs]
    for name, run in sorted(flat, key=lambda one: (one[1][0]["window_start"], -one[1][-1]["lag_last"], one[0])):
        for names, worst in found:
            near = run[0]["window_start"] <= worst[0]["window_end"]
            if near and run[0]["member"] == worst[0]["member"]:
                names.append(name)
                break
        else:
            found.append(([name], run))
    return found


def _line(axes: Any, name: str, rows: Sequence[Row], color: str, dashes: str) -> None:
    times = [_middle(row) for row in rows]
    axes.plot(times, [row["lag_last"] for row in rows], color=color, linestyle=dashes, label=name)
    axes.fill_between(
        times, [row["lag_min"] for row in rows], [row["lag_max"] for row in rows], color=color, alpha=0.15, linewidth=0
    )


def _mark_stuck(axes: Any, stretches: Mapping[str, Sequence[list[Row]]]) -> None:
    label = "stuck: log continues,\nnothing committed"
    for run in (run for runs in stretches.values() for run in runs):
        times, lags = [_middle(row) for row in run], [row["lag_last"] for row in run]
        axes.plot(times, lags, color=TROUBLE, linewidth=6, alpha=0.35, solid_capstyle="round", zorder=1, label=label)
        label = "_again"
    for names, run in together(stretches):
        seconds = (run[-1]["window_end"] - run[0]["window_start"]).total_seconds()
        text = f"{', '.join(sorted(names))}\nstuck for {seconds:,.0f} s\n{_short(run[0]['member'] or 'nobody owns it')}"
        dates: Any = _dates  # its functions have no types
        peak = dates.date2num(_middle(run[-1])), run[-1]["lag_last"]
        left, right = axes.get_xlim()
        late = peak[0] > (left + right) / 2
        axes.annotate(
            text, peak, xytext=(-9 if late else 9, -4), textcoords="offset points", color=TROUBLE, fontsize=7.5,
            ha="right" if late else "left", va="bottom",
        )  # fmt: skip


def _short(member: str) -> str:
    """A member id without the UUID that it ends with."""
    return re.sub(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", "", member)


def _middle(row: Row) -> datetime:
    middle: datetime = row["window_start"] + (row["window_end"] - row["window_start"]) / 2
    return middle
