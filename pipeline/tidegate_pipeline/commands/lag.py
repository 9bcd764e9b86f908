"""`tidegate pipeline lag`."""

from __future__ import annotations

import typer

from tidegate_pipeline.cli import job_command
from tidegate_pipeline.jobs.job import Job


def lag() -> Job:
    """Lag of groups by window, as a table. Least, most, rates, seconds behind, stuck partitions; Parquet."""
    from tidegate_pipeline.jobs.lag import LagJob

    return LagJob()


def add_to(app: typer.Typer) -> None:
    """Its verb."""
    job_command(app)(lag)
