"""How far a query is: figures from Spark's progress, a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_LINE_EVERY_S: Final = 10.0

Positions = dict[tuple[str, int], int]
"""(topic, partition) -> next offset."""


def positions(offset: object) -> Positions:
    """Of an offset `{"topic": {"0": next}}`, as text or parsed; anything else (events: entry ids) has none."""
    try:
        reported = json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:
        return {}
    if not isinstance(reported, Mapping):
        return {}
    return {
        (topic, int(partition)): position
        for topic, partitions in reported.items()
        if isinstance(partitions, Mapping) and not topic.startswith("_")
        for partition, position in partitions.items()
        if partition.isdecimal() and isinstance(position, int)
    }


def reported_figures(offset: object) -> dict[str, float]:
    """What a source of topics counted since the query started: Python sources have no metrics but in their offsets."""
    try:
        reported = json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:
        return {}
    return dict(reported.get("_metrics", {})) if isinstance(reported, Mapping) else {}


def _together(sources: Iterable[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """The figures of a query out of those of its sources, each with its number of partitions."""
    found = list(sources)
    together: dict[str, float] = {}
    for name in dict.fromkeys(name for _, figures in found for name in figures):
        having = [(partitions, figures[name]) for partitions, figures in found if name in figures]
        values = [value for _, value in having]
        if name.startswith("min"):
            together[name] = min(values)
        elif name.startswith("max"):
            together[name] = max(values)
        elif name.startswith("avg"):
            weights = sum(partitions for partitions, _ in having)
            together[name] = sum(partitions * value for partitions, value in having) / max(weights, 1)
        else:
            together[name] = sum(values)
    return together


@dataclass(slots=True)
class Figures:
    """What a query has read since it was started here; `take` its progress reports, each once."""

    rows: int = 0
    micro_batches: int = 0
    micro_batch_ms: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    by_source: dict[int, tuple[int, dict[str, float]]] = field(default_factory=dict)
    """Of each source of topics, by its number: its partitions, and the figures that it reported last."""
    observed: dict[str, int] = field(default_factory=dict)
    """Sums of what `DataFrame.observe` counted in each micro-batch."""
    started: Positions = field(default_factory=dict)
    reached: Positions = field(default_factory=dict)
    latest: Positions = field(default_factory=dict)
    last_batch_id: int = -1
    last_range: tuple[str | None, str] | None = None
    """Start and end of the last micro-batch, as its source of topics reported them; the first one starts at `null`."""

    def take(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """Reports of micro-batches, oldest first; those that were taken before are passed over."""
        for report in reports:
            if report["batchId"] > self.last_batch_id:
                self._take(report)

    def _take(self, report: Mapping[str, Any]) -> None:
        sources = report.get("sources") or ()
        for at, source in enumerate(sources):
            for place, offset in positions(source.get("startOffset")).items():
                self.started.setdefault(place, offset)
            ends = positions(source.get("endOffset"))
            for place in ends:
                self.started.setdefault(place, 0)
            self.reached |= ends
            latest = positions(source.get("latestOffset"))
            self.latest |= latest
            if reported := reported_figures(source.get("latestOffset")):
                self.by_source[at] = len(latest), reported
        self.metrics |= _together(self.by_source.values())
        # Spark repeats the id of the micro-batch to come while there is nothing to read
        if not report.get("numInputRows") and all(s.get("startOffset") == s.get("endOffset") for s in sources):
            return
        self.last_batch_id = report["batchId"]
        for source in sources:
            if positions(source.get("endOffset")):
                self.last_range = source.get("startOffset"), source["endOffset"]
        self.rows += report.get("numInputRows") or 0  # None through Spark Connect
        self.micro_batches += 1
        self.micro_batch_ms += report.get("batchDuration") or 0
        self._take_observed(report.get("observedMetrics") or {})
        for name, value in [pair for source in sources for pair in (source.get("metrics") or {}).items()]:
            if str(value).lstrip("-").isdecimal():
                self.metrics[name] = self.metrics.get(name, 0) + int(value)

    def _take_observed(self, metrics: Mapping[str, Any]) -> None:
        for row in metrics.values():
            for name, value in row.asDict().items():
                self.observed[name] = self.observed.get(name, 0) + int(value or 0)

    @property
    def offsets(self) -> int:
        """Offsets passed, of sources that have them."""
        return sum(end - self.started.get(place, 0) for place, end in self.reached.items())

    @property
    def remaining(self) -> int:
        """Offsets between the query's position and the end of the source at its last planning."""
        return sum(max(0, end - self.reached.get(place, 0)) for place, end in self.latest.items())

    def ranges(self) -> dict[str, list[int]]:
        """`topic-partition` -> [first, end) of what was read."""
        return {
            f"{topic}-{partition}": [self.started.get((topic, partition), 0), end]
            for (topic, partition), end in sorted(self.reached.items())
            if end > self.started.get((topic, partition), 0)
        }


class Display:
    """One line a query: a bar on a terminal, else a line of text now and then, both on stderr."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[reported]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=quiet or not sys.stderr.isatty(),
        )
        self._tasks: dict[str, TaskID] = {}
        self._reported_text: dict[str, tuple[float, int]] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bars.stop()

    def note(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, markup=False)

    def show(self, name: str, figures: Figures, row_name: str) -> None:
        """Print the position of a query; `row_name` is the noun for its rows."""
        reported = f"{figures.rows:,} {row_name}, micro-batches: {figures.micro_batches}"
        done, remaining = figures.offsets, figures.remaining
        if not self._bars.disable:
            task = self._tasks.get(name)
            if task is None:
                task = self._tasks[name] = self._bars.add_task(name, total=None, reported=reported)
            total = done + remaining if done + remaining else None
            self._bars.update(task, completed=done, total=total, reported=reported)
            return
        at, batches = self._reported_text.get(name, (time.monotonic(), 0))
        self._reported_text.setdefault(name, (at, 0))
        if figures.micro_batches > batches and time.monotonic() - at >= _LINE_EVERY_S:
            self._reported_text[name] = (time.monotonic(), figures.micro_batches)
            self.note(f"{name}: {reported}" + (f", {remaining:,} offsets to go" if remaining else ""))
