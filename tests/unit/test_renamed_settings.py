"""Settings under their former names: accepted for one version, with a warning."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tidegate.cli import options
from tidegate.renamed_settings import REMOVED, RENAMED, REPLACED
from tidegate.settings import Settings, removed_variables, renamed_variables, warn_of_former_settings
from tidegate.startup import CannotStart


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_settings_former_name_sets_the_new_one(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = f"TIDEGATE_{old.upper()}"
    monkeypatch.setenv(variable, "4321")

    assert str(getattr(options.load(), new)) == "4321"
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


@pytest.mark.parametrize("name", sorted(REMOVED))
def test_settings_removed_one_is_reported_and_has_no_effect(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = f"TIDEGATE_{name.upper()}"
    monkeypatch.setenv(variable, "anything")

    assert options.load() == Settings()
    assert removed_variables() == [variable]
    assert variable not in options.unknown_variables()
    assert name not in Settings.model_fields


def test_settings_removed_one_in_a_secrets_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "TIDEGATE_REDIS_IN_FLIGHT_MAX").write_text("10\n")
    monkeypatch.setenv("TIDEGATE_SECRETS_DIR", str(tmp_path))

    assert removed_variables() == ["TIDEGATE_REDIS_IN_FLIGHT_MAX"]


def test_settings_former_ones_are_warned_of_in_one_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_REDIS_IN_FLIGHT_MAX", "10")
    monkeypatch.setenv("TIDEGATE_DRAIN_BUDGET_MS", "1000")

    with capture_logs() as lines:
        warn_of_former_settings()

    assert [(line["log_level"], line["event"], line["variable"]) for line in lines] == [
        ("warning", "setting_renamed", "TIDEGATE_DRAIN_BUDGET_MS"),
        ("warning", "setting_without_effect", "TIDEGATE_REDIS_IN_FLIGHT_MAX"),
    ]


def test_settings_removed_one_assigned_on_the_command_line_is_refused() -> None:
    with pytest.raises(CannotStart, match="--set redis_in_flight_max=10: this setting was removed"):
        options.load(assignments=["redis_in_flight_max=10"])


@pytest.mark.parametrize(("name", "instead"), REPLACED.items())
def test_settings_replaced_one_prevents_the_start(
    name: str, instead: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    variable = f"TIDEGATE_{name.upper()}"
    with pytest.raises(CannotStart, match=f"--set {name}=x: this setting was removed; set {instead}"):
        options.load(assignments=[f"{name}=x"])
    (tmp_path / variable).write_text("x\n")

    with monkeypatch.context() as given:
        given.setenv("TIDEGATE_SECRETS_DIR", str(tmp_path))
        with pytest.raises(CannotStart, match=f"^{variable} was removed: set {instead}"):
            options.load()
    monkeypatch.setenv(variable, "x")
    with pytest.raises(CannotStart, match=f"^{variable} was removed: set {instead}"):
        options.load()

    assert name not in Settings.model_fields
