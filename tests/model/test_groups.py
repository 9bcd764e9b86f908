"""Random lives of a group: thousands of steps, and the promises hold after each."""

from __future__ import annotations

import os

import pytest

from tests.model.machine import Groups
from tests.model.network import Server
from tests.support import clock as stepped
from tests.support.machines import run_machine
from tests.support.valkey import ValkeyServer

LIVES = int(os.environ.get("TIDEGATE_LIVES", "250"))
LIVES_AT_ONCE = 1_000
"""Each thousand has a seed of its own: Hypothesis remembers all that it tried with one."""
STEPS_MAX = 40


@pytest.mark.timeout(60 + 2 * LIVES)
def test_promises_hold_in_random_lives(valkey: ValkeyServer) -> None:
    stepped.install()
    Groups.server, Groups.steps = Server(valkey.port), 0
    try:
        for done in range(0, LIVES, LIVES_AT_ONCE):
            run_machine(Groups, min(LIVES - done, LIVES_AT_ONCE), STEPS_MAX)
    finally:
        Groups.server.close()
        stepped.uninstall()
    print(f"{LIVES} lives, {Groups.steps} steps")
