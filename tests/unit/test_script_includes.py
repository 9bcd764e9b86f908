"""Includes of scripts are functions: what passes between files is a parameter, and each file names what it uses."""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path
from typing import Final

import pytest

from tests.model.mutations import MUTATIONS, InScript, Mutation
from tests.simulation.planted_bugs import PLANTED_BUGS
from tests.support.includes import replaced_include
from tests.unit.test_house import rendered, script_names
from tidegate.store import scripts

LIB: Final = Path(__file__).resolve().parents[2] / "redis_scripts" / "lib"
CONSTANTS: Final = frozenset({"errors", "layout"})
LUA: Final = frozenset(
    re.findall(
        r"\w+",
        """and break do else elseif end false for function if in local nil not or repeat return then true until while
    redis cjson string table math tonumber ipairs pairs unpack select type next pcall error KEYS ARGV""",
    )
)
INCLUDES: Final = sorted(path.stem for path in LIB.glob("*.lua") if path.stem not in CONSTANTS)


def code(name: str) -> str:
    """An include without comments and without the content of texts."""
    text = re.sub(r"--[^\n]*", "", (LIB / f"{name}.lua").read_text())
    return re.sub(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', '""', text)


def included(name: str) -> set[str]:
    """What an include includes itself."""
    return set(re.findall(r"^-- @include lib/(\w+)$", (LIB / f"{name}.lua").read_text(), re.MULTILINE))


def words(groups: list[str]) -> set[str]:
    return {word for group in groups for word in re.findall(r"\w+", group)}


def used(name: str) -> set[str]:
    """Names that an include uses: neither fields, nor constants, nor keys of a table that it writes out."""
    without_keys = re.sub(r"([{,]\s*)\w+ = ", r"\1", code(name))
    return set(re.findall(r"(?<![\w.:])([A-Za-z_]\w*)(?!\.[A-Z]|\w)", without_keys))


def own(name: str) -> set[str]:
    """Names that an include declares: locals, functions, parameters, loop variables."""
    text = code(name)
    return (
        words(re.findall(r"\blocal (?!function)([\w, \n]+?)(?= *=|\n|$)", text))
        | words(re.findall(r"\bfunction (\w+)\b", text))
        | words(re.findall(r"\bfunction ?[\w.]*\(([^)]*)\)", text))
        | words(re.findall(r"\bfor ([\w, ]+?) (?:=|in)\b", text))
        | words(re.findall(r"\bfor ([\w, ]+?) =", text))
    )


@pytest.mark.parametrize("name", INCLUDES)
def test_include_declares_its_name(name: str) -> None:
    declared = re.findall(r"^local (?:function )?(\w+)", code(name), re.MULTILINE)

    assert name in declared, f"lib/{name} declares one function {name}, or a table {name} of functions"


@pytest.mark.parametrize("name", INCLUDES)
def test_include_uses_only_its_own_names_and_what_it_includes(name: str) -> None:
    free = used(name) - own(name) - LUA - {match for match in used(name) if match.isupper()}

    assert free == included(name) - CONSTANTS


@pytest.mark.parametrize("name", INCLUDES)
def test_include_begins_with_a_header_of_what_it_does_and_which_keys_it_uses(name: str) -> None:
    match = re.match(r"(?:--[^\n]*\n)+", (LIB / f"{name}.lua").read_text())

    assert match, f"lib/{name} begins with a comment"
    assert re.search(r"\b(reads|writes|changes)\b", match.group(), re.IGNORECASE), "which keys does it read and write?"


def test_layout_alone_knows_the_header_of_a_batch() -> None:
    """Positions of the fields of the 61 bytes are constants, and none of them is 61 or a number behind `batch`."""
    for path in sorted(LIB.parent.rglob("*.lua")):
        if path.stem == "layout":
            continue
        text = re.sub(r"--\[\[.*?\]\]|--[^\n]*", "", path.read_text(), flags=re.DOTALL)
        found = re.findall(r"\bbyte\((?:batch|fields\[i \+ 1\]), *\d+|\(batch, \d+|, batch, \d+|\b61\b", text)
        assert found == [], path


@pytest.mark.parametrize("name", script_names())
def test_constants_are_replaced_in_what_is_sent(name: str) -> None:
    tables = "|".join({name.partition(".")[0] for name in scripts.constants()})

    assert not re.search(rf"\b(?:{tables})\.[A-Z]", rendered(name))


def test_constants_unknown_name_is_refused() -> None:
    with (
        replaced_include("lib/log_end", "local function log_end() return ERROR.NO_SUCH_CODE end"),
        pytest.raises(KeyError, match=r"ERROR\.NO_SUCH_CODE"),
    ):
        rendered("log/describe_log")


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name.replace(" ", "-"))
def test_planted_bug_of_the_model_has_its_text(mutation: Mutation) -> None:
    for change in mutation.changes:
        if isinstance(change, InScript):
            text = scripts.read(change.name)
        else:
            text = textwrap.dedent(inspect.getsource(change.owner.__dict__[change.name]))
        assert text.count(change.old) == 1, change.old


@pytest.mark.parametrize("name", PLANTED_BUGS)
def test_planted_bug_of_the_simulation_has_its_text(name: str) -> None:
    assert PLANTED_BUGS[name].source_with_bug()
