"""The pipeline's pages say what the code says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer
from pydantic import validate_call

from tidegate_pipeline.cli import JOBS, application
from tidegate_pipeline.sources.options import TopicOptions

DOCS = Path(__file__).parents[3] / "docs"
PAGES = [*sorted(DOCS.glob("pipeline*.md")), DOCS.parent / "README.md"]


def test_options_of_topics_that_are_named_exist() -> None:
    text = (DOCS / "pipeline.md").read_text("utf-8").partition("\n## Topics\n")[2].partition("\n## ")[0]
    named = {
        one for names in re.findall(r"^\| (`.+?`) \|", text, re.MULTILINE) for one in re.findall(r"`([\w.]+)", names)
    }

    assert {"subscribe", "minPartitions"} <= named
    assert named <= {str(field.alias) for field in TopicOptions.model_fields.values()}


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every `tidegate pipeline …` line of a code block."""
    for page in PAGES:
        for block in re.findall(r"^```\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            for line in block.splitlines():
                found = re.match(r"(?:\$ )?(?:\S*/)?tidegate pipeline (.*)", line)
                if found and "<" not in line and "…" not in line:
                    yield page.name, shlex.split(found[1], comments=True)


@pytest.mark.parametrize(("page", "words"), list(commands()))
def test_documented_commands_have_their_options(page: str, words: list[str]) -> None:
    command: click.Command = typer.main.get_command(application())
    while isinstance(command, click.Group) or hasattr(command, "commands"):
        assert words and words[0] in command.commands, f"{page}: no verb {words[:1]}"
        command, words = command.commands[words[0]], words[1:]
    options = {option for parameter in command.params for option in parameter.opts}

    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= options, page


def test_every_job_can_be_made_from_a_file() -> None:
    application()

    assert {"archive", "decode", "lag", "timeline", "storms", "commits", "usage", "replay"} <= set(JOBS)
    for maker in JOBS.values():
        assert validate_call(maker)
