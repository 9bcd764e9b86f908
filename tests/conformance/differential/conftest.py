"""One run for all tests of the session: the chosen conversations side by side, then a test reports on each.

TIDEGATE_TEST_CONVERSATIONS         how many random conversations (60)
TIDEGATE_TEST_CONVERSATION_SEED     the first one's seed (1); the others count on from it
TIDEGATE_TEST_CONVERSATION_REPORT   a file for the report as JSON
TIDEGATE_TEST_KAFKA                 the version of the peer (4.4.0); 4.1.0 shows what has changed since
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.conformance.differential import scripted
from tests.conformance.differential.catalogue import CATALOGUE
from tests.conformance.differential.report import Outcome, Report

FIRST_SEED: Final = "TIDEGATE_TEST_CONVERSATION_SEED"
_COUNT: Final = "TIDEGATE_TEST_CONVERSATIONS"
_FILE: Final = "TIDEGATE_TEST_CONVERSATION_REPORT"
_SHOWN_LINES: Final = 40

_runs: list[Run] = []


def scripted_names() -> list[str]:
    """Every conversation by hand."""
    for found in pkgutil.iter_modules(scripted.__path__):
        importlib.import_module(f"{scripted.__name__}.{found.name}")
    return list(CATALOGUE)


def seeds() -> range:
    """The seeds of this run."""
    first = int(os.environ.get(FIRST_SEED, "1"))
    return range(first, first + int(os.environ.get(_COUNT, "60")))


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run."""

    report: Report
    is_complete: bool
    """Every conversation by hand was held."""

    def check(self, name: str, hint: str = "") -> None:
        """Fail with the end of the conversation where it differed."""
        outcome = next(outcome for outcome in self.report.outcomes if outcome.name == name)
        if outcome.found or outcome.error:
            pytest.fail(_reported(outcome, hint), pytrace=False)


def _reported(outcome: Outcome, hint: str) -> str:
    differences = [f"DIFFERENT {difference}" for difference in outcome.found]
    return "\n".join([*outcome.transcript[-_SHOWN_LINES:], outcome.error, *differences, hint])


@pytest.fixture(scope="session")
def run(request: pytest.FixtureRequest) -> Run:
    """Hold what was collected; skips all, with the reason, where Kafka cannot be had."""
    from tests.conformance.differential import runner

    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    names = {one["name"] for one in parameters if "name" in one}
    chosen = [one for one in CATALOGUE.values() if one.name in names]
    report = runner.run(chosen, [one["seed"] for one in parameters if "seed" in one])
    finished = Run(report, len(chosen) == len(CATALOGUE))
    _runs.append(finished)
    if os.environ.get(_FILE):
        Path(os.environ[_FILE]).write_text(json.dumps(report.data(), indent=2))
    if report.skipped:
        pytest.skip(report.skipped)
    return finished


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The report, after everything else."""
    for finished in _runs:
        terminalreporter.section("Tidegate and Apache Kafka")
        for line in finished.report.lines(finished.is_complete):
            terminalreporter.write_line(line)
