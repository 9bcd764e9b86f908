"""No operation costs more than the table says, and the table says no more than it costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cost import at_rest, table
from tests.cost.access import FREQUENT
from tests.cost.counting import COLUMNS

TIMEOUT_S = 400
"""It takes seconds of CPU; a machine that does much else may be ten times slower."""


def costs(**changed: int) -> dict[str, dict[str, int]]:
    """One operation that costs 1,000 of everything but what is given."""
    return {"heartbeat": {**dict.fromkeys(COLUMNS, 1_000), **changed}}


def run(module: str) -> subprocess.CompletedProcess[str]:
    """A module in a process of its own: it replaces clocks and randomness."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEGATE_", "COV_"))}
    return subprocess.run(
        [sys.executable, "-m", module], capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, check=False
    )


@pytest.mark.timeout(TIMEOUT_S + 10)
def test_cost_operations_match_table() -> None:
    """Any seed of hashing gives the same counts."""
    done = run("tests.cost")

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(TIMEOUT_S + 10)
def test_access_control_adds_less_than_three_percent() -> None:
    done = run("tests.cost.access")

    assert done.returncode == 0, done.stderr
    added = {line.split()[0]: float(line.split()[1]) for line in done.stdout.splitlines() if line.endswith("%")}
    assert len(added) == len(FREQUENT)
    assert {name: percent for name, percent in added.items() if percent >= 3} == {}


@pytest.mark.timeout(TIMEOUT_S + 10)
def test_cost_at_rest_hardly_grows_with_what_is_idle() -> None:
    """Each is read again after minutes; sampling every group in every round took 18 commands a minute for each."""
    done = run("tests.cost.at_rest")

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    added = at_rest.MANY - at_rest.FEW
    assert (found["many_groups"] - found["few"]) / added <= 0.8, found
    assert (found["many_partitions"] - found["few"]) / added <= 1.1, found


@pytest.mark.parametrize("column", COLUMNS)
def test_problems_figure_rises_is_found(column: str) -> None:
    rise = 11 if column == "bytecodes" else 1

    found = table.problems(costs(), costs(**{column: 1_000 + rise}), table.PYTHON)

    assert found == [f"heartbeat: {column} rose from 1000 to {1_000 + rise}"]


def test_problems_bytecodes_rise_by_one_percent_is_accepted() -> None:
    assert table.problems(costs(), costs(bytecodes=1_010), table.PYTHON) == []


@pytest.mark.parametrize("column", COLUMNS)
def test_problems_figure_falls_asks_for_update(column: str) -> None:
    assert table.problems(costs(), costs(**{column: 970}), table.PYTHON) == []

    found = table.problems(costs(), costs(**{column: 969}), table.PYTHON)

    assert found == [f"heartbeat: {column} fell from 1000 to 969: bring the table down"]


def test_problems_other_python_compares_redis_only() -> None:
    measured = costs(calls=2_000, bytecodes=2_000, commands=1_001)

    found = table.problems(costs(), measured, "3.0")

    assert found == ["heartbeat: commands rose from 1000 to 1001"]


def test_problems_operation_missing_on_one_side_is_found() -> None:
    assert table.problems({}, costs(), table.PYTHON) == ["heartbeat: not in the table"]
    assert table.problems(costs(), {}, table.PYTHON) == ["heartbeat: in the table, but not measured"]


def test_text_written_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.toml"
    path.write_text(table.text(costs(calls=7)), "utf-8")
    monkeypatch.setattr(table, "PATH", path)

    assert table.read() == (table.PYTHON, costs(calls=7))
