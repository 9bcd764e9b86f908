"""When lag is gone: compared with a minute ago, and with nothing older."""

from __future__ import annotations

import math

from tidegate.monitoring.drain_estimate import WINDOW_MS, DrainEstimates


def estimates(*lags: int, step_ms: int = 10_000) -> list[float | None]:
    drains, found = DrainEstimates(), []
    for number, lag in enumerate(lags):
        found.append(drains.estimate("g", number * step_ms, lag))
        drains.end()
    return found


def test_nothing_to_compare_with_is_no_estimate() -> None:
    assert estimates(100) == [None]


def test_drain_estimate_no_lag_is_drained_already() -> None:
    assert estimates(0) == [0.0]


def test_drain_estimate_shrinking_lag_ends_at() -> None:
    assert estimates(100, 80, 60) == [None, 40.0, 30.0]


def test_drain_estimate_constant_or_growing_lag_never_ends() -> None:
    assert estimates(10, 10, 30) == [None, math.inf, math.inf]


def test_drain_estimate_ignores_samples_older_than_a_minute() -> None:
    fell_long_ago = estimates(1_000, *[100] * (WINDOW_MS // 10_000 + 1))

    assert fell_long_ago[-2] == 100 * 60 / 900 and fell_long_ago[-1] == math.inf


def test_drain_estimate_partitions_absent_from_a_round_are_dropped() -> None:
    drains = DrainEstimates()
    drains.estimate("g", 0, 100)
    drains.end()
    drains.end()

    assert drains.estimate("g", 10_000, 50) is None
