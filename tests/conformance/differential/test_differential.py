"""Tidegate and Apache Kafka 4.4 answer alike, but for what docs/differences.md lists."""

from __future__ import annotations

import pytest

from tests.conformance.differential.allowed import RULES
from tests.conformance.differential.conftest import FIRST_SEED, Run, scripted_names, seeds

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1_800)]


@pytest.mark.parametrize("name", scripted_names())
def test_conversation_by_hand(run: Run, name: str) -> None:
    run.check(name)


@pytest.mark.parametrize("seed", seeds())
def test_random_conversation(run: Run, seed: int) -> None:
    run.check(f"random-{seed}", hint=f"again: {FIRST_SEED}={seed} TIDEGATE_TEST_CONVERSATIONS=1")


@pytest.mark.parametrize("key", [rule.key for rule in RULES])
def test_allowed_difference_shows(run: Run, key: str) -> None:
    if not run.is_complete:
        pytest.skip("not every conversation by hand was chosen")
    assert run.report.allowed[key] > 0, "it does not occur any more: take it out of the table"
