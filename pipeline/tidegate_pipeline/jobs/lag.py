"""Job `lag`: how far behind each group was in each partition, minute by minute, and what is stuck."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tidegate_pipeline.jobs.history_job import HistoryJob, history, table_path
from tidegate_pipeline.jobs.job import JobContext
from tidegate_pipeline.settings import LagSettings, PipelineSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_STUCK_SHOWN = 20


class LagJob(HistoryJob):
    """The table `lag`."""

    name = "lag"
    formats = ("tidegate-lag",)
    time_column = "window_start"

    def rows(self, spark: SparkSession, settings: PipelineSettings) -> DataFrame:
        """One row for each window and partition."""
        return lag_history(history(spark, settings, "tidegate-lag"), settings.lag)

    def finish(self, context: JobContext) -> dict[str, object]:
        """What was stuck at the end."""
        return super().finish(context) | {"stuck": stuck_now(context.spark, table_path(context.settings, self.name))}


def lag_history(samples: DataFrame, settings: LagSettings) -> DataFrame:
    """Windows of lag, each once it is over by the watermark, of rows of `tidegate-lag`."""
    from pyspark.sql import functions as f

    from tidegate_pipeline.history.lag_windows import COLUMNS, SCHEMA, LagWindows, samples_of
    from tidegate_pipeline.history.stateful import GroupProcessor

    columns = [column.split(" ")[0] for column in SCHEMA.split(", ")]
    make = partial(LagWindows, settings.window * 1000, settings.stuck_windows)
    windows = (
        samples.withWatermark("ts", f"{settings.watermark} seconds")
        .selectExpr("ts", "org", "group", *COLUMNS)
        .groupBy("org", "group")
        .transformWithState(
            statefulProcessor=GroupProcessor(make, samples_of, columns),
            outputStructType=f"org string, `group` string, {SCHEMA}",
            outputMode="Append",
            timeMode="EventTime",
        )
    )
    times = [f.timestamp_millis(f"window_{end}_ms").alias(f"window_{end}") for end in ("start", "end")]
    return windows.select(*times, "org", "group", *columns[2:])


def stuck_now(spark: SparkSession, table: str) -> list[str]:
    """The partitions that are stuck in their last window, those that are so longest first."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as f

    try:
        rows = spark.read.parquet(table)
    except AnalysisException:  # no window is over
        return []
    last = rows.groupBy("org", "group", "topic", "partition").agg(
        f.max_by(f.struct("stuck", "stuck_windows", "lag_last"), "window_start").alias("last")
    )
    found = last.where("last.stuck").orderBy(f.desc("last.stuck_windows"), "group", "topic", "partition")
    return [
        f"{row.org}/{row.group} {row.topic}-{row.partition}: {row.last.lag_last} behind, "
        f"unchanged for {row.last.stuck_windows} windows"
        for row in found.limit(_STUCK_SHOWN).collect()
    ]
