"""Verbs of decoded tables: `decode`; `files` and `compact` are shared with the archive."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from tidegate_pipeline.cli import ConfigOption, JsonOption, OrgOption, job_command, reporting
from tidegate_pipeline.jobs.job import Job


class ValueForm(StrEnum):
    """How values are encoded."""

    REGISTRY = "registry"
    JSON = "json"


class ReadBy(StrEnum):
    """Schemas of registries."""

    READER = "reader"
    WRITER = "writer"


class Form(StrEnum):
    """Kinds of tables."""

    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"


def decode(
    topic: Annotated[str, typer.Option(help="The topic; several with commas, into one table.")],
    to: Annotated[Form, typer.Option(help="Parquet by Spark's file sink, Delta, or Iceberg.")] = Form.PARQUET,
    table: Annotated[
        str | None,
        typer.Option(
            help="Folder or URI [default: <archive.path>/table/<topic>; with --upsert"
            " <archive.path>/state/<topic>]; Iceberg: catalog.namespace.table."
        ),
    ] = None,
    org: OrgOption = "default",
    values: Annotated[
        ValueForm | None, typer.Option(help="Values as columns: by the schema registry, or plain JSON.")
    ] = None,
    subject: Annotated[
        str | None, typer.Option(help="Subject in the registry, for all topics.  [default: <topic>-value]")
    ] = None,
    message: Annotated[str, typer.Option(help="Protobuf: full name of the message.  [default: the first]")] = "",
    read_by: Annotated[
        ReadBy, typer.Option(help="Resolve records to the latest schema, or read each by its own.")
    ] = ReadBy.READER,
    schema: Annotated[
        str, typer.Option(help="Plain JSON: its columns, as in SQL.  [default: the table's, else inferred]")
    ] = "",
    partition_by: Annotated[
        str | None, typer.Option(help="As `hour(timestamp),value.city`.  [default: day(timestamp)]")
    ] = None,
    upsert: Annotated[
        bool,
        typer.Option("--upsert", help="Delta, Iceberg: only the newest record of each key; a tombstone removes it."),
    ] = False,
) -> Job:
    """Write records of topics to a table. From Redis and the archive, each once."""
    from tidegate_pipeline.jobs.decode import DecodeJob
    from tidegate_pipeline.jobs.value_columns import Values

    given = None if values is None else Values(values.value, subject, message, read_by.value, schema)
    return DecodeJob(topic, to.value, table, org, given, partition_by, upsert)


def maintain(
    tables: Annotated[list[str], typer.Argument(help="Delta: folder or URI; Iceberg: catalog.namespace.table.")],
    every: Annotated[
        str | None, typer.Option("--every", metavar="1h", help="Keep running, once each so often; SIGTERM ends it.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Merge files, expire versions of tables. Removes unnamed files older than archive.gc_grace."""
    from tidegate_pipeline.tables.maintenance import run_maintenance

    with reporting():
        run_maintenance(tables, every, config, as_json=as_json)


def add_to(app: typer.Typer) -> None:
    """The verbs."""
    job_command(app)(decode)
    app.command()(maintain)
