"""The summary that a job prints at its end, and its plan for `--dry-run`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table

_RANGES_SHOWN: Final = 12
_IN_THE_HEAD: Final = frozenset((
    "job", "status", "seconds", "rows", "rows_are", "rows_per_second", "micro_batches", "ranges", "error",
    "exit_status",
))  # fmt: skip


def plan_lines(name: str, rows: Sequence[Mapping[str, object]]) -> Iterator[str]:
    """The plan as a table."""
    if not rows:
        yield f"{name}: nothing to read"
        return
    yield f"{name} would read"
    yield from _table(rows)


def summary_lines(reported: Mapping[str, Any]) -> Iterator[str]:
    """What was read, how fast, which ranges, and the job's own figures."""
    yield f"{reported['job']}: {reported['status']} after {reported['seconds']:.1f} s"
    rate = f", {reported['rows_per_second']:,} a second" if reported["rows_per_second"] else ""
    batches = f"{reported['micro_batches']:,} micro-batch{'es' if reported['micro_batches'] != 1 else ''}"
    yield _line("read", f"{reported['rows']:,} {reported['rows_are']} in {batches}{rate}")
    ranges = list(reported["ranges"].items())
    for at, (place, (first, end)) in enumerate(ranges[:_RANGES_SHOWN]):
        yield _line("" if at else "offsets", f"{place}  {first:,} to {end:,}")
    if len(ranges) > _RANGES_SHOWN:
        yield _line("", f"and of {len(ranges) - _RANGES_SHOWN} partitions more")
    yield from result_lines({name: value for name, value in reported.items() if name not in _IN_THE_HEAD})


def result_lines(figures: Mapping[str, object]) -> Iterator[str]:
    """One line per figure; empty ones are left out. Rows are printed as a table."""
    for name, value in figures.items():
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            yield f"  {name.replace('_', ' ')}"
            yield from _table(value)
        elif value not in (None, "", 0, {}, []):
            yield _line(name.replace("_", " "), _shown(value))


def _line(name: str, value: str) -> str:
    return f"  {name:<18} {value}"


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return json.dumps(value, default=str)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _table(rows: Sequence[Mapping[str, object]]) -> Iterator[str]:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(box=None, pad_edge=False)
    for name in columns:
        numbers = all(isinstance(row.get(name), int | float) for row in rows)
        table.add_column(name.replace("_", " "), justify="right" if numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(_shown(row.get(name, "")) for name in columns))
    console = Console(width=2_000, highlight=False)
    with console.capture() as drawn:
        console.print(table)
    yield from (f"  {line.rstrip()}" for line in drawn.get().splitlines())
