"""Metrics of streaming queries for Prometheus: of the jobs of `tidegate pipeline`, or of any session by its listener.

Python sources have no metrics of their own in Spark; theirs are in the offsets that they report, see `jobs/progress`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from prometheus_client import start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from tidegate.telemetry.declared import Declared
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.jobs.progress import Figures
from tidegate_pipeline.jobs.value_columns import dead_letter_count

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryListener,
    )

_ENDED_MAX: Final = 100
"""Runs that have ended, of which a late report is passed over."""
_BEHIND: Final = "Offsets between the query and the log ends at its last planning: "


def _gauge(name: str, help_: str) -> Declared:
    return Declared(f"tidegate_pipeline_{name}", "gauge", help_, ("query",))


def _counter(name: str, help_: str) -> Declared:
    return Declared(f"tidegate_pipeline_{name}", "counter", help_, ("query",))


@dataclass(slots=True)
class QueryStatus:
    """One query: what it reported, whether it runs, how often it failed in this process."""

    figures: Figures = field(default_factory=Figures)
    is_active: bool = True
    failures: int = 0
    micro_batches: int = 0
    progressed_at: float | None = None
    """Unix time, in seconds, at which the last of them was reported."""

    def source(self, name: str) -> float | None:
        """What the source reported last under this name; None for sources without figures."""
        return self.figures.metrics.get(name)


_METRICS: Final[tuple[tuple[Declared, Callable[[QueryStatus], float | None]], ...]] = (
    (_gauge("query_active", "1 while the query runs."), lambda one: float(one.is_active)),
    (_counter("query_failures", "Ends of the query by an error."), lambda one: one.failures),
    (_counter("rows", "Rows that the query read."), lambda one: one.figures.rows),
    (_counter("micro_batches", "Micro-batches with data."), lambda one: one.figures.micro_batches),
    (_counter("micro_batch_seconds", "Time in micro-batches."), lambda one: one.figures.micro_batch_ms / 1000),
    (
        _gauge("last_micro_batch_timestamp_seconds", "Unix time at which the last micro-batch with data was reported."),
        lambda one: one.progressed_at,
    ),
    (
        _gauge("offsets_behind_latest_max", f"{_BEHIND}the most of a partition."),
        lambda one: one.source("maxOffsetsBehindLatest"),
    ),
    (
        _gauge("offsets_behind_latest_avg", f"{_BEHIND}the average of the partitions."),
        lambda one: one.source("avgOffsetsBehindLatest"),
    ),
    (
        _gauge("offsets_behind_latest_min", f"{_BEHIND}the least of a partition."),
        lambda one: one.source("minOffsetsBehindLatest"),
    ),
    (
        _counter("lost_offsets", "Offsets that were gone before they were read (failOnDataLoss=false)."),
        lambda one: one.source("pipeline_lost_offsets_total"),
    ),
    (
        _counter("corrupt_batches", "Batches put into the quarantine (onCorrupt=quarantine)."),
        lambda one: one.source("pipeline_corrupt_batches_total"),
    ),
    (
        _counter("dead_letters", "Records whose values could not be decoded (values.on_undecodable)."),
        lambda one: dead_letter_count(one.figures.observed),
    ),
)

DECLARED: Final = tuple(declared for declared, _ in _METRICS)
"""All metrics of the pipeline, in the order of docs/metrics.md."""


class QueryMetrics(Collector):
    """The metrics of the queries of one process, by name."""

    def __init__(self) -> None:
        self._queries: dict[str, QueryStatus] = {}

    def status(self, query: str) -> QueryStatus:
        """That of a query; a new one is active."""
        return self._queries.setdefault(query, QueryStatus())

    def take(self, query: str, figures: Figures) -> None:
        """The figures of a query, as its owner changes them."""
        status = self.status(query)
        status.figures = figures
        if figures.micro_batches != status.micro_batches:
            status.micro_batches, status.progressed_at = figures.micro_batches, time.time()

    def end(self, query: str, *, failed: bool) -> None:
        """The query does not run any more; counted once."""
        status = self.status(query)
        status.failures += failed and status.is_active
        status.is_active = False

    def collect(self) -> Iterator[Metric]:
        """As Prometheus scrapes them."""
        queries = sorted(self._queries.items())
        for declared, value_of in _METRICS:
            kind = CounterMetricFamily if declared.kind == "counter" else GaugeMetricFamily
            family = kind(declared.name, declared.help, labels=declared.labels)
            for name, status in queries:
                if (value := value_of(status)) is not None:
                    family.add_metric([name], value)
            yield family


@contextmanager
def serving(metrics: QueryMetrics, address: str) -> Iterator[None]:
    """Answer `GET /metrics` at `host:port` meanwhile; nothing for an empty address. Raises UsageError."""
    stop = _serve(metrics, address) if address else lambda: None
    try:
        yield
    finally:
        stop()


def _serve(metrics: QueryMetrics, address: str) -> Callable[[], None]:
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        raise UsageError(f"metrics.address is host:port, not {address}")
    registry = CollectorRegistry()
    registry.register(metrics)
    try:
        server, thread = start_http_server(int(port), host.strip("[]") or "127.0.0.1", registry)
    except (OSError, OverflowError) as error:
        raise UsageError(f"metrics.address {address}: {error}") from None

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


def serve_metrics(spark: SparkSession, address: str) -> StreamingQueryListener:
    """Export the metrics of a session's queries at `host:port`, as long as this process lives. Raises UsageError."""
    listener = metrics_listener(metrics := QueryMetrics())
    _serve(metrics, address)
    spark.streams.addListener(listener)
    return listener


def metrics_listener(metrics: QueryMetrics) -> StreamingQueryListener:
    """A listener for `spark.streams.addListener`, which keeps `metrics` up to date; queries without a name by id."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class MetricsListener(StreamingQueryListener):
        """Figures out of Spark's reports."""

        def __init__(self) -> None:
            self._names: dict[str, str] = {}
            self._figures: dict[str, Figures] = {}
            self._ended: deque[str] = deque(maxlen=_ENDED_MAX)

        def onQueryStarted(self, event: QueryStartedEvent) -> None:
            self._begin(str(event.runId), event.name or str(event.id))

        def onQueryProgress(self, event: QueryProgressEvent) -> None:
            progress = event.progress
            run = str(progress.runId)
            if run in self._ended:
                return
            if run not in self._names:  # it was started before the listener was added
                self._begin(run, progress.name or str(progress.id))
            self._figures[run].take([progress])
            metrics.take(self._names[run], self._figures[run])

        def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
            run = str(event.runId)
            self._ended.append(run)
            if run in self._names:
                metrics.end(self._names.pop(run), failed=event.exception is not None)
                del self._figures[run]

        def _begin(self, run: str, name: str) -> None:
            self._names[run], self._figures[run] = name, Figures()
            metrics.status(name).is_active = True

    return MetricsListener()
