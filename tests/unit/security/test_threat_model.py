"""The threat model names tests; each of them exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[3]
_ROW: Final = re.compile(r"^\| (?!Threat|---)(.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
_TEST: Final = re.compile(r"`(test_\w+)`")


def rows() -> list[tuple[str, str, str]]:
    """Threat, protection, and the tests that show it."""
    section = (REPOSITORY / "docs" / "security.md").read_text("utf-8").partition("## Threat model")[2]
    return _ROW.findall(section)


def test_every_threat_has_tests_that_exist() -> None:
    defined = set()
    for path in (REPOSITORY / "tests").rglob("test_*.py"):
        defined |= set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text("utf-8"), re.MULTILINE))
    named = {threat: set(_TEST.findall(tests)) for threat, _, tests in rows()}

    assert len(named) > 10
    assert [threat for threat, tests in named.items() if not tests] == []
    assert set().union(*named.values()) - defined == set()
