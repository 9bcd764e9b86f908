"""Windows of lag on scripted samples: figures, what is stuck, and that batches and restarts change nothing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_pipeline.history.lag_windows import FORGET_MS, SCHEMA, LagWindows, Sample

NAMES = [column.split(" ")[0] for column in SCHEMA.split(", ")]
MINUTE_MS = 60_000


def at(second: float, committed: int, end: int, partition: int = 0, **more: Any) -> Sample:
    """A sample of topic t."""
    return Sample(int(second * 1000), "t", partition, committed, end, max(end - committed, 0), **more)


def windows(*samples: Sample, stuck_windows: int = 3, until_s: float = 1e6) -> list[dict[str, Any]]:
    """The rows of all windows over by then."""
    history = LagWindows(MINUTE_MS, stuck_windows)
    assert list(history.see(samples)) == []
    return [dict(zip(NAMES, row, strict=True)) for row in history.pass_time(int(until_s * 1000))]


def test_figures_of_a_window() -> None:
    before, window = windows(
        at(10, 0, 100), at(50, 20, 100), at(60, 20, 160), at(119, 80, 340, behind_ms=2500, member="m"), at(90, 70, 71)
    )

    assert window == {
        "window_start_ms": 60_000, "window_end_ms": 120_000, "topic": "t", "partition": 0, "samples": 3, "lag_min": 1,
        "lag_max": 260, "lag_last": 260, "committed": 80, "log_end": 340, "records_in_per_s": 240 / 69,
        "records_out_per_s": 60 / 69, "behind_s": 2.5, "member": "m", "stuck_windows": 0, "stuck": False,
    }  # fmt: skip
    assert (before["records_in_per_s"], before["records_out_per_s"], before["behind_s"]) == (0, 0.5, None)
    [alone] = windows(at(0, 5, 5))
    assert (alone["records_in_per_s"], alone["samples"], alone["lag_max"]) == (None, 1, 0)


@pytest.mark.parametrize(
    ("minutes", "still", "stuck"),
    [
        ([(0, 10), (0, 20), (0, 30), (0, 40)], [0, 1, 2, 3], [False, False, False, True]),
        ([(0, 10), (0, 20), (0, 20), (0, 30), (0, 40)], [0, 1, 1, 2, 3], [False, False, False, False, True]),
        ([(0, 10), (0, 20), (5, 30), (5, 40)], [0, 1, 0, 1], [False] * 4),
        ([(9, 10), (9, 20), (3, 30), (3, 40)], [0, 1, 0, 1], [False] * 4),  # back is a move too
        ([(10, 10), (10, 10), (10, 10), (10, 10)], [0, 0, 0, 0], [False] * 4),  # nothing to do
        (
            [(0, 10), (0, 20), (0, 30), (0, 40), (40, 40), (40, 50)],
            [0, 1, 2, 3, 0, 1],
            [False] * 3 + [True] + [False] * 2,
        ),
    ],
)
def test_stuck_is_committed_unchanged_while_the_head_moves(
    minutes: list[tuple[int, int]], still: list[int], stuck: list[bool]
) -> None:
    rows = windows(*(at(60 * number, *offsets) for number, offsets in enumerate(minutes)))

    assert [row["stuck_windows"] for row in rows] == still
    assert [row["stuck"] for row in rows] == stuck


def test_windows_end_with_the_watermark_and_late_samples_are_left_out() -> None:
    history = LagWindows(MINUTE_MS, 3)
    list(history.see([at(59, 0, 9), at(61, 0, 9), at(61, 0, 7, partition=1)]))
    assert history.due_ms == 60_000 and list(history.pass_time(59_999)) == []
    assert [row[0] for row in history.pass_time(60_000)] == [0]
    list(history.see([at(58, 0, 5), at(62, 0, 4)]))
    rows = list(history.pass_time(120_000))

    assert [(row[0], row[3], row[4]) for row in rows] == [(60_000, 0, 2), (60_000, 1, 1)]
    assert history.text() is not None and history.due_ms == 61_000 + FORGET_MS
    assert list(history.pass_time(62_001 + FORGET_MS)) == [] and history.text() is None and history.due_ms is None


@given(
    st.lists(st.tuples(st.integers(0, 600), st.integers(0, 9), st.integers(0, 30), st.integers(0, 1)), max_size=40),
    st.lists(st.integers(0, 40), max_size=6),
    st.randoms(use_true_random=False),
)
def test_batches_restarts_and_order_change_nothing(
    reported: Sequence[tuple[int, int, int, int]], trims: Sequence[int], random: Any
) -> None:
    reported = list({(second, partition): one for one in reported for second, _, _, partition in [one]}.values())
    samples = sorted(at(second, committed, end, partition) for second, committed, end, partition in reported)
    whole = LagWindows(MINUTE_MS, 2)
    list(whole.see(samples))
    expected = list(whole.pass_time(10**9))

    rows: list[tuple[object, ...]] = []
    text, bounds = None, sorted({0, *trims, len(samples)})
    for start, end in itertools.pairwise(bounds):
        history = LagWindows(MINUTE_MS, 2, text)  # a restart
        batch = samples[start:end]
        random.shuffle(batch)
        list(history.see(batch))
        if samples[start:end]:
            rows += history.pass_time(samples[start:end][-1].time_ms - 120_000)
        text = history.text()
    rows += LagWindows(MINUTE_MS, 2, text).pass_time(10**9)

    assert sorted(rows, key=repr) == sorted(expected, key=repr)
