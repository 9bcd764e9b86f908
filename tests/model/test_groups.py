"""Random lives of a group: thousands of steps, and the promises hold after each."""

from __future__ import annotations

import os

import pytest

from tests.model.machine import Groups
from tests.model.network import Server
from tests.support import clock as stepped
from tests.support.machines import run_machine
from tests.support.valkey import ValkeyServer

LIVES = int(os.environ.get("TIDEGATE_LIVES", "200"))
STEPS_MAX = 40


@pytest.mark.timeout(60 + 2 * LIVES)
def test_promises_hold_in_random_lives(valkey: ValkeyServer) -> None:
    stepped.install()
    Groups.server, Groups.steps = Server(valkey.port), 0
    try:
        run_machine(Groups, LIVES, STEPS_MAX)
    finally:
        Groups.server.close()
        stepped.uninstall()
    print(f"{LIVES} lives, {Groups.steps} steps")
