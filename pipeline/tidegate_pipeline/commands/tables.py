"""Verbs of decoded tables: `decode`; `files` and `compact` are shared with the archive."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from tidegate_pipeline.cli import job_command
from tidegate_pipeline.jobs.job import Job


class Form(StrEnum):
    """Kinds of tables."""

    PARQUET = "parquet"
    DELTA = "delta"


def add_to(app: typer.Typer) -> None:
    """The verbs."""

    @job_command(app)
    def decode(
        topic: Annotated[str, typer.Option(help="The topic.")],
        to: Annotated[Form, typer.Option(help="Parquet by Spark's file sink, or Delta.")] = Form.PARQUET,
        table: Annotated[
            str | None, typer.Option(help="Folder or URI.  [default: <archive.path>/table/<topic>]")
        ] = None,
        org: Annotated[str, typer.Option(help="Organisation of the topic.")] = "default",
    ) -> Job:
        """Records of a topic as a table by day, from Redis and the archive, each once."""
        from tidegate_pipeline.jobs.decode import DecodeJob

        return DecodeJob(topic, to.value, table, org)
