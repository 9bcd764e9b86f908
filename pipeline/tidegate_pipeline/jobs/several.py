"""`tidegate pipeline run`: the jobs of a file, in one session."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError, validate_call

from tidegate_pipeline import settings as pipeline_settings
from tidegate_pipeline.cli import JobMaker
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.jobs.command import context_of, run_jobs, trigger
from tidegate_pipeline.jobs.job import Job
from tidegate_pipeline.jobs.running import Run
from tidegate_pipeline.jobs.summary import plan_lines
from tidegate_pipeline.settings import PipelineSettings


def run_several(
    makers: Mapping[str, JobMaker], config: Path | None, *, once: bool, every: str | None, dry_run: bool, as_json: bool
) -> None:
    """Run them to their end or to a signal. Raises UsageError, and what the first that failed failed with."""
    settings = pipeline_settings.load(config)
    runs = runs_of(makers, settings, every, once=once)
    if not dry_run:
        run_jobs(runs, settings, "tidegate pipeline", as_json=as_json)
        return
    plans = {run.job.query_name: run.job.plan(run.context) for run in runs}
    if as_json:
        typer.echo(json.dumps([{"job": name, "plan": plan} for name, plan in plans.items()], default=str))
    else:
        for name, plan in plans.items():
            typer.echo("\n".join(plan_lines(name, plan)))


def runs_of(
    makers: Mapping[str, JobMaker], settings: PipelineSettings, every: str | None, *, once: bool = False
) -> list[Run]:
    """One run for each table; `once` wins over the tables' `every`. Raises UsageError."""
    if once and every is not None:
        raise UsageError("--once or --every, not both")
    if not settings.jobs:
        raise UsageError("run: the settings have no [jobs.<name>] table; --config names their file")
    runs = []
    for name, table in settings.jobs.items():
        options = {option.replace("-", "_"): value for option, value in table.items()}
        verb, often = options.pop("verb", name), options.pop("every", every)
        checkpoint = options.pop("checkpoint", None)
        if verb not in makers:
            raise UsageError(f'jobs.{name}: no job "{verb}"; there are {", ".join(sorted(makers))}')
        job = _made(name, makers[verb], options)
        runs.append(Run(job, context_of(job, settings, checkpoint, trigger(False, None if once else often))))
    twice = [name for name, times in Counter(run.job.query_name for run in runs).items() if times > 1]
    if twice:
        raise UsageError(f"jobs: two are the same query: {', '.join(twice)}")
    return runs


def _made(name: str, maker: JobMaker, options: Mapping[str, Any]) -> Job:
    try:
        return validate_call(maker)(**options)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise UsageError(f"jobs.{name}: {wrong}") from None
