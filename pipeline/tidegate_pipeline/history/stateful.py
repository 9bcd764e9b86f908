"""The operator that runs an analysis in Spark: one state and one timer for each group.

What is remembered is one JSON text: a checkpoint outlives versions of this package, and a field that a later version
adds has its default in it. Spark keeps it in RocksDB; the analyses know nothing of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import Row

STATE = "known string"


class Analysis(Protocol):
    """What is remembered of one group, and what rows and passing time make of it."""

    @property
    def due_ms(self) -> int | None:
        """When time alone changes something."""

    def text(self) -> str | None:
        """All that is to be remembered; None where there is nothing."""

    def see(self, items: Any) -> Iterator[tuple[object, ...]]:
        """The rows of what these items change."""

    def pass_time(self, time_ms: int) -> Iterator[tuple[object, ...]]:
        """Nothing that is not known yet happened before `time_ms`."""


class GroupProcessor(StatefulProcessor):
    """Keyed by organisation and group. `make` opens an analysis with its text, `read` orders and reads the rows.

    `columns` are those of the rows that the analysis gives. A state ends with its timer: Spark's own time to live goes
    by processing time, and in that mode a query that reads what is there never ends.
    """

    def __init__(
        self,
        make: Callable[[str | None], Analysis],
        read: Callable[[Iterable[Any]], Iterable[Any]],
        columns: Iterable[str],
    ) -> None:
        self._make, self._read = make, read
        self._row = Row("org", "group", *columns)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called by Spark in each task."""
        self._handle = handle
        self._state = handle.getValueState("known", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """The new rows of one group."""
        analysis = self._load()
        yield from self._reported(key, analysis.see(self._read(rows)))
        self._keep(analysis)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """The watermark has passed what was due."""
        analysis = self._load()
        yield from self._reported(key, analysis.pass_time(timerValues.getCurrentWatermarkInMs()))
        self._keep(analysis)

    def close(self) -> None:
        """Nothing is held."""

    def _load(self) -> Analysis:
        known = self._state.get()
        return self._make(known[0] if known else None)

    def _reported(self, key: Any, rows: Iterator[tuple[object, ...]]) -> Iterator[Row]:
        return (self._row(*key, *row) for row in rows)

    def _keep(self, analysis: Analysis) -> None:
        text, due_ms = analysis.text(), analysis.due_ms
        if text is None:
            self._state.clear()
        else:
            self._state.update((text,))
        timers = list(self._handle.listTimers())
        for timer_ms in timers:
            if timer_ms != due_ms:
                self._handle.deleteTimer(timer_ms)
        if due_ms is not None and due_ms not in timers:
            self._handle.registerTimer(due_ms)
