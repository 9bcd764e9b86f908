"""Each rule of the checker finds a bug that is planted in the product, and finds nothing in the product as it is."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Final

import pytest

from tests.kit.checker import Rule
from tests.simulation.rule_bugs import RULE_BUGS

TIMEOUT_S: Final = 200
"""They take two seconds of CPU; a machine that does much else may be many times slower."""
_IN_SCRIPTS: Final = [rule.name for rule, planted in RULE_BUGS.items() if planted.bug.script]
_CASES: Final = {
    "scripts": _IN_SCRIPTS,
    **{rule.name: [rule.name] for rule in RULE_BUGS if rule.name not in _IN_SCRIPTS},
}

pytestmark = pytest.mark.timeout(TIMEOUT_S + 10)


def converse(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, in a process of its own: a bug is planted before anything of the product is imported."""
    command = [sys.executable, "-m", "tests.simulation.converse", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_every_rule_has_a_planted_bug() -> None:
    assert RULE_BUGS.keys() == set(Rule)


@pytest.mark.parametrize("rules", _CASES.values(), ids=_CASES)
def test_planted_bug_is_found_by_its_rule(rules: list[str]) -> None:
    run = converse(*rules)

    assert run.stdout.endswith("not found:\n"), run.stdout + run.stderr


@pytest.mark.parametrize("seed", [1, random.SystemRandom().randrange(1_000, 1_000_000)], ids=["fixed", "random"])
def test_conversations_without_a_bug_break_no_rule(seed: int) -> None:
    run = converse("--seed", str(seed))

    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("rule", RULE_BUGS, ids=[rule.name for rule in RULE_BUGS])
def test_planted_bugs_of_rules_fit_the_product(rule: Rule) -> None:
    assert RULE_BUGS[rule].bug.source_with_bug() != ""
