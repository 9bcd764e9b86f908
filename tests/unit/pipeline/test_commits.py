"""Silence, bursts and commits that go back, by the minute; in any order of samples and through restarts."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from tidegate_pipeline.history.commits import QUIET_MAX, Back, Commits, Rules, Sample

MINUTE_MS = 60_000
RULES = Rules()


def minutes(commits: Iterable[int], lag: int = 5, start: int = 0) -> list[Sample]:
    """What one broker counts and the sampler sees, minute by minute, not on the minute."""
    samples = []
    for minute, count in enumerate(commits, start):
        at = minute * MINUTE_MS
        samples += [Sample(at + second * 1_000, lag=lag) for second in range(5, 60, 10)]
        samples.append(Sample(at + MINUTE_MS, MINUTE_MS, count))
    return samples


def judged(samples: Iterable[Sample], until_minute: int, rules: Rules = RULES) -> list[tuple[Any, ...]]:
    """Anomaly, minute and commits of each."""
    commits = Commits(rules)
    found = [*commits.see(samples), *commits.pass_time(until_minute * MINUTE_MS)]
    return [(row[0], row[1] / MINUTE_MS, row[2]) for row in found]


def test_regular_commits_are_usual() -> None:
    assert judged(minutes([60, 58, 61, 63, 60] * 20), 200) == []


def test_commits_silence_is_reported_once_with_its_end() -> None:
    samples = minutes([60] * 20 + [0] * 8 + [60] * 3)

    assert judged(samples, 100) == [("silence", 20, 0), ("silence_ended", 28, 60)]


def test_group_with_nothing_to_do_is_not_silent() -> None:
    assert judged(minutes([60] * 20) + minutes([0] * 8, lag=0, start=20), 100) == []


def test_group_that_was_never_busy_is_not_silent() -> None:
    assert judged(minutes([0] * 40), 100) == []


def test_after_a_long_absence_it_begins_anew() -> None:
    samples = minutes([60] * 20) + minutes([600] * 5, start=20 + QUIET_MAX)
    assert judged(samples, 200) == []


def test_minute_without_samples_yields_nothing() -> None:
    assert judged(minutes([60] * 20) + minutes([60] * 5, start=30), 100) == []


def test_commits_burst_is_reported_at_its_start_and_hardly_moves_the_mean() -> None:
    samples = minutes([60] * 20 + [600] * 3 + [60] * 5)
    commits = Commits(RULES)
    assert list(commits.see(samples)) == []
    (burst,) = commits.pass_time(100 * MINUTE_MS)

    assert (burst[0], burst[1], burst[2]) == ("burst", 20 * MINUTE_MS, 600)
    assert burst[3] == pytest.approx(60, abs=1)
    assert commits._usual.mean < 100


def test_nothing_is_judged_while_it_warms_up() -> None:
    assert judged(minutes([60, 600, 60, 600, 0, 0, 0, 0]), 100) == []


def test_commits_rewind_is_reported_at_once() -> None:
    back = [Back("t", 0, 100, 40, "app"), Back("t", 1, 90, 10, "app")]
    first, second = Commits(RULES).see([Sample(MINUTE_MS, MINUTE_MS, 30, 7, back)])

    assert first == ("back", MINUTE_MS, 30, None, None, None, "t", 0, 100, 40, "app", 1)
    assert second == ("back", MINUTE_MS, 30, None, None, None, "t", 1, 90, 10, "app", 6)


def test_broker_counts_across_two_minutes_count_in_both() -> None:
    commits = Commits(RULES)
    list(commits.see([Sample(90_000, MINUTE_MS, 60)]))

    assert {start: one.commits for start, one in commits._open.items()} == {0: 30, MINUTE_MS: 30}


def test_sample_of_a_judged_minute_is_too_late() -> None:
    commits = Commits(RULES)
    list(commits.see(minutes([60] * 5)))
    list(commits.pass_time(20 * MINUTE_MS))
    before = commits._usual.buckets
    list(commits.see([Sample(MINUTE_MS, MINUTE_MS, 1_000)]))

    assert list(commits.pass_time(20 * MINUTE_MS)) == []
    assert commits._usual.buckets == before and commits.due_ms == (5 + QUIET_MAX) * MINUTE_MS


def test_deleted_group_is_dropped() -> None:
    commits = Commits(RULES)
    list(commits.see(minutes([60] * 5)))
    list(commits.pass_time(10 * MINUTE_MS))
    assert commits.text() is not None and commits.due_ms is not None

    list(commits.pass_time(commits.due_ms))
    assert commits.text() is None and commits.due_ms is None


@pytest.mark.parametrize("seed", range(10))
def test_batches_order_and_restarts_change_nothing(seed: int) -> None:
    chance = random.Random(seed)
    samples = minutes([*[chance.randint(50, 70) for _ in range(30)], 0, 0, 0, 0, 900, 60, 60])
    whole = judged(samples, 100)
    assert [row[0] for row in whole] == ["silence", "silence_ended", "burst"]

    text, rows, start = None, [], 0
    while start < len(samples):
        some = samples[start : start + chance.randint(1, 40)]
        start += len(some)
        commits = Commits(RULES, text)
        rows += commits.see(chance.sample(some, len(some)))
        rows += commits.pass_time(samples[start - 1].time_ms - MINUTE_MS)
        text = commits.text()
    rows += Commits(RULES, text).pass_time(100 * MINUTE_MS)
    assert [(row[0], row[1] / MINUTE_MS, row[2]) for row in rows] == whole
