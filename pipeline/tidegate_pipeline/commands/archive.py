"""Commands of the archive: `archive`, and its maintenance: `files`, `verify`, `compact`, `gc`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate_pipeline.cli import ConfigOption, DryRunOption, JsonOption, OrgOption, job_command, reporting
from tidegate_pipeline.errors import DataLoss
from tidegate_pipeline.jobs.job import Job

if TYPE_CHECKING:
    from tidegate_pipeline.archive.upkeep import Upkeep

TopicsArgument = Annotated[list[str] | None, typer.Argument(help="Names or patterns (orders-*).  [default: all]")]


def archive(
    topics: Annotated[
        str | None,
        typer.Option(help="Names or patterns, with commas.  [default: those with remote.storage.enable=true]"),
    ] = None,
    org: OrgOption = "default",
) -> Job:
    """Archive what Redis holds of topics. Exactly once; brokers may trim what is in the archive."""
    from tidegate_pipeline.jobs.archive import ArchiveJob

    return ArchiveJob(topics.split(",") if topics else [], org)


def files(
    what: Annotated[str | None, typer.Argument(help="A topic, or a table's folder.  [default: all topics]")] = None,
    org: OrgOption = "default",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the files that count. Published segments of topics, or committed files of a table."""
    with reporting():
        found = _upkeep(config, org).files(what)
        if as_json:
            typer.echo(json.dumps(found))
            return
        for one in found:
            typer.echo(one.get("file") or one["path"])


def verify(
    topics: TopicsArgument = None,
    org: OrgOption = "default",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read and check the whole archive. Files against the index, offsets, CRCs; exit status 3 if one is wrong."""
    with reporting():
        reported = _upkeep(config, org).verify(topics or [])
        _report(reported, as_json)
        if reported["problems"]:
            raise DataLoss(f"{len(reported['problems'])} problems in the archive")


def compact(
    topics: TopicsArgument = None,
    table: Annotated[str | None, typer.Option(help="A decoded table instead: its folder or URI.")] = None,
    to: Annotated[str | None, typer.Option(help="Path of the table's copy.  [default: <archive>/clean/…]")] = None,
    org: OrgOption = "default",
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Merge small segments, or copy a table. Old segments stay until gc; of a Parquet table, a clean copy."""
    with reporting():
        if table is not None:
            from tidegate_pipeline.settings import load
            from tidegate_pipeline.tables.compaction import compact as compact_table

            given = load(config).archive
            _report(compact_table(table, to, given.path, given.gc_grace, dry_run=dry_run), as_json)
            return
        _report(_upkeep(config, org).compact(topics or [], dry_run=dry_run), as_json)


def gc(
    deleted_topics: Annotated[bool, typer.Option(help="Also files and index of topics that are gone.")] = False,
    below_log_start: Annotated[bool, typer.Option(help="Also segments that no broker serves any more.")] = False,
    org: OrgOption = "default",
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove files that no index names. Only those older than archive.gc_grace."""
    with reporting():
        upkeep = _upkeep(config, org)
        reported = upkeep.gc(deleted_topics=deleted_topics, below_log_start=below_log_start, dry_run=dry_run)
        _report(reported, as_json)


def add_to(app: typer.Typer) -> None:
    """The verbs."""
    job_command(app)(archive)
    app.command()(files)
    app.command()(verify)
    app.command()(compact)
    app.command()(gc)


def _upkeep(config: Path | None, org: str) -> Upkeep:
    from tidegate_pipeline.archive.upkeep import Upkeep
    from tidegate_pipeline.redis_access import connect
    from tidegate_pipeline.settings import load

    settings = load(config)
    return Upkeep.of(settings, connect(settings.redis.url, settings.redis.password_variable), org)


def _report(reported: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(reported))
        return
    for name, value in reported.items():
        if isinstance(value, list):
            for line in value:
                typer.echo(line)
        else:
            typer.echo(f"{name.replace('_', ' '):<20}{value if isinstance(value, str) else f'{value:,}'}")
