"""What people say of a replay: which records, how fast; what their answers look like."""

from __future__ import annotations

import pytest

from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.replay.batches import TargetBatch, entries_of
from tidegate_pipeline.replay.rate_limiter import RateLimiter
from tidegate_pipeline.replay.record_filter import RecordFilter, parse_record_filter


def test_ranges_and_times() -> None:
    assert parse_record_filter(None, None, None) == RecordFilter()
    assert parse_record_filter("100-200", None, None) == RecordFilter({None: (100, 200)})
    assert parse_record_filter("0:1-2, 13:5-900", None, None) == RecordFilter({0: (1, 2), 13: (5, 900)})
    assert parse_record_filter(None, "2026-01-01", "2026-01-01T01:00:00+01:00") == RecordFilter(
        None, 1_767_225_600_000, 1_767_225_600_000
    )


@pytest.mark.parametrize("text", ["5", "9-5", "0:5", "a-b", "1:2:3-4", "3-3"])
def test_range_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match=f"--range {text}"):
        parse_record_filter(text, None, None)


def test_ranges_exclude_times() -> None:
    with pytest.raises(UsageError, match="not both"):
        parse_record_filter("1-2", "2026-01-01", None)
    with pytest.raises(UsageError, match="not a time"):
        parse_record_filter(None, "yesterday", None)


def test_rate_is_limited_without_bursts() -> None:
    now, slept = [0.0], [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        slept[0] += seconds

    rate_limiter = RateLimiter(100, lambda: now[0], sleep)
    for _ in range(50):
        rate_limiter.take(10)
    assert slept[0] == pytest.approx(4.9)
    now[0] += 60
    for _ in range(11):
        rate_limiter.take(10)
    assert slept[0] == pytest.approx(4.9 + 1.0), "a pause is no credit"
    assert (rate_limiter.records_max, RateLimiter(0.5).records_max) == (100, 1)


def test_entry_contains_a_mebibyte_a_thousand_batches_or_a_seconds_records() -> None:
    def sizes(target_batches: list[TargetBatch], records_max: int = 1 << 31) -> list[int]:
        return [len(entry) for entry in entries_of(target_batches, records_max)]

    def target_batches(count: int, size: int, records: int = 1) -> list[TargetBatch]:
        return [TargetBatch(i, i, i, bytes(size), records) for i in range(count)]

    assert sizes(target_batches(10, 300_000)) == [3, 3, 3, 1]
    assert sizes(target_batches(2, 3 << 20)) == [1, 1]
    assert sizes(target_batches(2_001, 100)) == [1_000, 1_000, 1]
    assert sizes(target_batches(5, 10, records=40), records_max=100) == [2, 2, 1]
    assert sizes([]) == []
