"""Words that are no standard terms stay out of identifiers, settings, metrics and log events (style: plain English)."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tidegate.settings import Settings
from tidegate.telemetry import declared

REPOSITORY: Final = Path(__file__).resolve().parents[2]
# fmt: off
DENIED: Final = frozenset(
    {
        "bears", "believed", "dear", "doom", "doomed", "door", "doors", "doubtful", "duty", "filed", "forgive",
        "forgiven", "forgives", "guest", "hear", "heard", "hearing", "hears", "hurt", "incarnation", "incarnations",
        "lest", "look", "looked", "looking", "looks", "mint", "minted", "patiently", "picture", "pictures", "rooms",
        "saw", "seldom", "settle", "settled", "settler", "settles", "spared", "sparing", "stories", "story", "tell",
        "telling", "tells", "told",
    }
)
# fmt: on
ALLOWED: Final = {
    "told_leader": "a field of the member's record in Redis",
    "spared_at": "a field of the group's hash in Redis",
    "tell": "io.BytesIO.tell",
}
_PARTS: Final = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_LUA: Final = re.compile(r"--\[\[.*?\]\]|--[^\n]*|\"[^\"\n]*\"|'[^'\n]*'|([A-Za-z_]\w*)", re.DOTALL)
_EVENT: Final = re.compile(r"\blogger\.\w+\(\s*\"([a-z_]+)\"")


def denied(name: str) -> bool:
    """Whether one of the words of an identifier is denied."""
    return name not in ALLOWED and any(part.lower() in DENIED for part in _PARTS.findall(name))


def product(suffix: str) -> Iterator[Path]:
    """The files of the product's code."""
    for folder in ("broker", "pipeline", "observability", "redis_scripts"):
        yield from (
            path for path in sorted((REPOSITORY / folder).rglob(f"*{suffix}")) if "__pycache__" not in path.parts
        )


def identifiers(path: Path) -> set[str]:
    """The names of a file, without its strings and comments."""
    text = path.read_text("utf-8")
    if path.suffix == ".lua":
        return {name for name in _LUA.findall(text) if name}
    return {one.string for one in tokenize.generate_tokens(io.StringIO(text).readline) if one.type == tokenize.NAME}


@pytest.mark.parametrize("suffix", [".py", ".lua"])
def test_identifiers_hold_no_denied_word(suffix: str) -> None:
    found = {str(path.relative_to(REPOSITORY)): sorted(filter(denied, identifiers(path))) for path in product(suffix)}
    assert {path: names for path, names in found.items() if names} == {}


def test_file_names_hold_no_denied_word() -> None:
    paths = [*product(".py"), *product(".lua")]
    assert [str(path.relative_to(REPOSITORY)) for path in paths if denied(path.stem)] == []


def test_settings_hold_no_denied_word() -> None:
    assert [name for name in Settings.model_fields if denied(name)] == []


def test_metrics_hold_no_denied_word() -> None:
    names = re.findall(r"\"(tidegate_\w+)\"", Path(declared.__file__).read_text("utf-8"))
    assert names
    assert [name for name in names if denied(name)] == []


def test_log_events_hold_no_denied_word() -> None:
    events = {event for path in product(".py") for event in _EVENT.findall(path.read_text("utf-8"))}
    assert sorted(filter(denied, events)) == []


def test_headings_hold_no_denied_word() -> None:
    pages = sorted((REPOSITORY / "docs").rglob("*.md"))
    headings = [line for page in pages for line in re.findall(r"^#+ .*", page.read_text("utf-8"), re.MULTILINE)]
    assert [line for line in headings if {word.lower() for word in re.findall(r"[a-zA-Z]+", line)} & DENIED] == []
