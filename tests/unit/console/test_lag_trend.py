"""Samples of lag become lines: of a group in total, and by partition."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tidegate.http.console.lag_trend import Lag, LagTrend, parse_sample
from tidegate.monitoring.lag_reading import LogEndsReading
from tidegate.monitoring.lag_sampler import sample_text
from tidegate.store.foreign_entries import ForeignEntries


def text(lag: int, waits_ms: int | None = 0, now_ms: int = 60_000) -> bytes:
    """A sample as the sampler writes it: so many records, the first of them so old."""
    next_time = -1 if waits_ms is None else now_ms - waits_ms
    read_log_ends = LogEndsReading(
        log_start=0, log_end=10 + lag, head_time=now_ms, times={10: next_time}, size=1, now_ms=now_ms
    )
    return sample_text(10, now_ms - 5, read_log_ends, lag, "member=1 lag=9").encode()


def entry(time_ms: int, ref: str, *partitions: bytes, first: int = 0) -> Any:
    """An entry of the stream: of partitions in a row."""
    fields = [part for at, one in enumerate(partitions, first) for part in (f"t:{at}".encode(), one)]
    return b"1-1", [b"time", str(time_ms).encode(), b"group", ref.encode(), *fields]


def take(trend: LagTrend, page: Any) -> None:
    store: Any = SimpleNamespace(foreign_entries=ForeignEntries(), cluster_keys=SimpleNamespace(lag="lag"))
    trend._take(page, store)


def test_lag_sample_has_records_and_the_age_of_the_first() -> None:
    assert parse_sample(text(7, waits_ms=1_500), 60_000) == Lag(60_000, 7, 1_500)
    assert parse_sample(text(0, waits_ms=None), 60_000) == Lag(60_000, 0, 0)
    assert parse_sample(text(7, waits_ms=None), 60_000) == Lag(60_000, 7, None)


def test_group_is_the_sum_of_its_partitions_and_the_longest_wait() -> None:
    trend = LagTrend()

    take(trend, [entry(60_000, "default/a", text(3, 100), text(4, 900)), entry(60_010, "default/b", text(1, 5))])
    take(trend, [entry(60_020, "default/a", text(2, 2_000), first=2)])  # the rest of its partitions, in the same round
    take(trend, [entry(70_000, "default/a", text(1, 10, 70_000))])

    assert trend.of("default/a") == [Lag(60_000, 9, 2_020), Lag(70_000, 1, 10)]
    assert trend.of("default/b") == [Lag(60_010, 1, 15)]
    assert trend.of("default/c") == []


def test_partition_counts_once_however_close_two_rounds_are() -> None:
    trend = LagTrend()

    take(trend, [entry(60_000, "default/a", text(500), text(500)), entry(60_000, "default/a", text(40), first=2)])
    take(trend, [entry(60_900, "default/a", text(510), text(505))])
    take(trend, [entry(61_900, "default/a", text(520), text(510)), entry(61_901, "default/a", text(50), first=2)])

    assert [(one.time_ms, one.records) for one in trend.of("default/a")] == [(60_000, 1_055), (61_900, 1_080)]


def test_lag_samples_older_than_half_an_hour_are_dropped() -> None:
    trend = LagTrend()
    take(
        trend,
        [entry(60_000, "default/a", text(3)), entry(70_000, "default/a", text(3)), entry(1, "default/b", text(1))],
    )

    trend._forget(65_000)

    assert [one.time_ms for one in trend.of("default/a")] == [70_000]
    assert trend.of("default/b") == []
