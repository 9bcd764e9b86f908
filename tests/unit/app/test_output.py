"""What commands print of names that clients chose."""

from __future__ import annotations

import io
import json
from collections.abc import Coroutine
from typing import Any

import pytest
import structlog
import yaml

from tidegate.cli.change_notice import confirm_change
from tidegate.cli.client.decoding import Decode
from tidegate.cli.client.redis_command import Failure, Reply, Status, shown
from tidegate.cli.client.tail_reading import Found
from tidegate.cli.commands import completion
from tidegate.cli.commands.redis import _part
from tidegate.cli.commands.tail import Printer
from tidegate.cli.failures import CommandFailed, reporting
from tidegate.cli.output import Column, Form, write_findings, write_pairs, write_rows
from tidegate.records.record import Record
from tidegate.telemetry.logs import configure
from tidegate.telemetry.visible import CONTROLS

NASTY = "a\x1b[2J\x9b31m\rb"
SHOWN = r"a\x1b[2J\x9b31m\rb"


def test_names_cannot_move_the_readers_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(Form.TABLE, [Column("group", "GROUP")], [{"group": NASTY}])
    write_pairs([("group", NASTY)])
    write_findings(NASTY, [{"severity": "note", "sentence": NASTY, "evidence": [NASTY], "advice": NASTY}])
    printed = capsys.readouterr().out

    assert printed.count(SHOWN) == 6 and "\x1b" not in printed and "\x9b" not in printed


@pytest.mark.parametrize("value", [NASTY, {"group": NASTY}])
def test_redis_key_control_characters_are_escaped(value: object) -> None:
    assert not CONTROLS.search(_part(value))


@pytest.mark.parametrize("reply", [Status(NASTY), Failure(NASTY), [Status(NASTY)], NASTY.encode()])
def test_redis_reply_control_characters_are_escaped(reply: Reply) -> None:
    assert not CONTROLS.search(shown(reply))


def test_completion_names_with_control_characters_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def names(asking: Coroutine[Any, Any, list[str]]) -> list[str]:
        asking.close()
        return [NASTY, "ab"]

    monkeypatch.setattr(completion.asyncio, "run", names)
    assert completion.complete_groups("a") == ["ab"]


def test_machines_get_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(Form.CSV, [Column("group", "GROUP")], [{"group": "a\x1bb"}])

    assert "a\x1bb" in capsys.readouterr().out


HOSTILE = "web\x1b[2J\n9999  forged\x9b1A\u202e"
HOSTILE_SHOWN = r"web\x1b[2J\n9999  forged\x9b1A\u202e"


@pytest.mark.parametrize("form", [Form.TABLE, Form.CSV])
def test_write_rows_control_characters_are_escaped_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, form: Form
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    write_rows(form, [Column("group", "GROUP")], [{"group": HOSTILE}])
    _, row = capsys.readouterr().out.splitlines()
    assert row == HOSTILE_SHOWN


@pytest.mark.parametrize("form", [Form.JSON, Form.YAML])
def test_write_rows_machine_forms_contain_no_control_character(capsys: pytest.CaptureFixture[str], form: Form) -> None:
    write_rows(form, [Column("group", "GROUP")], [{"group": HOSTILE}])
    out = capsys.readouterr().out
    assert not CONTROLS.search(out.replace("\n", ""))
    parsed = json.loads(out) if form is Form.JSON else yaml.safe_load(out)
    assert parsed == [{"group": HOSTILE}]


def test_reporting_failure_is_one_line_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise CommandFailed(f"group g has no member m; it has {HOSTILE}")

    with pytest.raises(SystemExit):
        reporting(fail)
    assert capsys.readouterr().err == f"tidegate: group g has no member m; it has {HOSTILE_SHOWN}\n"


def test_confirm_change_notice_is_one_line_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    confirm_change(f"cluster c at {HOSTILE}", f"group {HOSTILE} is deleted", yes=True)
    assert (
        capsys.readouterr().err
        == f"tidegate: cluster c at {HOSTILE_SHOWN}, about to change: group {HOSTILE_SHOWN} is deleted\n"
    )


def test_configure_text_log_escapes_control_characters() -> None:
    out, before = io.StringIO(), structlog.get_config()
    configure("text", "info", out)
    try:
        structlog.get_logger().info("group_stable", group=HOSTILE)
    finally:
        structlog.configure(**before)
    assert out.getvalue().count("\n") == 1 and not CONTROLS.search(out.getvalue().rstrip("\n"))


@pytest.mark.parametrize("form", [Form.TABLE, Form.CSV, Form.JSON, Form.YAML])
@pytest.mark.parametrize("how", [Decode.AUTO, Decode.TEXT, Decode.JSON])
def test_tail_control_characters_are_escaped_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, form: Form, how: Decode
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    hostile = '{"a":"\x9b1A\u202e"}'.encode()
    record = Record(7, 1_700_000_000_000, HOSTILE.encode(), hostile, ((HOSTILE, HOSTILE.encode()),))

    Printer("orders", form, how, headers=True)(Found(0, record))

    printed = capsys.readouterr().out
    assert not CONTROLS.search(printed.replace("\n", "")), printed
    assert form is not Form.TABLE or printed.count("\n") == 1
