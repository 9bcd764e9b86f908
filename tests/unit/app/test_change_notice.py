"""Commands that change something name their cluster, and ask where somebody can answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
import typer

from tidegate.cli import change_notice
from tidegate.cli.change_notice import OtherCluster, confirm_change, require_same_cluster
from tidegate.cli.failures import BAD_NEWS, CommandFailed
from tidegate.cli.places import AdminHttp, Brokers
from tidegate.command_line import command_line

NOTICE = "tidegate: cluster c at b:1, about to change: broker 2 drains and ends\n"
CHANGE_NOTHING: Final = {
    "audit", "doctor", "tail", "top", "version", "settings", "reference",
    "group list", "group show", "group members", "group lag", "group history", "group explain",
    "topic list", "topic describe", "txn list", "txn describe", "txn find-hanging",
    "broker list", "user list", "acl list", "acl explain", "quota list", "backup create", "backup verify",
    "redis check", "redis memory", "redis keys", "redis log", "redis acl",
    "redis run",  # as redis-cli: it sends what was typed
    "dev", "serve", "pipeline",  # they run programs
}  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Questions that somebody at a terminal was asked, and answered with no."""
    questions: list[str] = []

    def confirm(question: str, err: bool) -> bool:
        questions.append(question)
        return False

    monkeypatch.setattr(change_notice.typer, "confirm", confirm)
    return questions


def at_terminal(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal, raising=False)


def test_confirm_change_on_a_terminal_asks(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at_terminal(monkeypatch, True)

    with pytest.raises(typer.Exit) as exit_:
        confirm_change("cluster c at b:1", "broker 2 drains and ends", yes=False)

    assert exit_.value.exit_code == BAD_NEWS and len(asked) == 1
    assert capsys.readouterr().err == NOTICE + "nothing changed\n"


@pytest.mark.parametrize(("terminal", "yes"), [(True, True), (False, False)])
def test_confirm_change_with_yes_or_no_terminal_continues(
    terminal: bool, yes: bool, asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at_terminal(monkeypatch, terminal)

    confirm_change("cluster c at b:1", "broker 2 drains and ends", yes)

    assert not asked and capsys.readouterr().err == NOTICE


def test_confirm_change_what_loses_data_asks_without_a_terminal_too(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_terminal(monkeypatch, False)

    with pytest.raises(typer.Exit):
        confirm_change("cluster c at b:1", "topic t is deleted", yes=False, always=True)
    assert asked


def test_require_same_cluster_refuses_a_named_admin_http_and_leaves_out_a_found_one() -> None:
    brokers = Brokers("b:1")
    require_same_cluster(brokers, "c", AdminHttp("a:1"), "c")

    with pytest.raises(OtherCluster, match="b:1 is of cluster c, and the admin HTTP at a:1 of cluster d"):
        require_same_cluster(brokers, "c", AdminHttp("a:1"), "d")
    with pytest.raises(CommandFailed) as failure:
        require_same_cluster(brokers, "c", AdminHttp("a:1", given=False), "d")
    assert not isinstance(failure.value, OtherCluster)


def test_every_command_that_changes_something_can_be_confirmed() -> None:
    """A new command either is named in CHANGE_NOTHING, or has `--yes`, and calls `confirm_change`."""
    commands = dict(_commands(typer.main.get_command(command_line)))
    without = {name for name, command in commands.items() if not any("--yes" in one.opts for one in command.params)}
    assert without == CHANGE_NOTHING


def _commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield name, command
        return
    for word, inner in command.commands.items():
        yield from _commands(inner, f"{name} {word}".strip())
