"""`tidegate serve` and `dev` without the command line: the same options, and the command line for everything else."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tidegate import serve, startup
from tidegate.__main__ import main
from tidegate.cli.dev import command as dev
from tidegate.command_line import command_line


def declared_options(name: str) -> dict[str, Any]:
    """The options that the command line has for a command, with their defaults."""
    command: Any = get_command(command_line)
    return {option: one.default for one in command.commands[name].params for option in one.opts if one.name != "help"}


def test_options_are_those_of_the_command_line() -> None:
    assert {f"--{name.replace('_', '-')}" for name in serve.OPTIONS} | {"--set"} == set(declared_options("serve"))


def test_dev_options_are_those_of_the_command_line() -> None:
    defaults = dev.DevOptions()._asdict()

    assert {f"--{name.replace('_', '-')}": value for name, value in defaults.items()} == declared_options("dev")


def test_dev_parse_every_option() -> None:
    given = "--brokers 2 --port=1 --admin-port 65535 --data d --redis-url redis://h:1/0 --redis-port 7"

    assert dev.parse(given.split()) == dev.DevOptions(2, 1, 65_535, Path("d"), "redis://h:1/0", 7)
    assert dev.parse([]) == dev.DevOptions()


@pytest.mark.parametrize("arguments", ["--help", "--port", "--port x", "--port 0", "--brokers 65", "--set a=b", "here"])
def test_dev_parse_leaves_help_and_mistakes_to_the_command_line(arguments: str) -> None:
    assert dev.parse(arguments.split()) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dev.DevOptions(redis_url="redis://h:1/0", data=Path("d")), "--redis-url uses a server that runs already"),
        (dev.DevOptions(redis_url="redis://h:1/0", redis_port=7), "--redis-url uses a server that runs already"),
        (dev.DevOptions(brokers=2, port=65_535), "2 ports do not fit from --port 65535"),
        (dev.DevOptions(brokers=2, admin_port=65_535), "2 ports do not fit from --port 9092"),
    ],
)
def test_dev_conflicting_options_are_one_line(
    options: dev.DevOptions, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        dev.main(options)

    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"tidegate: {message}")


def test_dev_data_directory_is_absolute() -> None:
    assert dev.DevOptions(brokers=1, port=65_535, data=Path("d")).checked().data == Path.cwd() / "d"


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
    assert "--advertised-listeners" in capsys.readouterr().out


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
    monkeypatch.setattr(startup, "_defer_aiohttp_client", lambda: None)
    try:
        startup.prepare()
        assert sys.modules == {"rich": sys, "greenlet": None, "hypothesis": None, "snappy": None, "twisted": None}
        assert os.environ == {"PYDANTIC_DISABLE_PLUGINS": "1"}
        assert gc.get_threshold()[0] > 500_000  # imports make 150,000 objects
    finally:
        gc.set_threshold(*thresholds)


def test_prepare_bounds_the_objects_of_a_collection() -> None:
    """The event loop stands still for each: 330 ms for a million."""
    thresholds, visited = gc.get_threshold(), []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 1:
            visited.append(len(gc.get_objects(0)) + len(gc.get_objects(1)))

    gc.collect()
    gc.callbacks.append(note)
    try:
        gc.set_threshold(*startup.GC_THRESHOLDS)
        kept = [[index] for index in range(1_200_000)]
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*thresholds)

    assert len(kept) == 1_200_000
    assert visited and max(visited) < 100_000
