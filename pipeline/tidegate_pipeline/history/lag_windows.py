"""How far behind one group was, window by window: a row for each partition that was sampled in it.

Rows come when the window is over, by the watermark alone, so batches and restarts change nothing. A partition is
stuck when for `stuck_windows` windows its committed offset stood still while the log continued; windows in which the
log stood still as well do not count, and do not end it while records wait.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

SCHEMA: Final = (
    "window_start_ms long, window_end_ms long, topic string, partition int, samples int, lag_min long, lag_max long, "
    "lag_last long, committed long, log_end long, records_in_per_s double, records_out_per_s double, behind_s double, "
    "member string, stuck_windows int, stuck boolean"
)
"""Rates run from the last sample of the window before, in a partition's first window from its first sample; they are
null where there is no earlier one. `records_out_per_s` is below 0 where commits went back. `behind_s`: from the record
to be read next to the log's last, by their timestamps.
"""

FORGET_MS: Final = 3_600_000
"""How long a partition without samples is remembered."""

COLUMNS: Final = (
    "unix_millis(ts) as time_ms", "topic", "partition", "committed", "log_end", "lag",
    "if(lag = 0, 0, greatest(unix_millis(head_timestamp) - unix_millis(next_timestamp), 0)) as behind_ms", "member",
)  # fmt: skip
"""Of the source `tidegate-lag`, as SQL."""


class Sample(NamedTuple):
    """One partition at one moment; `behind_ms` is None where timestamps are not known."""

    time_ms: int
    topic: str
    partition: int
    committed: int
    log_end: int
    lag: int
    behind_ms: int | None = None
    member: str | None = None


def samples_of(rows: Iterable[Any]) -> list[Sample]:
    """Rows of `COLUMNS`."""
    return [Sample(*(row[name] for name in Sample._fields)) for row in rows]


@dataclass(slots=True)
class Window:
    """The state of an open window: samples, least and most lag, the first sample and the last."""

    count: int
    lag_min: int
    lag_max: int
    first: Sample
    last: Sample

    def kept(self) -> tuple[object, ...]:
        """As it is remembered."""
        return self.count, self.lag_min, self.lag_max, self.first, self.last

    def add(self, sample: Sample) -> None:
        """One more, in any order."""
        self.count += 1
        self.lag_min, self.lag_max = min(self.lag_min, sample.lag), max(self.lag_max, sample.lag)
        self.first = min(self.first, sample, key=_time)
        self.last = max(self.last, sample, key=_time)


@dataclass(slots=True)
class Partition:
    """Its open windows by their begin, its last sample in a closed one, and for how many windows it has stood still."""

    windows: dict[int, Window]
    last: Sample | None = None
    still: int = 0

    def close(self, start_ms: int) -> tuple[Window, Sample]:
        """End a window; returns it, and the sample from which it is judged."""
        window = self.windows.pop(start_ms)
        before, self.last = self.last or window.first, window.last
        if window.last.committed != before.committed or not window.last.lag:
            self.still = 0
        elif window.last.log_end > before.log_end:
            self.still += 1
        return window, before


class LagWindows:
    """What is remembered of a group between its samples. `text` is what `text` gave before."""

    def __init__(self, window_ms: int, stuck_windows: int, text: str | None = None) -> None:
        self._window_ms, self._stuck_windows = window_ms, stuck_windows
        known: dict[str, Any] = json.loads(text) if text else {"passed_ms": 0, "partitions": []}
        self._time_ms: int = known["passed_ms"]
        self._partitions: dict[tuple[str, int], Partition] = {}
        for topic, index, windows, last, still in known["partitions"]:
            opened = {
                start: Window(count, least, most, Sample(*first), Sample(*end))
                for start, (count, least, most, first, end) in windows
            }
            self._partitions[topic, index] = Partition(opened, Sample(*last) if last else None, still)

    def text(self) -> str | None:
        """All of it; None where there is nothing."""
        partitions = [
            (*place, [(start, window.kept()) for start, window in known.windows.items()], known.last, known.still)
            for place, known in self._partitions.items()
        ]
        return json.dumps({"passed_ms": self._time_ms, "partitions": partitions}) if partitions else None

    @property
    def due_ms(self) -> int | None:
        """When the first window ends, or else a partition is forgotten."""
        ends = [start + self._window_ms for known in self._partitions.values() for start in known.windows]
        lasts = [known.last.time_ms + FORGET_MS for known in self._partitions.values() if known.last]
        return min(ends or lasts, default=None)

    def see(self, samples: Iterable[Sample]) -> Iterator[tuple[object, ...]]:
        """Take samples; what comes after its window's end is left out."""
        for sample in samples:
            start_ms = sample.time_ms - sample.time_ms % self._window_ms
            if start_ms + self._window_ms > self._time_ms:
                known = self._partitions.setdefault((sample.topic, sample.partition), Partition({}))
                if start_ms in known.windows:
                    known.windows[start_ms].add(sample)
                else:
                    known.windows[start_ms] = Window(1, sample.lag, sample.lag, sample, sample)
        return iter(())

    def pass_time(self, time_ms: int) -> Iterator[tuple[object, ...]]:
        """The rows of the windows that ended before `time_ms`, in their order."""
        self._time_ms = max(self._time_ms, time_ms)
        over = [
            (start_ms, place)
            for place, known in self._partitions.items()
            for start_ms in known.windows
            if start_ms + self._window_ms <= time_ms
        ]
        for start_ms, place in sorted(over):
            yield self._row(start_ms, self._partitions[place])
        self._partitions = {
            place: known
            for place, known in self._partitions.items()
            if known.windows or (known.last and known.last.time_ms + FORGET_MS > time_ms)
        }

    def _row(self, start_ms: int, known: Partition) -> tuple[object, ...]:
        window, before = known.close(start_ms)
        last = window.last
        seconds = (last.time_ms - before.time_ms) / 1000
        return (
            start_ms, start_ms + self._window_ms, last.topic, last.partition, window.count, window.lag_min,
            window.lag_max, last.lag, last.committed, last.log_end,
            (last.log_end - before.log_end) / seconds if seconds else None,
            (last.committed - before.committed) / seconds if seconds else None,
            None if last.behind_ms is None else last.behind_ms / 1000,
            last.member, known.still, known.still >= self._stuck_windows,
        )  # fmt: skip


def _time(sample: Sample) -> int:
    return sample.time_ms
