"""What a broker logs is written down in docs/operations.md: the same events are in the code and on the page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tidegate.diagnosis.state_log import LINES

ROOT = Path(__file__).resolve().parents[3]
HEADING = "## Log events\n"


def events_in_code() -> Iterator[str]:
    """Events of every call of a logger, but `debug` and those that come with a traceback: these are bugs."""
    for path in (ROOT / "broker").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args and _logs(node):
                first = node.args[0]
                parts = [first.body, first.orelse] if isinstance(first, ast.IfExp) else [first]
                yield from (one.value for one in parts if isinstance(one, ast.Constant))


def _logs(call: ast.Call) -> bool:
    assert isinstance(call.func, ast.Attribute)
    of = ast.unparse(call.func.value)
    if of.endswith("limited_log"):
        return call.func.attr == "warn"
    bug = any(keyword.arg == "exc_info" for keyword in call.keywords)
    return of == "logger" and call.func.attr in ("info", "warning", "error") and not bug


def events_on_the_page() -> set[str]:
    _, _, rest = (ROOT / "docs" / "operations.md").read_text("utf-8").partition(HEADING)
    section, _, _ = rest.partition("\n## ")
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_every_event_is_on_the_page() -> None:
    code = set(events_in_code()) | set(LINES.values())

    assert code - events_on_the_page() == set(), "not in docs/operations.md"
    assert events_on_the_page() - code == set(), "not logged any more"
