"""Job `usage`: what each organisation's topics took in, gave out and held, hour by hour."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate_pipeline.jobs.history_job import HistoryJob, history
from tidegate_pipeline.settings import PipelineSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class UsageJob(HistoryJob):
    """The table `usage`."""

    name = "usage"
    formats = ("tidegate-usage",)
    time_column = "from_at"

    def rows(self, spark: SparkSession, settings: PipelineSettings) -> DataFrame:
        """One row for an organisation, topic and interval."""
        from tidegate_pipeline.history.frames import usage_by_interval

        return usage_by_interval(history(spark, settings, "tidegate-usage", whole=True), settings.usage)
