"""Settings under their former names: accepted for one version, with a warning."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.admin import options
from tidegate.renamed_settings import RENAMED
from tidegate.settings import Settings, renamed_variables


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_settings_former_name_sets_the_new_one(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = f"TIDEGATE_{old.upper()}"
    monkeypatch.setenv(variable, "4321")

    assert getattr(options.load(), new) == 4321
    assert renamed_variables() == {variable: f"TIDEGATE_{new.upper()}"}
    assert variable not in options.unknown_variables()
    assert old not in Settings.model_fields


def test_settings_new_name_wins_over_the_former_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_DRAIN_BUDGET_MS", "1000")
    monkeypatch.setenv("TIDEGATE_SHUTDOWN_TIMEOUT_MS", "2000")

    assert options.load().shutdown_timeout_ms == 2000


def test_settings_former_name_in_a_secrets_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "TIDEGATE_DRAIN_BUDGET_MS").write_text("3000\n")
    monkeypatch.setenv("TIDEGATE_SECRETS_DIR", str(tmp_path))

    assert options.load().shutdown_timeout_ms == 3000


def test_settings_former_name_assigned_on_the_command_line() -> None:
    assert options.load(assignments=["drain_budget_ms=5000"]).shutdown_timeout_ms == 5000
