"""The matrix as a table."""

from __future__ import annotations

from collections.abc import Sequence

from bench.processes import percentiles
from tests.clients.matrix import Outcome

HEAD = (
    "| client | holds | one more joins: p50 | p99 | extra rebalances | close: worst | static close | expired after "
    "| records | twice | late: p95 | held |"
)


def table(outcomes: Sequence[Outcome]) -> str:
    """One row a client and setting."""
    rows = [HEAD, "|---" * HEAD.count(" | ") + "|---|"]
    for each in sorted(outcomes, key=lambda one: (one.client, one.holds)):
        took = percentiles(each.joined_s)
        cells = (
            each.client,
            each.holds,
            f"{took.get('p50_ms', 0):.0f} ms",
            f"{took.get('p99_ms', 0):.0f} ms",
            each.extra_rebalances,
            f"{max(each.closed_ms, default=0)} ms",
            "-" if each.static_closed_ms is None else f"{each.static_closed_ms} ms",
            f"{each.expired_s:.1f} s",
            each.records,
            each.twice,
            f"{each.late_ms:.0f} ms",
            f"{each.held} x {each.held_s:.2f} s" if each.held else "-",
        )
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows)
