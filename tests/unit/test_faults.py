"""Which faults a run may draw: steps of clocks with and without libfaketime, and stops above every time-out."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.chaos.runs import Plan
from tests.kit import cluster
from tests.kit.cluster import REPLICATED_SETTINGS, FaultyCluster
from tests.kit.faults import Faults, LongStop, long_stop

STEPS = {"broker's clock stepped", "redis's clock stepped"}


@pytest.mark.parametrize(
    ("library", "replicated", "steps"),
    [("lib.so", False, STEPS), (None, False, {"broker's clock stepped"}), ("lib.so", True, {"broker's clock stepped"})],
)
def test_faults_steps_of_brokers_need_no_library(
    library: str | None, replicated: bool, steps: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "faketime", lambda: library)

    faults = Faults(FaultyCluster(replicated, stepped_clocks=True), random.Random(1))

    assert faults.kinds & STEPS == steps


def test_plan_has_stepped_clocks_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "faketime", lambda: None)

    assert any(Plan.of(seed, 30).stepped_clocks for seed in range(20))


def drawn(seconds: float) -> list[LongStop]:
    return [one for seed in range(200) if (one := long_stop(random.Random(seed), seconds)) is not None]


@pytest.mark.parametrize(
    ("seconds", "kinds"),
    [(10, set()), (30, {"broker stopped for long"}), (60, {"broker stopped for long", "redis stopped for long"})],
)
def test_long_stop_ends_within_its_run(seconds: float, kinds: set[str]) -> None:
    assert Counter(one.kind for one in drawn(seconds)).keys() == kinds
    assert all(one.after_s + one.for_s <= seconds for one in drawn(seconds))


def test_long_stop_is_longer_than_every_time_out() -> None:
    longest_s = int(REPLICATED_SETTINGS["TIDEGATE_DURABILITY_TIMEOUT_MS"]) / 1000

    assert all(one.for_s > longest_s for one in drawn(60))
