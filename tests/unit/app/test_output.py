"""What commands print of names that clients chose."""

from __future__ import annotations

import pytest

from broker.admin.output import Column, Form, write_findings, write_pairs, write_rows

NASTY = "a\x1b[2J\x9b31m\rb"
SHOWN = r"a\x1b[2J\x9b31m\rb"


def test_no_name_moves_the_cursor_of_who_reads_it(capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(Form.TABLE, [Column("group", "GROUP")], [{"group": NASTY}])
    write_pairs([("group", NASTY)])
    write_findings(NASTY, [{"severity": "note", "sentence": NASTY, "evidence": [NASTY], "advice": NASTY}])
    printed = capsys.readouterr().out

    assert printed.count(SHOWN) == 6 and "\x1b" not in printed and "\x9b" not in printed


def test_machines_get_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(Form.CSV, [Column("group", "GROUP")], [{"group": "a\x1bb"}])

    assert "a\x1bb" in capsys.readouterr().out
