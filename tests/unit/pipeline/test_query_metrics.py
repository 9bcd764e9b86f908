"""Metrics of queries as Prometheus gets them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from bench.cluster import free_port
from tests.support.scraping import Scrape
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.jobs.progress import Figures
from tidegate_pipeline.query_metrics import DECLARED, QueryMetrics, metrics_listener, serving


def report(batch: int, rows: int, behind: int = 0, lost: int = 0) -> dict[str, Any]:
    figures = {"avgOffsetsBehindLatest": behind / 2, "maxOffsetsBehindLatest": behind, "minOffsetsBehindLatest": 0}
    latest = {"orders": {"0": 9}, "_metrics": {**figures, "pipeline_lost_offsets_total": lost}}
    source = {"startOffset": None, "endOffset": {"orders": {"0": batch}}, "latestOffset": json.dumps(latest)}
    return {"batchId": batch, "runId": "r", "numInputRows": rows, "batchDuration": 250, "sources": [source]}


def values(metrics: QueryMetrics) -> dict[tuple[str, str], float]:
    """(name without the prefix, query) -> value, by HTTP."""
    port = free_port()
    with serving(metrics, f"127.0.0.1:{port}"):
        scrape = Scrape.from_url(f"http://127.0.0.1:{port}/metrics")
    return {
        (name.removeprefix("tidegate_pipeline_"), dict(labels)["query"]): value
        for (name, labels), value in scrape.samples.items()
    }


def test_query_metrics_are_the_figures_of_each_query() -> None:
    metrics, figures = QueryMetrics(), Figures()
    figures.take([report(0, 5, behind=8), report(1, 6, behind=4, lost=3)])
    metrics.take("orders", figures)
    metrics.take("lag", Figures(rows=1, observed={"values_read": 7, "values_decoded": 5}))
    metrics.end("lag", failed=True)
    metrics.end("lag", failed=True)

    found = values(metrics)
    assert found.pop(("last_micro_batch_timestamp_seconds", "orders")) > 1_600_000_000
    orders = {name: value for (name, query), value in found.items() if query == "orders"}
    assert orders == {
        "query_active": 1, "query_failures_total": 0, "rows_total": 11, "micro_batches_total": 2,
        "micro_batch_seconds_total": 0.5, "offsets_behind_latest_max": 4, "offsets_behind_latest_avg": 2,
        "offsets_behind_latest_min": 0, "lost_offsets_total": 3, "dead_letters_total": 0,
    }  # fmt: skip
    lag = {name: value for (name, query), value in found.items() if query == "lag"}
    assert (lag["query_active"], lag["query_failures_total"], lag["dead_letters_total"]) == (0, 1, 2)
    assert "offsets_behind_latest_max" not in lag
    assert {name for name, _ in found} < {one.exposed.removeprefix("tidegate_pipeline_") for one in DECLARED}


class Progress(dict[str, Any]):
    """As Spark's, a report that is a mapping too."""

    def __init__(self, run: str, report: dict[str, Any]) -> None:
        super().__init__(report)
        self.runId, self.id, self.name = run, "i", "orders"


def test_listener_follows_restarts_of_a_query() -> None:
    metrics = QueryMetrics()
    listener: Any = metrics_listener(metrics)
    for run, exception in (("first", "gone"), ("second", None)):
        listener.onQueryStarted(SimpleNamespace(runId=run, id="i", name="orders"))
        listener.onQueryProgress(SimpleNamespace(progress=Progress(run, report(3, 5, behind=2))))
        assert metrics.status("orders").is_active
        listener.onQueryTerminated(SimpleNamespace(runId=run, exception=exception))
    listener.onQueryProgress(SimpleNamespace(progress=Progress(run, report(4, 5))))

    found = values(metrics)
    assert (found["query_failures_total", "orders"], found["query_active", "orders"]) == (1, 0)
    assert (found["rows_total", "orders"], found["offsets_behind_latest_max", "orders"]) == (5, 2)


def test_listener_added_late_has_the_queries_that_run() -> None:
    metrics = QueryMetrics()
    listener: Any = metrics_listener(metrics)
    listener.onQueryProgress(SimpleNamespace(progress=Progress("first", report(3, 5, behind=2))))
    assert metrics.status("orders").is_active
    listener.onQueryTerminated(SimpleNamespace(runId="first", exception="gone"))

    found = values(metrics)
    assert (found["rows_total", "orders"], found["query_failures_total", "orders"]) == (5, 1)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:http", "127.0.0.1:99999", "no.such.host.invalid:1"])
def test_address_that_cannot_be_served_is_named(address: str) -> None:
    with pytest.raises(UsageError, match=r"metrics\.address"), serving(QueryMetrics(), address):
        pass
