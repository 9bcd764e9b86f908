"""Rebalances on a line of half an hour."""

from __future__ import annotations

from typing import Any

from tidegate.http.console.timeline import SPAN_MS, WIDTH, bars

NOW_MS = 10 * SPAN_MS


def rebalance(ago_ms: int, outcome: str = "stable", stable_ms: int | None = 60_000) -> dict[str, Any]:
    """As `group_views.history` returns it."""
    return {
        "time_ms": NOW_MS - ago_ms, "outcome": outcome, "stable_ms": stable_ms, "joining_ms": 3_000, "sentence": "x"
    }  # fmt: skip


def test_bar_begins_where_the_rebalance_did_and_is_as_long() -> None:
    [bar] = bars([rebalance(SPAN_MS // 2)], NOW_MS)

    assert (bar.x, round(bar.width, 1)) == (WIDTH / 2, 33.3)


def test_timeline_running_rebalance_reaches_now() -> None:
    [bar] = bars([rebalance(SPAN_MS // 4, "joining", None)], NOW_MS)

    assert bar.x + bar.width == WIDTH


def test_timeline_short_ones_are_visible_and_old_ones_omitted() -> None:
    found = bars([rebalance(0, stable_ms=5), rebalance(SPAN_MS * 2)], NOW_MS)

    assert [(bar.x, bar.width) for bar in found] == [(WIDTH - 4, 4)]
