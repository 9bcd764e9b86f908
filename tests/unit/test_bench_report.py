"""Figures become a table whose ratios say what they seem to say."""

from __future__ import annotations

import os
from typing import Any

from bench import measures, report, suite
from bench.processes import Meter, cpu_seconds, is_redis, percentiles, wait_quiet


def row(peer: str, **figures: Any) -> dict[str, Any]:
    return {"peer": peer, "title": "heartbeats", "measure": "heartbeats", "round": 0, **figures}


def test_report_line_contains_medians_and_their_ratio() -> None:
    rows = [row("tidegate", ops_per_s=rate) for rate in (90.0, 100.0, 900.0)] + [row("kafka", ops_per_s=50.0)]

    assert "| heartbeats | per s | 100 | 50 | 2.00 | higher is better |" in report.table(rows)


def test_failed_measure_is_shown_as_failed() -> None:
    rows = [row("tidegate", error="MeasureFailed: refused | badly"), row("kafka", ops_per_s=50.0)]

    table = report.table(rows)

    assert "| heartbeats | failed | tidegate: MeasureFailed: refused / badly | | | |" in table
    assert "| heartbeats | per s |  | 50 |  | higher is better |" in table


def test_report_without_a_peer_names_that() -> None:
    page = report.page([row("tidegate", ops_per_s=1.0, load=[0.5, 1.5])], brokers=1, aof=False)

    assert "Apache Kafka was not measured" in page
    assert "Load average 0.5-1.5" in page
    assert "not quiet" not in page


def test_page_warns_of_neighbours() -> None:
    page = report.page([row("tidegate", ops_per_s=1.0, load=[0.5, 1.5], other_cores=0.9)], brokers=1, aof=False)

    assert "The machine was not quiet" in page


def test_every_measure_has_figures_in_the_report() -> None:
    assert set(report.FIGURES) == set(measures.MEASURES)


def test_every_step_of_the_suite_is_a_measure_with_options_that_parse() -> None:
    for _, command in suite.STEPS:
        name, args = suite.parse(command, quick=False)
        assert name in measures.MEASURES
        assert args.run_id


def test_quick_shrinks_numbers_but_leaves_groups_of_at_least_two() -> None:
    _, args = suite.parse("groups --groups 200 --members 5 --seconds 3", quick=True)

    assert (args.groups, args.members, args.seconds) == (20, 2, 0.75)


def test_percentiles_are_of_the_sorted_values() -> None:
    assert percentiles([0.003, 0.001, 0.002]) == {"p50_ms": 2.0, "p99_ms": 3.0, "max_ms": 3.0}
    assert percentiles([]) == {}


def test_meter_charges_the_processes_it_was_given() -> None:
    meter = Meter([os.getpid()])
    meter.start()
    while cpu_seconds(os.getpid()) - meter._first.brokers < 0.05:
        sum(range(10_000))
    meter.stop()

    figures = meter.figures(10)

    assert figures["broker_cpu_us_per_op"] >= 5_000
    assert figures["cpu_us_per_op"] == figures["broker_cpu_us_per_op"]
    assert not is_redis(os.getpid())


def test_report_ended_process_costs_nothing() -> None:
    assert cpu_seconds(2**22 + 1) == 0.0


def test_report_waits_for_neighbours_on_request_only() -> None:
    assert not wait_quiet(0.0)
    assert wait_quiet(1.0, cores=1e9, window_s=0.01)
