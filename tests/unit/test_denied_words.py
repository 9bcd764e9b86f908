"""Words that are no standard terms stay out of identifiers, settings, metrics and log events (style: plain English)."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Final

import pytest

from tidegate.settings import Settings
from tidegate.telemetry import declared

REPOSITORY: Final = Path(__file__).resolve().parents[2]
# fmt: off
DENIED: Final = frozenset(
    {
        "bears", "beat", "beats", "believed", "came", "comes", "dear", "doing", "doom", "doomed", "door", "doors",
        "doubtful", "duty", "filed", "forgive", "forgiven", "forgives", "goes", "guest", "handed", "hear", "heard",
        "hearing", "hears", "house", "hurt", "incarnation", "incarnations", "lest", "lives", "look", "looked",
        "looking", "looks", "mend", "mended", "mint", "minted", "minting", "organisation", "patiently", "phrases",
        "picture", "pictures", "room", "rooms", "said", "saw", "say", "saying", "says", "seen", "seldom", "settle",
        "settled", "settler", "settles", "settling", "spare", "spared", "spares", "sparing", "stands", "stories",
        "story", "tell", "telling", "tells", "tenant", "told", "turn", "turns", "went",
    }
)
DENIED_IN: Final = {
    "broker/tidegate/groups": {"holder", "holders", "holds", "kept", "rest", "behind"},
    "broker/tidegate/log": {"view", "views"},
    "broker/tidegate/store": {"home", "shared", "sent_on"},
    "broker/tidegate/server": {"cold", "cut", "hold", "holds", "hot"},
    "pipeline": {"bounds", "extent", "extents", "piece", "pieces"},
}
"""Words that are denied where they meant something else: heartbeats, states of logs, Cluster nodes, offset ranges."""
DENIED_IN_TEST_NAMES: Final = frozenset(
    {
        "came", "come", "coming", "cut", "cuts", "go", "going", "gone", "guest", "held", "hold", "holder", "holders",
        "holds", "home", "hot", "kept", "nobody", "organisations", "see", "sees", "somebody", "who", "whom", "whose",
    }
)
# fmt: on
"""Words that are denied in names of tests, besides DENIED; identifiers of the product use some of them properly."""
ALLOWED: Final = {
    "handed_out": "a field of a pending member id in Redis",
    "told_leader": "a field of the member's record in Redis",
    "spared_at": "a field of the group's hash in Redis",
    "tell": "io.BytesIO.tell",
    "test_house": "the rules of this code base, called house rules in the style guide",
}
_NO_UNIT: Final = re.compile(r"test_(a|an|the|it|its|what|that|where|when|how)_")
_PARTS: Final = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_LUA: Final = re.compile(r"--\[\[.*?\]\]|--[^\n]*|\"[^\"\n]*\"|'[^'\n]*'|([A-Za-z_]\w*)", re.DOTALL)
_SCRIPT_KEY: Final = re.compile(r"^KEYS\[\d+\]\s+([\w-]+)", re.MULTILINE)
_APPLICATION_KEY: Final = re.compile(r"\b(?:AppKey|ContextVar)(?:\[[^\]]*\])?\(\s*\"(\w+)\"")
_EVENT: Final = re.compile(r"\blogger\.\w+\(\s*\"([a-z_]+)\"")


def denied(name: str, words: Set[str] = DENIED) -> bool:
    """Whether one of the words of an identifier is denied."""
    return name not in ALLOWED and any(part.lower() in words for part in _PARTS.findall(name))


def words_denied_in(path: Path) -> Set[str]:
    """The words that are denied in a file."""
    name = str(path.relative_to(REPOSITORY))
    return DENIED.union(*(words for folder, words in DENIED_IN.items() if name.startswith(f"{folder}/")))


def product(suffix: str) -> Iterator[Path]:
    """The files of the product's code."""
    for folder in ("broker", "pipeline", "observability", "redis_scripts"):
        yield from (
            path for path in sorted((REPOSITORY / folder).rglob(f"*{suffix}")) if "__pycache__" not in path.parts
        )


def beside_product(suffix: str) -> Iterator[Path]:
    """The files of tests and benchmarks."""
    for folder in ("bench", "tests"):
        yield from sorted((REPOSITORY / folder).rglob(f"*{suffix}"))


def identifiers(path: Path) -> set[str]:
    """The names of a file, without its strings and comments."""
    text = path.read_text("utf-8")
    if path.suffix == ".lua":
        return {name for name in _LUA.findall(text) if name}
    return {one.string for one in tokenize.generate_tokens(io.StringIO(text).readline) if one.type == tokenize.NAME}


@pytest.mark.parametrize("suffix", [".py", ".lua"])
def test_identifiers_contain_no_denied_word(suffix: str) -> None:
    found = {}
    for path in [*product(suffix), *beside_product(suffix)]:
        words = words_denied_in(path)
        if names := sorted(name for name in identifiers(path) if denied(name, words)):
            found[str(path.relative_to(REPOSITORY))] = names
    assert found == {}


def test_file_names_contain_no_denied_word() -> None:
    paths = [*product(".py"), *product(".lua"), *sorted((REPOSITORY / "tests").rglob("test_*.py"))]
    assert [str(path.relative_to(REPOSITORY)) for path in paths if denied(path.stem)] == []


def names_of_tests() -> Iterator[tuple[str, str]]:
    """The file and the name of every test."""
    for path in sorted((REPOSITORY / "tests").rglob("test_*.py")):
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text("utf-8"), re.MULTILINE):
            yield str(path.relative_to(REPOSITORY)), name


def test_names_of_tests_contain_no_denied_word() -> None:
    words = DENIED | DENIED_IN_TEST_NAMES
    assert [one for one in names_of_tests() if denied(one[1], words)] == []


def test_names_of_tests_begin_with_a_unit() -> None:
    assert [one for one in names_of_tests() if _NO_UNIT.match(one[1])] == []


def test_settings_contain_no_denied_word() -> None:
    assert [name for name in Settings.model_fields if denied(name)] == []


def test_metrics_contain_no_denied_word() -> None:
    names = re.findall(r"\"(tidegate_\w+)\"", Path(declared.__file__).read_text("utf-8"))
    assert names
    assert [name for name in names if denied(name)] == []


def test_log_events_contain_no_denied_word() -> None:
    events = {event for path in product(".py") for event in _EVENT.findall(path.read_text("utf-8"))}
    assert sorted(filter(denied, events)) == []


def test_keys_of_scripts_and_applications_contain_no_denied_word() -> None:
    names = {name for path in product(".lua") for name in _SCRIPT_KEY.findall(path.read_text("utf-8"))}
    names |= {name for path in product(".py") for name in _APPLICATION_KEY.findall(path.read_text("utf-8"))}
    assert {"group", "read_cache"} <= names
    assert sorted(filter(denied, names)) == []


def test_headings_contain_no_denied_word() -> None:
    pages = sorted((REPOSITORY / "docs").rglob("*.md"))
    headings = [line for page in pages for line in re.findall(r"^#+ .*", page.read_text("utf-8"), re.MULTILINE)]
    assert [line for line in headings if {word.lower() for word in re.findall(r"[a-zA-Z]+", line)} & DENIED] == []
