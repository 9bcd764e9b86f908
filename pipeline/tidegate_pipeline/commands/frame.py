"""Verbs of the pipeline itself: `run`, `doctor`, `settings`."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate_pipeline.cli import JOBS, ConfigOption, DryRunOption, EveryOption, JsonOption, reporting

OnceOfAllOption = Annotated[
    bool, typer.Option("--once", help="Read what is there, then end, also where the file says `every`.")
]


def run(
    config: ConfigOption = None,
    once: OnceOfAllOption = False,
    every: EveryOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run the jobs of a file, its tables [jobs.<name>], in one session. SIGTERM ends them after a micro-batch."""
    from tidegate_pipeline.jobs.several import run_several

    with reporting():
        run_several(JOBS, config, once=once, every=every, dry_run=dry_run, as_json=as_json)


def doctor(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Check whether jobs can run. Java, packages, Redis, archive and sources, here and where executors run."""
    from tidegate_pipeline.doctor.examination import run_checks

    with reporting():
        run_checks(config, as_json=as_json)


def settings(
    config: ConfigOption = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="As docs/settings-pipeline.md.")] = False,
) -> None:
    """Print every setting with its value and meaning."""
    from tidegate_pipeline import settings_reference
    from tidegate_pipeline.settings import load

    with reporting():
        if markdown:
            typer.echo(settings_reference.markdown(), nl=False)
            return
        for line in settings_reference.in_force(load(config)):
            typer.echo(line)


def add_to(app: typer.Typer) -> None:
    """The verbs."""
    app.command()(run)
    app.command()(doctor)
    app.command()(settings)
