"""Settings from options and environment, with errors of one line that name the variable."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidegate.cli import options
from tidegate.command_line import command_line
from tidegate.settings import SECRETS, Settings
from tidegate.startup import CannotStart


def test_option_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_PORT", "1111")

    assert options.load().port == 1111
    assert options.load({"port": "2222", "host": None}).port == 2222
    assert options.load({"port": None}, ["port=3333"]).port == 3333


def test_variables_may_be_files_and_the_environment_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "TIDEGATE_REDIS_URL").write_text("redis://user:hidden@host:7/0\n")
    (tmp_path / "tidegate_admin_viewer_token").write_text("0123456789abcdef")
    (tmp_path / "TIDEGATE_PORT").write_text("1111")
    (tmp_path / "TIDEGATE_ADMIN_TOKEN").write_text("?")
    (tmp_path / "..data").mkdir()
    monkeypatch.setenv("TIDEGATE_SECRETS_DIR", str(tmp_path))
    monkeypatch.setenv("TIDEGATE_PORT", "2222")

    loaded = options.load()

    assert loaded.redis_url == "redis://user:hidden@host:7/0" and loaded.port == 2222
    assert loaded.admin_viewer_token is not None
    assert loaded.admin_viewer_token.get_secret_value() == "0123456789abcdef"
    assert options.unknown_variables() == ["TIDEGATE_ADMIN_TOKEN"]


def test_missing_folder_of_secrets_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIDEGATE_SECRETS_DIR", str(tmp_path / "gone"))

    with pytest.raises(CannotStart, match=r"^TIDEGATE_SECRETS_DIR=.*gone: there is no such folder$"):
        options.load()


def test_set_takes_the_name_in_any_spelling() -> None:
    loaded = options.load(assignments=["group.max.size=7", "TIDEGATE_NUM_PARTITIONS=3", "shutdown-timeout-ms=5"])

    assert (loaded.group_max_size, loaded.num_partitions, loaded.shutdown_timeout_ms) == (7, 3, 5)


def test_bad_variable_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_PORT", "many")

    with pytest.raises(CannotStart) as raised:
        options.load()

    assert str(raised.value).startswith("TIDEGATE_PORT=many: ")
    assert "\n" not in str(raised.value)


def test_settings_broker_lease_timeout_gives_the_other_times() -> None:
    settings = options.load({"broker_lease_timeout_ms": 20_000})

    assert (settings.broker_lease_renew_ms, settings.broker_lease_suspect_ms) == (500, 1_500)


def test_bad_values_are_all_reported_by_the_name_given() -> None:
    with pytest.raises(CannotStart, match=r"^--port=99999: .*; --set group_max_size=-1: "):
        options.load({"port": "99999"}, ["group_max_size=-1"])


@pytest.mark.parametrize("assignment", ["port", "no_such_setting=1", "=1"])
def test_set_refuses_what_is_no_setting(assignment: str) -> None:
    with pytest.raises(CannotStart, match="--set"):
        options.load(assignments=[assignment])


def test_bad_redis_address_is_named() -> None:
    with pytest.raises(CannotStart, match="--redis-url: not a Redis address"):
        options.load({"redis_url": "localhost"})


def test_variables_that_name_no_setting_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_PROT", "1")
    monkeypatch.setenv("TIDEGATE_TEST_REDIS_SERVER", "/bin/true")

    assert "TIDEGATE_PROT" in options.unknown_variables()
    assert "TIDEGATE_TEST_REDIS_SERVER" not in options.unknown_variables()


def test_every_setting_has_a_unit_and_a_meaning() -> None:
    for row in options.listed():
        assert row.meaning, row.name
        assert row.unit in {"ms", "bytes", "minutes", "s", "number", "text", "choice", "true, false"}, row.name


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_settings_command_shows_no_secret(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value = "redis://u:hunter2hunter2hunter2@h:1/0" if name == "redis_url" else "hunter2hunter2hunter2"
    monkeypatch.setenv(f"TIDEGATE_{name}".upper(), value)

    shown = CliRunner().invoke(command_line, ["settings"]).stdout

    assert "hunter2" not in shown
    assert ", now redis://u:***@h:1/0" in shown if name == "redis_url" else ", now ***" in shown


def test_password_is_never_shown() -> None:
    rows = options.listed(Settings(redis_url="redis://u:secret@example:1/0"))

    assert not any("secret" in row.value for row in rows)
    assert rows[0].value == "redis://u:***@example:1/0"
