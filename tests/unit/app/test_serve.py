"""`tidegate serve` without the command line: the same options, and the command line for everything else."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from typing import Any

import pytest
from typer.main import get_command

from tidegate import serve, startup
from tidegate.__main__ import main
from tidegate.command_line import command_line


def test_options_are_those_of_the_command_line() -> None:
    command: Any = get_command(command_line)
    declared = {name for one in command.commands["serve"].params for name in one.opts if one.name != "help"}

    assert {f"--{name.replace('_', '-')}" for name in serve.OPTIONS} | {"--set"} == declared


def test_parse_values_beside_or_behind_options() -> None:
    options = serve.parse(
        ["--port", "9093", "--redis-url=redis://h:1/0?a=b", "--set", "rack=a", "--set=log.level=x", "--port", "1"]
    )

    assert options == serve.ServeOptions({"port": "1", "redis_url": "redis://h:1/0?a=b"}, ["rack=a", "log.level=x"])


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["--port"], ["--nonsense", "1"], ["9092"], ["--", "--port"]])
def test_parse_leaves_help_and_mistakes_to_the_command_line(arguments: list[str]) -> None:
    assert serve.parse(arguments) is None


def test_main_serve_help_is_the_command_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tidegate", "serve", "--help"])

    with pytest.raises(SystemExit) as ended:
        main()

    assert not ended.value.code
    assert "--advertised-host" in capsys.readouterr().out


def test_main_setting_that_is_wrong_is_one_line() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "tidegate", "serve", "--port", "many"], capture_output=True, text=True, check=False
    )

    assert found.returncode == 2
    assert found.stdout == ""
    assert found.stderr.startswith("tidegate: --port=many: ")
    assert found.stderr.count("\n") == 1


def test_prepare_keeps_what_is_imported_already(monkeypatch: pytest.MonkeyPatch) -> None:
    thresholds = gc.get_threshold()
    monkeypatch.setattr(sys, "modules", {"rich": sys})
    monkeypatch.setattr(os, "environ", {})
    try:
        startup.prepare()
        assert sys.modules == {"rich": sys, "greenlet": None, "hypothesis": None, "twisted": None}
        assert os.environ == {"PYDANTIC_DISABLE_PLUGINS": "1"}
        assert gc.get_threshold() == startup.GC_THRESHOLDS
    finally:
        gc.set_threshold(*thresholds)
