"""Job `commits`: groups that stop committing, commit far more than they use to, or commit less than before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate_pipeline.jobs.history_job import HistoryJob, history
from tidegate_pipeline.settings import PipelineSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class CommitsJob(HistoryJob):
    """The table `commits`."""

    name = "commits"
    formats = ("tidegate-usage", "tidegate-lag")
    time_column = "since_at"

    def rows(self, spark: SparkSession, settings: PipelineSettings) -> DataFrame:
        """One row for each anomaly."""
        from tidegate_pipeline.history.frames import anomalies

        usage, lag = (history(spark, settings, name, whole=True) for name in self.formats)
        return anomalies(usage.where("group is not null or org is null"), lag, settings.commits)
