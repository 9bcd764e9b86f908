"""The last rebalances of a group on a time axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

WIDTH: Final = 1_000
SPAN_MS: Final = 30 * 60_000
_BAR_MIN: Final = 4


@dataclass(frozen=True, slots=True)
class Bar:
    """One rebalance, in units of the axis' width."""

    x: float
    width: float
    outcome: str
    sentence: str
    time_ms: int


def bars(rounds: Sequence[Mapping[str, Any]], now_ms: int) -> list[Bar]:
    """Rebalances of the last half hour; a running one ends now. `rounds` as `group_views.history` returns them."""
    start_ms, found = now_ms - SPAN_MS, []
    for one in rounds:
        took_ms = one["stable_ms"]
        if took_ms is None:
            took_ms = now_ms - one["time_ms"] if is_open(one) else (one["joining_ms"] or 0)
        if one["time_ms"] + took_ms >= start_ms:
            x = max(one["time_ms"] - start_ms, 0) * WIDTH / SPAN_MS
            width = max(took_ms * WIDTH / SPAN_MS, _BAR_MIN)
            found.append(Bar(min(x, WIDTH - _BAR_MIN), width, one["outcome"], one["sentence"], one["time_ms"]))
    return found


def is_open(one: Mapping[str, Any]) -> bool:
    """Whether the rebalance is running."""
    return one["outcome"] in ("joining", "syncing", "assigned")
