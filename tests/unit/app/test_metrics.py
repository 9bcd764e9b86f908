"""Metrics: declared once, recorded as plain integers, exposed as Prometheus takes them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry

from tidegate import sampled_metrics
from tidegate.http.health import Health
from tidegate.store.redis_clock import RedisClock
from tidegate.telemetry import declared_cluster, declared_foreign
from tidegate.telemetry.declared import BROKER, LINK_UP
from tidegate.telemetry.metrics import Metrics, error_name


def exposed(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_requests_are_counted_by_api_with_their_latency() -> None:
    metrics = Metrics()
    for seconds in (0.000_05, 0.003, 0.003, 99.0):
        metrics.apis[12].version(4).observe(seconds)
    metrics.apis[12].version(3).observe(0.003)

    samples = exposed(metrics)

    api = ("api", "heartbeat")
    assert samples["tidegate_request_seconds_count", (api,)] == 5
    assert samples["tidegate_request_seconds_sum", (api,)] == pytest.approx(99.009_05)
    assert samples["tidegate_request_seconds_bucket", (api, ("le", "0.0001"))] == 1
    assert samples["tidegate_request_seconds_bucket", (api, ("le", "0.005"))] == 4
    assert samples["tidegate_request_seconds_bucket", (api, ("le", "+Inf"))] == 5
    assert samples["tidegate_requests_total", (api, ("version", "4"))] == 4
    assert samples["tidegate_requests_total", (api, ("version", "3"))] == 1


def test_errors_are_counted_by_kafkas_name() -> None:
    metrics = Metrics()
    metrics.apis[11].error(25)
    metrics.apis[11].error(25)

    samples = exposed(metrics)

    assert samples["tidegate_request_errors_total", (("api", "join_group"), ("error", "unknown_member_id"))] == 2


def test_server_errors_of_each_api_are_exposed_before_the_first_one() -> None:
    metrics = Metrics()
    name = "tidegate_request_errors_total"

    before = exposed(metrics)
    metrics.apis[12].error(-1)
    after = exposed(metrics)

    errors = [labels for metric, labels in before if metric == name]
    assert len(errors) == len(metrics.apis)
    assert {before[name, labels] for labels in errors} == {0}
    assert after[name, (("api", "heartbeat"), ("error", "unknown_server_error"))] == 1


def test_unknown_code_does_not_make_a_label() -> None:
    assert error_name(31_000) == "other"


def test_samples_are_asked_for_at_each_scrape() -> None:
    metrics = Metrics()
    up = {"value": 1.0}
    metrics.sample(LINK_UP, lambda: {("control",): up["value"]})

    assert exposed(metrics)["tidegate_redis_link_up", (("link", "control"),)] == 1
    up["value"] = 0.0
    assert exposed(metrics)["tidegate_redis_link_up", (("link", "control"),)] == 0


@pytest.mark.parametrize("ahead_ms", [None, 7_250, -7_250])
def test_clock_difference_is_exposed_in_seconds(ahead_ms: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, clock = Metrics(), RedisClock()
    store: Any = SimpleNamespace(clock=clock, lanes=dict, loaded_scripts=SimpleNamespace(are_functions=True))
    lease: Any = SimpleNamespace(live=list)
    lag: Any = SimpleNamespace(worst_s=0.0, longest_s=0.0)
    monkeypatch.setattr(sampled_metrics, "metrics", metrics)
    sampled_metrics.sample_broker(store, lease, Health(lambda: True, lambda: True), lag, None)
    clock.difference_ms = ahead_ms

    assert exposed(metrics)["tidegate_clock_difference_seconds", ()] == (ahead_ms or 0) / 1000


def test_every_metric_is_declared_once_and_named_for_tidegate() -> None:
    own = [one.name for one in (*BROKER, *declared_cluster.CLUSTER)]
    foreign = [one.name for one in (*declared_foreign.KAFKA_EXPORTER, *declared_foreign.KMINION)]

    assert len(set(own + foreign)) == len(own + foreign)
    assert all(name.startswith("tidegate_") for name in own)
    assert all(name.startswith(("kafka_", "kminion_")) for name in foreign)
