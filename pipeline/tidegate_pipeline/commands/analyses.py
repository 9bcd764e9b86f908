"""`tidegate pipeline timeline`, `storms`, `commits`, `usage`."""

from __future__ import annotations

import typer

from tidegate_pipeline.cli import job_command
from tidegate_pipeline.jobs.job import Job


def timeline() -> Job:
    """Generations of every group, as a table. Cause, times, members, and partitions that moved; Parquet."""
    from tidegate_pipeline.jobs.timeline import TimelineJob

    return TimelineJob()


def storms() -> Job:
    """Rebalance storms, as a table. When each began and ended, and because of whom; Parquet."""
    from tidegate_pipeline.jobs.storms import StormsJob

    return StormsJob()


def commits() -> Job:
    """Anomalies of commits, as a table. Groups that stop, commit in bursts, or go back in offsets; Parquet."""
    from tidegate_pipeline.jobs.commits import CommitsJob

    return CommitsJob()


def usage() -> Job:
    """Usage by organisation and hour, as a table. Records, bytes, requests, byte-hours of its topics; Parquet."""
    from tidegate_pipeline.jobs.usage import UsageJob

    return UsageJob()


def add_to(app: typer.Typer) -> None:
    """Their verbs."""
    job_command(app)(timeline)
    job_command(app)(storms)
    job_command(app)(commits)
    job_command(app)(usage)
