"""Curves of the bench: tables, plots, and that each command is one that the bench can parse."""

from __future__ import annotations

import pytest

from bench import at_rest, curves, measures, suite

ROWS = [("10", {"ops_per_s": 1_000.0, "cpu_us_per_op": 20.5}), ("100", {"ops_per_s": 900.0, "cpu_us_per_op": 30.0})]


def test_table_has_a_row_a_point_and_the_reason_of_a_failure() -> None:
    rows = [*ROWS, ("1,000", {"error": "a | b"})]

    assert curves.table("members", rows, (("ops_per_s", "per s"), ("cpu_us_per_op", "CPU µs"))).splitlines() == [
        "| members | per s | CPU µs |",
        "|---|---|---|",
        "| 10 | 1,000 | 20.5 |",
        "| 100 | 900 | 30 |",
        "| 1,000 | failed: a / b |  |",
    ]


def test_plot_has_the_points_that_were_measured() -> None:
    plotted = curves.plot("Members", "members", [*ROWS, ("1,000", {"error": "none"})], ("cpu_us_per_op", "CPU µs"))

    assert 'x-axis "members" ["10", "100"]' in plotted and "line [20.5, 30]" in plotted
    assert 'y-axis "CPU µs" 0 --> 33' in plotted
    assert curves.plot("Members", "members", ROWS[:1], ("cpu_us_per_op", "CPU µs")) == ""


@pytest.mark.parametrize("name", curves.CURVES)
def test_commands_of_curves_are_measures(name: str) -> None:
    for x in curves.CURVES[name].points:
        command = curves.CURVES[name].command.format(x=x)
        if command.startswith("at-rest"):
            options = at_rest.parse(command)
            assert x in (options.partitions, options.groups, options.transactional_ids)
        else:
            assert suite.parse(f"{command} --seconds 1", quick=False)[0] in measures.MEASURES


def test_commands_of_brokers_are_measures() -> None:
    assert {suite.parse(f"{command} --seconds 1", quick=False)[0] for _, command, _ in curves.SCALED} == {
        "heartbeats", "commits", "batches", "consume",
    }  # fmt: skip
