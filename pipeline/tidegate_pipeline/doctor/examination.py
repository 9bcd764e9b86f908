"""Looking: on the driver, in a Spark job on every executor, at Redis; then what was found."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tidegate.records.segment_file import open_archive
from tidegate_pipeline import settings as pipeline_settings
from tidegate_pipeline.addresses import printable, shown
from tidegate_pipeline.doctor import probe
from tidegate_pipeline.doctor.findings import Check, CheckStatus, compared, of_redis
from tidegate_pipeline.java import find_java, java_version
from tidegate_pipeline.jobs.failures import cause_of
from tidegate_pipeline.redis_access import connect
from tidegate_pipeline.session import log_file, spark_session
from tidegate_pipeline.settings import PipelineSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASKS_AN_EXECUTOR = 2


def run_checks(config: Path | None, *, as_json: bool) -> None:
    """Run all checks and print the findings; exits with 1 on an error. Raises UsageError."""
    settings = pipeline_settings.load(config)
    java = find_java()
    found = [Check(CheckStatus.OK, "Java", f"{java_version(java)} at {java}")]
    if not as_json:  # spark-submit makes one stream of stdout and stderr
        typer.echo("starting Spark", err=True)
    spark = spark_session("tidegate doctor", settings.spark, log=Path(settings.log.path or log_file()))
    try:
        found += all_findings(spark, settings)
    finally:
        spark.stop()
    wrong = any(one.severity is CheckStatus.ERROR for one in found)
    if as_json:
        typer.echo(json.dumps({"ok": not wrong, "findings": [asdict(one) for one in found]}, indent=2))
    else:
        typer.echo("\n".join(lines(found)))
    if wrong:
        raise typer.Exit(1)


def all_findings(spark: SparkSession, settings: PipelineSettings) -> list[Check]:
    """Everything that needs a session."""
    found = [Check(CheckStatus.OK, "Spark", f"{spark.version}, master {spark.conf.get('spark.master')}")]
    folders = {"archive": settings.archive.path, "checkpoint": settings.checkpoint.path}
    for what, path in folders.items():
        if not path:
            found.append(
                Check(CheckStatus.WARNING, what, "no path is set", f"set {what}.path for the jobs that need it")
            )
    wanted = probe.ProbeTargets(
        settings.redis.options["redis.url"],
        settings.redis.password_variable,
        {what: path for what, path in folders.items() if path},
        f".doctor-{uuid.uuid4().hex}",
    )
    with _markers(wanted) as wrong:
        driver = probe.observe(wanted)
        driver["errors"] |= wrong
        observed, expected = on_executors(spark, wanted)
    found += compared(driver, observed, expected)
    for what, path in wanted.folders.items():
        if not any(what in one["errors"] for one in (driver, *observed)):
            found.append(Check(CheckStatus.OK, what, f"{path} can be written"))
    if "redis" not in driver["errors"]:
        found += of_redis(_facts(settings), shown(settings.redis.url))
        found.append(_source(spark, settings))
    return found


@contextmanager
def _markers(wanted: probe.ProbeTargets) -> Iterator[dict[str, str]]:
    """A file of the driver's in each folder, made where it is missing; yields why one could not be written."""
    wrong = {}
    for what, path in wanted.folders.items():
        try:
            files, root = open_archive(path)
            files.create_dir(root)
            files.open_output_stream(f"{root}/{wanted.marker}").close()
        except (OSError, ValueError) as error:
            wrong[what] = probe.first_line(error)
    try:
        yield wrong
    finally:
        for path in wanted.folders.values():
            with suppress(OSError, ValueError):
                files, root = open_archive(path)
                files.delete_file(f"{root}/{wanted.marker}")


def on_executors(spark: SparkSession, wanted: probe.ProbeTargets) -> tuple[list[dict[str, Any]], int]:
    """What each executor sees, and how many there are."""
    expected = _executors(spark)
    tasks = max(spark.sparkContext.defaultParallelism, expected) * _TASKS_AN_EXECUTOR
    reported = spark.sparkContext.parallelize(range(tasks), tasks).map(_observing(wanted)).collect()
    return list({found["process"]: found for found in reported}.values()), expected


def _executors(spark: SparkSession) -> int:
    """How many the JVM knows: the driver itself counts only where it is the executor too."""
    status = spark.sparkContext._jsc.sc().statusTracker()
    return max(1, len(status.getExecutorInfos()) - 1)


def _observing(wanted: probe.ProbeTargets) -> Callable[[int], dict[str, Any]]:
    """A function that is sent whole, so that it can report an executor without our package."""
    options = (wanted.redis_url, wanted.password_variable, wanted.folders, wanted.marker)

    def observing(task: int) -> dict[str, Any]:
        import os
        import platform
        import socket

        try:
            from tidegate_pipeline.doctor.probe import ProbeTargets, observe
        except ImportError as missing:
            host = socket.gethostname()
            reported = {"host": host, "process": f"{host}:{os.getcwd()}", "python": platform.python_version()}
            return reported | {"errors": {"import": str(missing)}}
        return observe(ProbeTargets(*options))

    return observing


def _facts(settings: PipelineSettings) -> dict[str, str]:
    client = connect(settings.redis.url, settings.redis.password_variable)
    reported = client.info()
    first = next(iter(reported.values())) if reported else {}
    return {name: str(value) for name, value in (first if isinstance(first, dict) else reported).items()}


def _source(spark: SparkSession, settings: PipelineSettings) -> Check:
    """The planning process beside the driver is one more Python, and does not see --py-files."""
    try:
        events = spark.read.format("tidegate-events").options(**settings.redis.options)
        events.option("startingOffsets", "latest").load().count()
    except Exception as error:  # noqa: BLE001  whatever it is, it is the finding
        cause = str(cause_of(error))
        missing = "ModuleNotFoundError" in cause
        return Check(
            CheckStatus.ERROR, "sources", cause, "install the wheel where Python workers run" if missing else ""
        )
    return Check(CheckStatus.OK, "sources", "tidegate-events is registered, planned and read")


def lines(found: list[Check]) -> Iterator[str]:
    """For people."""
    for one in found:
        yield f"{one.severity:<8} {one.what:<12} {printable(one.reported)}"
        if one.advice:
            yield f"{'':<21} > {one.advice}"
    errors = sum(one.severity is CheckStatus.ERROR for one in found)
    warnings = sum(one.severity is CheckStatus.WARNING for one in found)
    yield f"errors: {errors}, warnings: {warnings}"
