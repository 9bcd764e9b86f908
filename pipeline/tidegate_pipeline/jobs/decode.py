"""The job `decode`: records of a topic, from both tiers, as a table by day that anyone can query."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tidegate.records.segments import below
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.jobs.job import Job, JobContext
from tidegate_pipeline.jobs.topic_options import access_to, topic_options
from tidegate_pipeline.jobs.writable import check_writable
from tidegate_pipeline.sources.options import EARLIEST
from tidegate_pipeline.sources.starting import planner_of
from tidegate_pipeline.tables.folder import Form, check, files, form_of, next_offsets
from tidegate_pipeline.topics import Topic, find_topic

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class DecodeJob(Job):
    """One topic to one table. Each record is there once, whatever is tried again."""

    name = "decode"

    def __init__(self, topic: str, form: Form, table: str | None = None, org: str = "default") -> None:
        """`table` is a folder or URI, by default `<archive>/table/<topic>`."""
        self._topic = topic
        self._form = form
        self._table = table
        self._org = org

    @property
    def query_name(self) -> str:
        """One query a topic and form."""
        return f"decode-{self._topic}-{self._form}"

    def table(self, context: JobContext) -> str:
        """Where the table is. Raises UsageError."""
        if self._table:
            return self._table
        if not context.settings.archive.path:
            raise UsageError("where is the table? archive.path in the settings, or --table")
        return below(context.settings.archive.path, f"table/{self._topic}")

    def plan(self, context: JobContext) -> list[dict[str, object]]:
        """What there is to read, less what a Delta table has already."""
        topic, path = self._found(context), self.table(context)
        access = access_to(context.settings, self._org, self._topic)
        known = next_offsets(path, topic) if self._form == "delta" else {}
        rows = list[dict[str, object]]()
        for partition in range(topic.partition_count):
            tiers = planner_of(access, (topic.name, partition), topic).tiers()
            first = known.get(partition, tiers.start)
            rows.append(
                {"topic": topic.name, "partition": partition, "from": first, "to": tiers.end,
                 "offsets": tiers.end - first, "table": path}
            )  # fmt: skip
        access.close()
        return rows

    def check(self, context: JobContext) -> None:
        """The topic, and the table's folder."""
        self._found(context)
        self.table(context)
        if self._table:
            check_writable("--table", self._table)
        else:
            check_writable("archive.path", context.settings.archive.path)

    def start(self, context: JobContext) -> StreamingQuery:
        """Start the query; a Delta table without a checkpoint is continued at its end. Raises UsageError."""
        from pyspark.sql.functions import col, to_date

        topic, path = self._found(context), self.table(context)
        check(path, self._form, str(context.checkpoint))
        rows = (
            context.spark.readStream.format("tidegate")
            .options(**topic_options(context.settings, self._org))
            .option("subscribe", topic.name)
            .option("startingOffsets", self._starting(topic, path))
            .option("maxBytesPerTrigger", context.settings.source.max_bytes_per_trigger)
            .load()
        )
        if self._form == "delta":
            writing = rows.writeStream.format("tidegate-delta").option("topicId", topic.topic_id)
        else:
            context.spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
            writing = rows.withColumn("day", to_date(col("timestamp"))).writeStream.format("parquet").partitionBy("day")
        return (
            writing.option("path", path)
            .option("checkpointLocation", str(context.checkpoint))
            .queryName(self.query_name)
            .trigger(**context.trigger)
            .start()
        )

    def finish(self, context: JobContext) -> dict[str, object]:
        """Where the table is, and how large."""
        path = self.table(context)
        found = files(path) if form_of(path) else []
        return {"table": path, "files": len(found), "file_bytes": sum(file.size for file in found)}

    def _found(self, context: JobContext) -> Topic:
        return find_topic(context.client, context.settings.redis.key_prefix, self._org, self._topic)

    def _starting(self, topic: Topic, path: str) -> str:
        """For a query that never ran: where the table ends, else the beginning."""
        known = next_offsets(path, topic) if self._form == "delta" else {}
        offsets = {str(partition): known.get(partition, EARLIEST) for partition in range(topic.partition_count)}
        return json.dumps({topic.name: offsets})
