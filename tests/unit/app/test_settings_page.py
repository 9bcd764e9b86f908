"""docs/settings.md, docs/settings-pipeline.md and docs/cli.md say what the code says."""

from __future__ import annotations

from pathlib import Path

from typer.main import get_command

from tidegate.cli import options, reference
from tidegate.command_line import command_line
from tidegate_pipeline import settings_reference
from tidegate_pipeline.cli import JOBS, application
from tidegate_pipeline.jobs.several import runs_of
from tidegate_pipeline.settings import load

DOCS = Path(__file__).parents[3] / "docs"


def test_page_is_up_to_date() -> None:
    assert (DOCS / "settings.md").read_text("utf-8") == options.markdown(), "run `make docs`"


def test_page_of_the_pipeline_is_up_to_date() -> None:
    assert (DOCS / "settings-pipeline.md").read_text("utf-8") == settings_reference.markdown(), "run `make docs`"


def test_page_of_the_command_is_up_to_date() -> None:
    written = (DOCS / "cli.md").read_text("utf-8")
    root = get_command(command_line)

    assert reference.page(written, root, root.make_context("tidegate", ["version"])) == written, "run `make docs`"


def test_example_file_can_be_loaded_and_names_jobs() -> None:
    settings = load(DOCS / "pipeline.toml")
    application()  # knows the verbs
    assert settings.archive.path == "/var/lib/tidegate/archive"
    assert [run.job.query_name for run in runs_of(JOBS, settings, None)] == ["archive", "lag"]
