"""What the jobs over group history share: streams of one or two formats in, one Parquet table below the archive out."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final

from tidegate.records.segments import below
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.jobs.checkpoints import committed_offsets
from tidegate_pipeline.jobs.job import Job, JobContext
from tidegate_pipeline.jobs.writable import check_writable
from tidegate_pipeline.settings import PipelineSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_WHOLE: Final = 2**31 - 1


def table_path(settings: PipelineSettings, name: str) -> str:
    """Where a table is. Raises UsageError where no archive is set."""
    if not settings.archive.path:
        raise UsageError("where is the archive? archive.path in the settings, or TIDEGATE_PIPELINE_ARCHIVE_PATH")
    return below(settings.archive.path, name)


def history_options(settings: PipelineSettings) -> dict[str, str]:
    """The way to Redis, and what a job does about entries that are gone."""
    return settings.redis.options | {"failOnDataLoss": str(settings.source.fail_on_data_loss).lower()}


def history(spark: SparkSession, settings: PipelineSettings, format_name: str, *, whole: bool = False) -> DataFrame:
    """A format of group history as a stream, from the first entry that is there.

    `whole`: all that is there in one micro-batch, for what has a watermark and reads several streams: with a part of
    each the watermark of the one that is read faster would make entries of the others late.
    """
    options = history_options(settings)
    if whole:
        options["maxEntriesPerTrigger"] = str(_WHOLE)
    return spark.readStream.format(format_name).options(**options, startingOffsets="earliest").load()


class HistoryJob(Job):
    """One table, named as the job, by day."""

    formats: ClassVar[tuple[str, ...]]
    """What `rows` reads, in its order: `tidegate-events`, `tidegate-lag`, `tidegate-usage`."""
    time_column: ClassVar[str]
    """The timestamp whose day is the table's folder."""

    @abstractmethod
    def rows(self, spark: SparkSession, settings: PipelineSettings) -> DataFrame:
        """The table's rows, as a stream."""

    def plan(self, context: JobContext) -> list[dict[str, object]]:
        """A row for each stream that has something to read."""
        from tidegate_pipeline.sources.capped_streams import CappedStreams, from_offsets
        from tidegate_pipeline.sources.events import EventsSource
        from tidegate_pipeline.sources.lag import LagSource
        from tidegate_pipeline.sources.usage import UsageSource

        sources = {source.name(): source for source in (EventsSource, LagSource, UsageSource)}
        read_before = committed_offsets(context.checkpoint) or [{} for _ in self.formats]
        planned: list[dict[str, object]] = []
        for name, offsets in zip(self.formats, read_before, strict=True):
            source = sources[name](history_options(context.settings))
            names = source.streams(context.client)
            streams = CappedStreams(context.client, names, fail_on_data_loss=False)
            start = from_offsets(offsets) or streams.earliest()
            planned += (
                {
                    "stream": entry_range.stream,
                    "after": entry_range.after,
                    "last": entry_range.last,
                    "entries": entry_range.count,
                }
                for entry_range in streams.entry_ranges(start, streams.latest())
                if entry_range.count
            )
        return planned

    def check(self, context: JobContext) -> None:
        """The path of the table."""
        table_path(context.settings, self.name)
        check_writable("archive.path", context.settings.archive.path)

    def start(self, context: JobContext) -> StreamingQuery:
        """Begin to write; Spark's file sink makes each row once (readers go through its `_spark_metadata`)."""
        from pyspark.sql import functions as f

        rows = self.rows(context.spark, context.settings).withColumn("day", f.to_date(self.time_column))
        writer = rows.writeStream.queryName(self.query_name).option("checkpointLocation", str(context.checkpoint))
        writer = writer.trigger(**context.trigger).partitionBy("day").format("parquet")
        return writer.start(table_path(context.settings, self.name))

    def finish(self, context: JobContext) -> dict[str, object]:
        """Where the table is."""
        return {"table": table_path(context.settings, self.name)}
