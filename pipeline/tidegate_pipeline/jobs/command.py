"""From the options of a job's verb to its run, its plan or its summary."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from tidegate.records.segments import below
from tidegate_pipeline import settings as pipeline_settings
from tidegate_pipeline.addresses import has_password
from tidegate_pipeline.errors import PipelineError, UsageError
from tidegate_pipeline.jobs.job import Job, JobContext
from tidegate_pipeline.jobs.progress import Display
from tidegate_pipeline.jobs.running import Run, run_all
from tidegate_pipeline.jobs.summary import plan_lines, summary_lines
from tidegate_pipeline.jobs.writable import check_writable
from tidegate_pipeline.query_metrics import QueryMetrics, serving
from tidegate_pipeline.redis_access import connect, retry_while_unavailable
from tidegate_pipeline.session import STDERR, log_file, spark_session
from tidegate_pipeline.settings import PipelineSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_job(
    make: Callable[[], Job],
    *,
    once: bool,
    every: str | None,
    checkpoint: str | None,
    dry_run: bool,
    as_json: bool,
    config: Path | None,
) -> None:
    """One job, alone in its session. Raises what it failed with, after its summary was written."""
    settings = pipeline_settings.load(config)
    job = make()
    context = context_of(job, settings, checkpoint, trigger(once, every))
    if dry_run:
        plan = job.plan(context)
        reported = json.dumps({"job": job.query_name, "plan": plan}, default=str)
        typer.echo(reported if as_json else "\n".join(plan_lines(job.query_name, plan)))
        return
    run_jobs([Run(job, context)], settings, f"tidegate {job.query_name}", as_json=as_json)


def run_jobs(runs: Sequence[Run], settings: PipelineSettings, app_name: str, *, as_json: bool) -> None:
    """Jobs in one session, to their end. Raises the failure of the first that failed."""
    display = Display()
    for run in runs:
        retry_while_unavailable(run.context.client.ping, settings.redis.retry_s, display.note)
        check_writable("the checkpoint", str(run.context.checkpoint))
        run.job.check(run.context)
    metrics = QueryMetrics()
    with serving(metrics, settings.metrics.address):
        summaries = _run(runs, settings, app_name, display, metrics)
    if as_json:
        typer.echo(json.dumps(summaries[0] if len(runs) == 1 else summaries, default=str))
    else:
        reported = [] if len(runs) == 1 and runs[0].error and not runs[0].figures.micro_batches else summaries
        typer.echo("".join(f"{line}\n" for summary in reported for line in summary_lines(summary)), nl=False)
    for run in runs:
        if run.error:
            if run.error.exit_status == PipelineError.exit_status:  # others have a complete message
                log = _log(settings)
                display.note(f"more in {log}" if log != STDERR else "more above")
            raise run.error


def _run(
    runs: Sequence[Run], settings: PipelineSettings, app_name: str, display: Display, metrics: QueryMetrics
) -> list[Mapping[str, Any]]:
    display.note("starting Spark")
    spark = spark_session(app_name, settings.spark, log=_log(settings))
    try:
        for run in runs:
            run.context.spark = spark
            run.context.note = display.note
        run_all(runs, display, metrics)
        return [run.summary() for run in runs]
    finally:
        spark.stop()


def _log(settings: PipelineSettings) -> Path:
    return Path(settings.log.path) if settings.log.path else log_file()


def context_of(job: Job, settings: PipelineSettings, checkpoint: str | None, every: dict[str, Any]) -> JobContext:
    """What a job is given, but for the session, which comes when it runs. Raises UsageError."""
    if has_password(settings.redis.url) and pipeline_settings.load().redis.url != settings.redis.url:
        raise UsageError(
            "redis.url in the file has a password, and no task reads that file: put the address in "
            "TIDEGATE_PIPELINE_REDIS_URL, here and where executors run, or its name in redis.password_variable"
        )
    return JobContext(
        spark=cast("SparkSession", None),
        settings=settings,
        client=connect(settings.redis.url, settings.redis.password_variable),
        checkpoint=checkpoint_of(job, settings, checkpoint),
        trigger=every,
    )


def checkpoint_of(job: Job, settings: PipelineSettings, given: str | None) -> str:
    """The folder of a job's query; a local one as an absolute path. Raises UsageError."""
    folder = given or (below(settings.checkpoint.path, job.query_name) if settings.checkpoint.path else "")
    if not folder:
        raise UsageError(f"{job.query_name}: where is its checkpoint? --checkpoint, or checkpoint.path in the settings")
    return folder if "://" in folder else str(Path(folder).absolute())


def trigger(once: bool, every: str | None) -> dict[str, Any]:
    """Keyword arguments of `writeStream.trigger`. Raises UsageError."""
    if every is None:
        return {"availableNow": True}
    if once:
        raise UsageError("--once or --every, not both")
    found = _interval(every)
    words = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}
    return {"processingTime": f"{found[1]} {words[found[2] or 's']}"}


def seconds(every: str) -> float:
    """Of `--every`. Raises UsageError."""
    found = _interval(every)
    return int(found[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3_600}[found[2] or "s"]


def _interval(every: str) -> re.Match[str]:
    found = re.fullmatch(r"(\d+) ?(ms|s|m|h)?", every.strip())
    if not found:
        raise UsageError(f"--every {every}: a time such as 500ms, 30s, 5m or 1h")
    return found
