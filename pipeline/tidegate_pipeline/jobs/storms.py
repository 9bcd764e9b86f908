"""Job `storms`: incidents in which generations follow each other too fast, and who began them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate_pipeline.jobs.history_job import HistoryJob, history
from tidegate_pipeline.settings import PipelineSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class StormsJob(HistoryJob):
    """The table `storms`. The brokers' usage rows advance its watermark while groups are idle."""

    name = "storms"
    formats = ("tidegate-events", "tidegate-usage")
    time_column = "opened_at"

    def rows(self, spark: SparkSession, settings: PipelineSettings) -> DataFrame:
        """One row where an incident opens, one where it closes."""
        from tidegate_pipeline.history.frames import incidents

        events, usage = (history(spark, settings, name, whole=True) for name in self.formats)
        return incidents(events, usage.where("org is null"), settings.storms)
