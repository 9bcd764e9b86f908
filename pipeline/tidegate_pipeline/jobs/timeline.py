"""Job `timeline`: one row for each generation of each group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate_pipeline.jobs.history_job import HistoryJob, history
from tidegate_pipeline.settings import PipelineSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class TimelineJob(HistoryJob):
    """The table `timeline`."""

    name = "timeline"
    formats = ("tidegate-events",)
    time_column = "joined_at"

    def rows(self, spark: SparkSession, settings: PipelineSettings) -> DataFrame:
        """One row a generation."""
        from tidegate_pipeline.history.frames import generations

        return generations(history(spark, settings, "tidegate-events", whole=True), settings.timeline)
