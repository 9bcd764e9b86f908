"""Every command that a page names is there: `tidegate` with its options, targets and suites of `make`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from tidegate.command_line import command_line
from tidegate_pipeline.cli import application

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "helm/README.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
CODE_BLOCK = re.compile(r"^```[a-z]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
END_OF_COMMAND = re.compile(r"\s{2,}|\s#|[;>]| \| | && ")
PLACEHOLDER = re.compile(r"[A-Z]+|[….]+|<.*")
COMMAND: Any = typer.main.get_command(command_line)
PIPELINE: Any = typer.main.get_command(application())


def code(text: str) -> list[str]:
    """What a page shows as code: lines of blocks, and what stands between backticks."""
    blocks = [line for block in CODE_BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    return blocks + [span.replace("\n", " ") for span in re.findall(r"`([^`]+)`", CODE_BLOCK.sub("", text))]


def commands(text: str) -> list[str]:
    """Arguments of `tidegate` wherever code begins with it, in the container or the virtual environment too."""
    found = (re.match(r"\s*(?:\$ )?(?:\S+=\S+ |docker .*? |\S+/)*tidegate ([a-z].*)", line) for line in code(text))
    return [END_OF_COMMAND.split(one[1].strip())[0] for one in found if one]


def unknown(arguments: str) -> list[str]:
    """Subcommands and options that are not there."""
    command = COMMAND
    options = {"-h", "--help"}
    wrong = []
    for word in arguments.split():
        options |= {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
        if word.startswith("-"):
            wrong += [word] if word.split("=")[0] not in options else []
        elif hasattr(command, "commands"):
            names = word.split("|")
            if PLACEHOLDER.fullmatch(word):
                break
            wrong += [name for name in names if name not in command.commands]
            if wrong:
                break
            command = PIPELINE if word == "pipeline" else command.commands[names[0]]
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page(page: Path) -> None:
    wrong = {line: unknown(line) for line in commands(page.read_text("utf-8"))}
    assert {line: words for line, words in wrong.items() if words} == {}


def test_commands_are_found() -> None:
    found = [line for page in PAGES for line in commands(page.read_text("utf-8"))]
    assert len(found) > 200
    assert unknown("group show --nope billing") == ["--nope"]
    assert unknown("group exhibit") == ["exhibit"]
    assert unknown("pipeline archive --every 30s --nope") == ["--nope"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_make_targets_of_a_page(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    lines = [line for line in code(page.read_text("utf-8")) if re.match(r"(?:\S+=\S+ )?make ", line)]
    named = {word for line in lines for word in re.findall(r"make ([a-z-]+)", line)}
    suites = {f"suite-{name}" for line in lines for name in re.findall(r"SUITE=([a-z-]+)", line)}
    assert (named | suites) - targets == set()
