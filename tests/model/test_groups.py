"""Random lives of a group: thousands of steps, and the promises hold after each."""

from __future__ import annotations

import os

import pytest

from tests.model.machine import Groups
from tests.model.network import Server
from tests.support import clock as stepped
from tests.support.machines import run_machine
from tests.support.valkey import ValkeyServer

RUNS = int(os.environ.get("TIDEGATE_LIVES", "125"))
RUNS_AT_ONCE = 1_000
"""Each thousand has a seed of its own: Hypothesis remembers all that it tried with one."""
STEPS_MAX = 40


@pytest.mark.timeout(60 + 2 * RUNS)
def test_promises_are_true_in_random_runs(valkey: ValkeyServer) -> None:
    stepped.install()
    Groups.server, Groups.steps, Groups.answered_count = Server(valkey.port), 0, 0
    try:
        for done in range(0, RUNS, RUNS_AT_ONCE):
            run_machine(Groups, min(RUNS - done, RUNS_AT_ONCE), STEPS_MAX)
    finally:
        Groups.server.close()
        stepped.uninstall()
    print(f"{RUNS} lives, {Groups.steps} steps, {Groups.answered_count} heartbeats answered from snapshots")
    assert Groups.answered_count > RUNS
