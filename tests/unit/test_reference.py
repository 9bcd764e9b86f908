"""Pages that are made are up to date, and say of tests only what the tests have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from bench.clients import CLIENTS
from observability.reference import alerts
from tests.reference.__main__ import PAGES, ROOT
from tests.reference.clients import SUITES, software
from tests.reference.errors import answered
from tidegate import errors


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_are_up_to_date(path: Path) -> None:
    assert PAGES[path]() == path.read_text("utf-8"), "run `make docs`"


@pytest.mark.parametrize("client", software(), ids=lambda client: client.name)
def test_clients_are_tested_where_the_page_names_them(client) -> None:
    for suite, shown in client.suites.items():
        file, _, words = shown.partition(": ")
        assert suite in SUITES
        assert words in (ROOT / "tests" / file).read_text(), f"{client.name}, {suite}: {shown}"


def test_every_client_of_the_matrix_is_on_the_page() -> None:
    assert sum("matrix" in client.suites for client in software()) == len(CLIENTS)


def test_every_suite_is_a_target() -> None:
    makefile = (ROOT / "Makefile").read_text()

    targets = {suite.command.removeprefix("make ").replace("test SUITE=", "suite-") for suite in SUITES.values()}

    assert all(f"\n{target}:" in makefile for target in targets)
    assert len(re.findall(r"^[a-z-]+:.*## ", makefile, re.MULTILINE)) <= 20, "documented targets"


def test_simulations_are_in_a_step_of_ci() -> None:
    makefile, steps = (ROOT / "Makefile").read_text(), (ROOT / ".ci" / "run").read_text()

    [command] = re.findall(r"^suite-simulation:.*\n\t(.*)$", makefile, re.MULTILINE)
    [in_lanes] = re.findall(r'^STEPS="(.*)"$', steps, re.MULTILINE)

    assert "tests/simulation $(PYTEST_ARGS)" in command
    assert "step simulation make test SUITE=simulation " in steps
    for deselected in re.findall(r"--deselect '(.*?)'", steps):
        assert deselected in makefile, "`make test` runs it"
    assert "simulation" in in_lanes.split()


def test_errors_are_listed_where_something_answers_them() -> None:
    assert answered(errors.IllegalGeneration)
    assert answered(errors.KafkaError)
    assert not answered(errors.InconsistentTopicId)


def test_every_code_that_is_answered_is_on_the_page() -> None:
    named = {
        name
        for path in (ROOT / "broker" / "tidegate").rglob("*.py")
        for name in re.findall(r"ErrorCode\.([a-z_]+)", path.read_text("utf-8"))
        if hasattr(ErrorCode, name)
    }
    page = (ROOT / "docs" / "errors.md").read_text("utf-8")

    unlisted = {name for name in named if f"`{name.upper()}`" not in page}
    assert unlisted == {"none", "delegation_token_authorization_failed"}, "the latter is only recognised, for the audit"


def test_every_alert_has_a_runbook() -> None:
    page = (ROOT / "docs" / "operations.md").read_text().partition("\n## Runbooks\n")[2].partition("\n## ")[0]

    assert re.findall(r"^### (\w+)$", page, re.MULTILINE) == [rule["alert"] for rule in alerts()]
