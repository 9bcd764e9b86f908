"""Short simulations, and proof that they would see what they look for. `make simulate` runs them for long."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys

import pytest

from tests.simulation.planted_bugs import PLANTED_BUGS

TIMEOUT_S = 400
"""They take seconds of CPU; a machine that does much else may be ten times slower."""

_STREAMS_AND_SHARES = (
    "--groups", "1", "--partitions", "0", "--streams-groups", "4", "--share-groups", "2", "--hours", "0.1"
)  # fmt: skip
_CLASSIC = ("--groups", "60", "--hours", "0.2", "--partitions", "0", "--seed")
_LOGS = ("--groups", "3", "--hours", "0.1", "--seed", "3")
_EPOCHS = ("--groups", "1", "--partitions", "0", "--epoch-groups", "12", "--hours", "0.15", "--seed", "1")
_STREAMS = ("--groups", "1", "--partitions", "0", "--streams-groups", "12", "--hours", "0.15", "--seed", "1")
_SHARES = ("--groups", "1", "--partitions", "0", "--share-groups", "4", "--hours", "0.15", "--seed")
FOUND = {
    "commit-without-membership-check": ("P3", *_CLASSIC, "1"),
    "generation-not-raised": ("P2", *_CLASSIC, "3"),
    "delay-outlasts-rebalance": ("P6", *_CLASSIC, "3"),
    "wait-only-for-messages": ("P6", *_CLASSIC, "3"),
    "consumer-partition-before-release": ("P7", *_EPOCHS),
    "consumer-commit-of-a-former-member": ("P3", *_EPOCHS),
    "consumer-sessions-not-renewed": ("P5", *_EPOCHS),
    "consumer-waits-for-ever": ("P6", *_EPOCHS),
    "streams-task-before-release": ("P7", *_STREAMS),
    "share-log-not-followed": ("P7", *_SHARES, "5"),
    "share-acknowledged-by-anybody": ("P3", *_SHARES, "2"),
    "share-keys-not-chained": ("P7", *_SHARES, "1"),
    "share-next-of-key-forgotten": ("P8", *_SHARES, "1"),
    "unknown-append-acknowledged": ("P4", *_LOGS),
    "stored-sequences-ignored": ("P4", *_LOGS),
}
"""Planted bug -> the promise that it breaks, and the run in which that is found."""
_NO_OTHER_GROUPS = ("--epoch-groups", "0", "--streams-groups", "0", "--share-groups", "0")

pytestmark = pytest.mark.timeout(TIMEOUT_S + 10)


def simulate(*options: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    """The command, in a process of its own: it replaces clocks and randomness."""
    command = [sys.executable, "-m", "tests.simulation", *_NO_OTHER_GROUPS, *options]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, check=False)


def counted(run: subprocess.CompletedProcess[str], row: str) -> float:
    """A number of the table that a run ends with."""
    found = re.search(rf"^{re.escape(row)} +([\d.]+)$", run.stdout, re.MULTILINE)
    assert found is not None, run.stdout + run.stderr
    return float(found.group(1))


@pytest.mark.parametrize("seed", [11, random.SystemRandom().randrange(1_000, 1_000_000)], ids=["fixed", "random"])
def test_simulation_checks_every_promise(seed: int) -> None:
    run = simulate("--seed", str(seed), "--groups", "40", "--hours", "0.1")

    assert run.returncode == 0, run.stdout + run.stderr
    assert counted(run, "promises broken") == 0
    assert counted(run, "group-hours simulated") > 3.9
    assert counted(run, "rebalances") > 50
    assert counted(run, "partition-hours simulated") > 2.3
    assert counted(run, "records acknowledged") > 2_000
    assert counted(run, "logs evicted from memory") > 100
    assert counted(run, "records read") >= 2 * counted(run, "records acknowledged")
    assert counted(run, "seconds that heartbeats were held") > 3_600
    for reason, least in {"ended": 1_000, "request": 100, "rebalance": 20, "closed": 1}.items():
        assert counted(run, f"heartbeats held until: {reason}") >= least, run.stdout


def test_two_runs_of_a_seed_are_the_same_run() -> None:
    options = ("--seed", "4", "--groups", "10", "--partitions", "12", "--hours", "0.05")

    first, second = simulate(*options, hash_seed="1"), simulate(*options, hash_seed="2")

    traces = [re.findall(r"trace (\w+)", run.stdout) for run in (first, second)]
    assert traces[0] and traces[0] == traces[1], first.stdout + second.stdout
    assert counted(first, "faults") > 0


def test_another_seed_is_another_run() -> None:
    options = ("--groups", "3", "--partitions", "4", "--hours", "0.02")

    traces = {tuple(re.findall(r"trace (\w+)", simulate("--seed", seed, *options).stdout)) for seed in ("1", "2")}

    assert len(traces) == 2


@pytest.mark.parametrize("bug", PLANTED_BUGS)
def test_planted_bug_is_found(bug: str) -> None:
    promise, *options = FOUND[bug]

    run = simulate("--plant", bug, *options)

    assert run.returncode == 1, run.stdout + run.stderr
    assert f"\n{promise} broken at " in run.stdout
    assert f"--plant {bug}" in run.stdout


def test_simulation_of_kip_848_groups_checks_every_promise() -> None:
    run = simulate("--seed", "1", "--groups", "1", "--partitions", "0", "--epoch-groups", "12", "--hours", "0.15")

    assert run.returncode == 0, run.stdout + run.stderr
    assert counted(run, "promises broken") == 0
    assert counted(run, "KIP-848 members removed") > 20
    assert counted(run, "KIP-848 assignments") > 100
    assert counted(run, "KIP-848 commits") > 2_000


def test_simulation_of_streams_and_share_groups_checks_every_promise() -> None:
    run = simulate("--seed", "3", *_STREAMS_AND_SHARES)

    assert run.returncode == 0, run.stdout + run.stderr
    assert counted(run, "promises broken") == 0
    assert counted(run, "streams assignments") > 30
    assert counted(run, "streams commits") > 500
    assert counted(run, "share acceptances acknowledged") > 300
    assert counted(run, "share deliveries again") > 50


@pytest.mark.parametrize("bug", PLANTED_BUGS)
def test_planted_bugs_fit_the_product(bug: str) -> None:
    assert PLANTED_BUGS[bug].source_with_bug() != ""
