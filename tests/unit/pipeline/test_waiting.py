"""Durations as Spark has them, and micro-batches that wait for more."""

from __future__ import annotations

import pytest

from tidegate_pipeline.sources.durations import parse_duration
from tidegate_pipeline.sources.waiting import TriggerDelay


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("15m", 900),
        ("15 min", 900),
        ("30S", 30),
        ("2h", 7_200),
        ("1d", 86_400),
        ("250ms", 0.25),
        ("1500", 1.5),
        ("0", 0),
    ],
)
def test_durations_are_those_of_spark(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "0.5s", "-1s", "1 fortnight", "5 minutes"])
def test_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


class Clock:
    """Stepped by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_micro_batch_waits_for_enough_or_for_long_enough() -> None:
    clock = Clock()
    delay = TriggerDelay(10, 60, clock)

    assert not delay.holds(1), "the first one does not wait"
    assert delay.holds(9)
    assert not delay.holds(10), "enough"
    clock.now += 59
    assert delay.holds(9)
    clock.now += 1
    assert not delay.holds(9), "long enough"
    assert delay.holds(9)


def test_nothing_to_read_neither_waits_nor_counts_as_a_micro_batch() -> None:
    clock = Clock()
    delay = TriggerDelay(10, 60, clock)
    delay.holds(10)
    clock.now += 59
    assert not delay.holds(0)
    clock.now += 1

    assert not delay.holds(1)


def test_without_a_minimum_nothing_waits() -> None:
    delay = TriggerDelay(0, 60, Clock())

    assert not any(delay.holds(behind) for behind in (1, 1, 5))
