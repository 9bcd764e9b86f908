"""`tidegate pipeline …`: its verbs, the options that all jobs share, failures as one line and an exit status."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tidegate_pipeline import commands
from tidegate_pipeline.addresses import printable
from tidegate_pipeline.errors import PipelineError
from tidegate_pipeline.jobs.job import Job

JobMaker = Callable[..., Job]
"""A verb's own options -> its job."""

JOBS: Final[dict[str, JobMaker]] = {}
"""Verb -> maker, for `run --config`."""

ConfigOption = Annotated[Path | None, typer.Option("--config", help="TOML file of settings.", dir_okay=False)]
OrgOption = Annotated[str, typer.Option(help="Organisation of the topics.")]
JsonOption = Annotated[bool, typer.Option("--json", help="The summary as JSON on stdout, and nothing else.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print what would be read; change nothing.")]
OnceOption = Annotated[bool, typer.Option("--once", help="Read what is there, then end (the default).")]
EveryOption = Annotated[
    str | None,
    typer.Option("--every", metavar="30s", help="Keep running, with a micro-batch each so often; SIGTERM ends it."),
]
CheckpointOption = Annotated[
    str | None, typer.Option("--checkpoint", help="Folder of this query.  [default: <checkpoint.path>/<job>]")
]

_SHARED: Final = {
    "once": (OnceOption, False),
    "every": (EveryOption, None),
    "checkpoint": (CheckpointOption, None),
    "dry_run": (DryRunOption, False),
    "as_json": (JsonOption, False),
    "config": (ConfigOption, None),
}


def application() -> typer.Typer:
    """The group with every verb."""
    app = typer.Typer(
        name="pipeline",
        help="Spark jobs over topics, and over the history of groups.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(lambda: None)  # a group, also with one verb
    for module in commands.MODULES:
        importlib.import_module(f"tidegate_pipeline.commands.{module}").add_to(app)
    return app


def main(arguments: Sequence[str]) -> None:
    """What `tidegate pipeline` does with the rest of its line."""
    application()(list(arguments), prog_name="tidegate pipeline")


@contextmanager
def reporting() -> Any:
    """A PipelineError becomes one line on stderr and its exit status; so does a Redis that is away, or refuses."""
    try:
        yield
    except PipelineError as error:
        typer.echo(f"tidegate: {printable(str(error))}", err=True)
        raise typer.Exit(error.exit_status) from None
    except Exception as error:
        from redis.exceptions import RedisError

        if not isinstance(error, RedisError):
            raise
        typer.echo(f"tidegate: Redis: {printable(str(error))}", err=True)
        raise typer.Exit(PipelineError.exit_status) from None


def job_command(app: typer.Typer) -> Callable[[JobMaker], JobMaker]:
    """Makes a verb of a function: own options -> Job. `--once`, `--every`, `--json` … are added to them.

    ```
    @job_command(app)
    def archive(topics: Annotated[str | None, typer.Option(help="…")] = None) -> Job:
        \"\"\"Move what is in Redis to the archive.\"\"\"
        from tidegate_pipeline.jobs.archive import ArchiveJob

        return ArchiveJob(topics)
    ```
    """

    def add(maker: JobMaker) -> JobMaker:
        def command(**given: Any) -> None:
            shared = {name: given.pop(name) for name in _SHARED}
            from tidegate_pipeline.jobs.command import run_job

            with reporting():
                run_job(lambda: maker(**given), **shared)

        own = list(inspect.signature(maker, eval_str=True).parameters.values())
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, (annotation, default) in _SHARED.items()
        ]
        keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        command.__signature__ = inspect.Signature([*keyword_only, *added])  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *added]}
        command.__doc__ = maker.__doc__
        name = maker.__name__.replace("_", "-")
        JOBS[name] = maker
        app.command(name)(command)
        return maker

    return add
