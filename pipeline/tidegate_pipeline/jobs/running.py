"""Running jobs: start their queries, watch them, stop after the running micro-batch when asked, report the result."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tidegate_pipeline.errors import PipelineError
from tidegate_pipeline.jobs.failures import cause_of
from tidegate_pipeline.jobs.job import Job, JobContext
from tidegate_pipeline.jobs.progress import Display, Figures
from tidegate_pipeline.query_metrics import QueryMetrics

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_PROGRESS_INTERVAL_S: Final = 0.25
_RECORDED_S: Final = 2
"""How long Spark may take to record the progress of a micro-batch that has ended."""
CORRUPT: Final = "pipeline_corrupt_batches_total"
_TERMINATED: Final = "org.apache.spark.sql.execution.streaming.runtime.TERMINATED$"


class Stop:
    """Whether to end: set by SIGTERM and SIGINT, or by another job's failure."""

    def __init__(self) -> None:
        self.asked = False

    @contextmanager
    def on_signals(self, note: Callable[[str], None]) -> Iterator[None]:
        """SIGTERM and SIGINT ask; a second SIGINT does not wait. Installed after Spark's own handler."""

        def ask(number: int, frame: object) -> None:
            if self.asked and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.asked = True
            note("stopping after the running micro-batch")

        before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@dataclass(slots=True)
class Run:
    """One job on its way."""

    job: Job
    context: JobContext
    figures: Figures = field(default_factory=Figures)
    query: StreamingQuery | None = None
    error: PipelineError | None = None
    started_at: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    stopped: bool = False

    def begin(self) -> None:
        """Start the query, in a fair pool of its own."""
        self.started_at = time.monotonic()
        with suppress(AttributeError):  # Spark Connect has no context
            self.context.spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.job.query_name)
        try:
            self.query = self.job.start(self.context)
        except Exception as error:  # noqa: BLE001  whatever Spark raises becomes this job's failure
            self._end(error)

    def observe(self) -> bool:
        """Take what the query reports; whether it still runs."""
        if self.query is None:
            return False
        running = bool(self.query.isActive)
        last = self.query.lastProgress
        if last is not None:
            behind = last["batchId"] > self.figures.last_batch_id + 1
            self.figures.take(self.query.recentProgress if behind or not running else [last])
        if not running:
            self._end(self.query.exception())
            self.query = None
        return running

    def _end(self, error: BaseException | None) -> None:
        self.seconds = time.monotonic() - self.started_at
        self.error = None if error is None else cause_of(error)

    def _metrics(self) -> dict[str, float]:
        from tidegate_pipeline.jobs.corrupt_batches import count_last  # with pyarrow

        found = dict(self.figures.metrics)
        found[CORRUPT] = found.get(CORRUPT, 0) + count_last(self.figures, self.context.settings)
        return {name: figure for name, figure in sorted(found.items()) if figure}

    def summary(self) -> dict[str, Any]:
        """For people and `--json`."""
        reported: dict[str, Any] = {
            "job": self.job.query_name,
            "status": "failed" if self.error else "stopped" if self.stopped else "done",
            "seconds": round(self.seconds, 3),
            "rows": self.figures.rows,
            "rows_are": self.job.row_name,
            "rows_per_second": round(self.figures.rows / self.seconds) if self.seconds else 0,
            "micro_batches": self.figures.micro_batches,
            "ranges": self.figures.ranges(),
            "remaining_offsets": self.figures.remaining,
            "checkpoint": str(self.context.checkpoint),
        }
        if metrics := self._metrics():
            reported["source"] = metrics
        reported.update(self.job.observed(self.figures.observed))
        if self.error:
            reported["error"] = str(self.error)
            reported["exit_status"] = self.error.exit_status
        else:
            reported.update(self.job.finish(self.context))
        return reported


def ask_to_end(query: StreamingQuery) -> None:
    """Let no further micro-batch begin.

    Spark's loop looks at the query's state before each one, which is how AvailableNow ends; `query.stop()` would
    interrupt the running one. Through Spark Connect there is no such way: the last one may be interrupted.
    """
    execution = getattr(query, "_jsq", None)
    if execution is not None:
        from pyspark import SparkContext

        terminated = SparkContext._jvm.java.lang.Class.forName(_TERMINATED)  # type: ignore[union-attr]
        execution.streamingQuery().state().set(terminated.getField("MODULE$").get(None))


def await_end(query: StreamingQuery) -> None:
    """Wait for the running micro-batch and its progress, then end the wait for the next.

    Spark's trigger is inactive shortly before its progress is recorded. A query that was asked to end does so after
    that; one that waits for its next trigger goes on waiting.
    """
    from pyspark.errors import StreamingQueryException

    while query.status["isTriggerActive"]:
        time.sleep(_PROGRESS_INTERVAL_S)
    with suppress(StreamingQueryException):  # `observe` reports it
        if query.awaitTermination(_RECORDED_S):
            return
    query.stop()


def run_all(runs: Sequence[Run], display: Display, metrics: QueryMetrics | None = None) -> None:
    """Run to the end, to a signal, or to the first failure: then the others are stopped as well."""
    stop, metrics = Stop(), metrics or QueryMetrics()
    with display, stop.on_signals(display.note):
        for run in runs:
            run.begin()
        while True:
            running = [run for run in runs if run.observe()]
            for run in runs:
                display.show(run.job.query_name, run.figures, run.job.row_name)
                metrics.take(run.job.query_name, run.figures)
                if run not in running:
                    metrics.end(run.job.query_name, failed=run.error is not None)
            if not running:
                return
            failed = next((run for run in runs if run.error), None)
            if failed is not None:
                display.note(f"{failed.job.query_name} failed, stopping {', '.join(r.job.query_name for r in running)}")
            if failed is not None or stop.asked:
                _stop(running)
                return
            time.sleep(_PROGRESS_INTERVAL_S)


def _stop(runs: Sequence[Run]) -> None:
    for run in runs:
        run.stopped = True
        if run.query is not None:
            ask_to_end(run.query)
    for run in runs:
        if run.query is not None:
            await_end(run.query)
        run.observe()
