"""Redis's clock as a broker counts it on."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from tidegate.store import redis_clock
from tidegate.store.redis_clock import RedisClock

NOW_MS = 1_700_000_000_000
DAY_MS = 24 * 3_600_000


class Times:
    """The broker's own clock (ms since the epoch) and its monotonic one (s)."""

    own_ms = NOW_MS
    monotonic_s = 100.0


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    times = Times()
    monkeypatch.setattr(redis_clock.time, "time", lambda: times.own_ms / 1000)
    monkeypatch.setattr(redis_clock, "perf_counter", lambda: times.monotonic_s)
    return times


def test_redis_clock_counts_on_by_the_monotonic_clock(times: Times) -> None:
    clock = RedisClock()
    clock.observe(NOW_MS, 0)
    times.own_ms += 8 * DAY_MS
    times.monotonic_s += 1.5

    assert clock.now_ms() == NOW_MS + 1_500


def test_redis_clock_own_clock_ahead_does_not_agree(times: Times) -> None:
    clock = RedisClock()
    assert not clock.agrees
    clock.observe(NOW_MS, 0)
    assert clock.agrees

    times.own_ms += 8 * DAY_MS
    clock.observe(NOW_MS, 0)
    assert clock.difference_ms == 8 * DAY_MS
    assert not clock.agrees


def test_redis_clock_follows_redis_back(times: Times) -> None:
    clock = RedisClock()
    clock.observe(NOW_MS + DAY_MS, 0)
    clock.observe(NOW_MS, 0)

    assert clock.now_ms() == NOW_MS
    assert clock.agrees


def test_redis_clock_late_reply_is_ignored(times: Times) -> None:
    clock = RedisClock()
    clock.observe(NOW_MS, 0)
    times.monotonic_s += 10
    times.own_ms += 10_000
    clock.observe(NOW_MS + 1, 10)

    assert clock.now_ms() == NOW_MS + 10_000
    assert clock.agrees


def test_redis_clock_difference_is_logged_when_it_begins_and_when_it_ends(times: Times) -> None:
    clock = RedisClock()
    with capture_logs() as lines:
        for ahead_ms in (0, 5_000, 5_001, 60_000, -5_001, -5_000, 0):
            times.own_ms = NOW_MS + ahead_ms
            clock.observe(NOW_MS, 0)

    assert lines == [
        {"event": "clock_differs", "log_level": "warning", "difference_ms": 5_001, "allowed_ms": 5_000},
        {"event": "clock_agrees", "log_level": "info", "difference_ms": -5_000},
    ]


def test_redis_clock_that_differs_from_the_first_reply_on_is_logged_once(times: Times) -> None:
    clock = RedisClock()
    with capture_logs() as lines:
        for _ in range(3):
            clock.observe(NOW_MS + DAY_MS, 0)

    assert [(line["event"], line["difference_ms"]) for line in lines] == [("clock_differs", -DAY_MS)]
