"""`tidegate pipeline timeline`, `storms`, `commits`, `usage`."""

from __future__ import annotations

import typer

from tidegate_pipeline.cli import job_command
from tidegate_pipeline.jobs.job import Job


def add_to(app: typer.Typer) -> None:
    """Their verbs."""

    @job_command(app)
    def timeline() -> Job:
        """Every generation of every group: cause, times, members, partitions that moved; a Parquet table."""
        from tidegate_pipeline.jobs.timeline import TimelineJob

        return TimelineJob()

    @job_command(app)
    def storms() -> Job:
        """Rebalance storms: when each began and ended, and because of whom; a Parquet table."""
        from tidegate_pipeline.jobs.storms import StormsJob

        return StormsJob()

    @job_command(app)
    def commits() -> Job:
        """Groups that stop committing, commit in bursts, or commit an offset below the one before; a Parquet table."""
        from tidegate_pipeline.jobs.commits import CommitsJob

        return CommitsJob()

    @job_command(app)
    def usage() -> Job:
        """Records, bytes, requests and byte-hours of every organisation's topics by the hour; a Parquet table."""
        from tidegate_pipeline.jobs.usage import UsageJob

        return UsageJob()
