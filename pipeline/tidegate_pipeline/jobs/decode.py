"""The job `decode`: records of topics, from both tiers, as a table that anyone can query."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tidegate.records.segments import below
from tidegate_pipeline.decode.schema import DECODED_ARROW
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.jobs.job import Job, JobContext
from tidegate_pipeline.jobs.topic_options import access_to, topic_options
from tidegate_pipeline.jobs.value_columns import UNKNOWN_FIELDS, Values, ValueTarget, dead_letter_count, with_values
from tidegate_pipeline.jobs.writable import check_writable
from tidegate_pipeline.sources.options import EARLIEST
from tidegate_pipeline.sources.starting import planner_of
from tidegate_pipeline.tables.columns import check_types
from tidegate_pipeline.tables.folder import Form, check, files, form_of, next_offsets, value_type
from tidegate_pipeline.tables.partition_fields import BY_DAY, PartitionColumns
from tidegate_pipeline.tables.topic_ids import topic_ids
from tidegate_pipeline.topics import Topic, find_topic

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from tidegate_pipeline.tables.iceberg_table import IcebergPlan


class DecodeJob(Job):
    """Topics to one table. Each record is there once, whatever is tried again."""

    name = "decode"

    def __init__(
        self, topic: str, form: Form, table: str | None = None, org: str = "default",
        values: Values | None = None, partition_by: str | None = None, upsert: bool = False,
    ) -> None:  # fmt: skip
        """`topic` may be several, with commas.

        `table` is a folder or URI, by default `<archive>/table/<topic>`; for Iceberg catalog.namespace.table.

        `values`: as columns, not as bytes. `upsert`: the newest record of each key only. Raises UsageError.
        """
        if form != "iceberg":
            self._partitioning = PartitionColumns.parse(partition_by or BY_DAY)
            if values is None:
                self._partitioning.of_table(DECODED_ARROW)
        if partition_by and upsert and form == "delta":
            raise UsageError("--partition-by with --upsert is for Iceberg: a Delta table of keys has no partitions")
        if form == "iceberg" and find_spec("pyiceberg") is None:
            raise UsageError("no pyiceberg: pip install 'tidegate-pipeline[iceberg]'")
        if upsert and form == "parquet":
            raise UsageError("--upsert is for Delta and Iceberg: rows of a Parquet table cannot be replaced")
        self._upsert = upsert
        self._partition_by = partition_by
        self._topics = sorted({name.strip() for name in topic.split(",") if name.strip()})
        if not self._topics:
            raise UsageError("which topic? --topic")
        if values is not None and values.form == "registry" and len(self._topics) > 1 and not values.subject:
            raise UsageError("--values registry of several topics needs --subject: its schema is that of all of them")
        self._form = form
        self._table = table
        self._org = org
        self._values = values

    @property
    def query_name(self) -> str:
        """One query a choice of topics, and form."""
        names = self._topics[0]
        if len(self._topics) > 1:
            digest = sha256(",".join(self._topics).encode()).hexdigest()[:8]
            names = f"{len(self._topics)}-topics-{digest}"
        return f"decode-{names}-{self._form}{'-upsert' if self._upsert else ''}"

    def table(self, context: JobContext) -> str:
        """Where the table is. Raises UsageError."""
        if self._table:
            return self._table
        if self._form == "iceberg":
            raise UsageError("which table? --table catalog.namespace.table")
        if not context.settings.archive.path or len(self._topics) > 1:
            raise UsageError(
                "where is the table? archive.path in the settings, or --table; several topics need --table"
            )
        return below(context.settings.archive.path, f"{'state' if self._upsert else 'table'}/{self._topics[0]}")

    def plan(self, context: JobContext) -> list[dict[str, object]]:
        """What there is to read, less what a Delta table has already."""
        path = self.table(context)
        rows = list[dict[str, object]]()
        for topic in self._found(context):
            access = access_to(context.settings, self._org, topic.name)
            known = self._known(topic, path)
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
        """The topics, the table's folder, the schema of values."""
        self._found(context)
        if self._values is not None:
            self._values.check(context.settings, self._topics)
        self.table(context)
        if self._form == "iceberg":
            self._iceberg(self.table(context)).table()
        elif self._table:
            check_writable("--table", self._table)
        else:
            check_writable("archive.path", context.settings.archive.path)

    def start(self, context: JobContext) -> StreamingQuery:
        """Start the query; a Delta table without a checkpoint is continued at its end. Raises UsageError."""
        topics, path = self._found(context), self.table(context)
        if self._form != "iceberg":
            check(path, self._form, str(context.checkpoint), None if self._upsert else self._partitioning.names)
        rows = (
            context.spark.readStream.format("tidegate")
            .options(**topic_options(context.settings, self._org))
            .option("subscribe", ",".join(self._topics))
            .option("includeHeaders", "true")
            .option("startingOffsets", self._starting(topics, path))
            .option("maxBytesPerTrigger", context.settings.source.max_bytes_per_trigger)
            .option("isolation", "read_committed" if self._upsert else context.settings.source.isolation)
            .load()
        )
        if self._values is not None:
            known = self._value_type(path)
            rows = with_values(rows, self._values, ValueTarget(context.settings, topics, self._org), known)
        self._check_types(path, rows)
        ids = topic_ids({topic.name: topic.topic_id for topic in topics})
        if self._form == "iceberg":
            writing = rows.writeStream.format("tidegate-iceberg").option("topicId", ids)
            writing = writing.option("table", path).option("partitionBy", self._partition_by or "")
            writing = writing.option("upsert", self._upsert)
        elif self._form == "delta":
            writing = rows.writeStream.format("tidegate-delta").option("topicId", ids)
            writing = writing.option("upsert", self._upsert).option("partitionBy", self._partition_by or "")
        else:
            context.spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
            rows, names = self._partitioning.in_spark(rows), self._partitioning.names
            writing = rows.writeStream.format("parquet").partitionBy(*names)
        return (
            (writing if self._form == "iceberg" else writing.option("path", path))
            .option("checkpointLocation", str(context.checkpoint))
            .queryName(self.query_name)
            .trigger(**context.trigger)
            .start()
        )

    def observed(self, counts: Mapping[str, int]) -> dict[str, object]:
        """Records whose values could not be decoded, and of JSON those with fields that the table has not."""
        if not counts:
            return {}
        unknown = {UNKNOWN_FIELDS: counts[UNKNOWN_FIELDS]} if counts.get(UNKNOWN_FIELDS) else {}
        return {"dead_letters": dead_letter_count(counts), **unknown}

    def finish(self, context: JobContext) -> dict[str, object]:
        """Where the table is, and how large."""
        path = self.table(context)
        if self._form == "iceberg":
            from tidegate_pipeline.tables.iceberg_table import figures

            return figures(path)
        found = files(path) if form_of(path) else []
        return {"table": path, "files": len(found), "file_bytes": sum(file.size for file in found)}

    def _iceberg(self, name: str, topic_id: str = "") -> IcebergPlan:
        from tidegate_pipeline.tables.iceberg_table import IcebergPlan

        return IcebergPlan(name, topic_id, partition_by=self._partition_by or BY_DAY)

    def _known(self, topic: Topic, path: str) -> dict[int, int]:
        """The next offset of each partition, where the table knows it."""
        if self._form == "iceberg":
            return self._iceberg(path, topic.topic_id).offsets(topic.name, range(topic.partition_count))
        return next_offsets(path, topic) if self._form == "delta" else {}

    def _value_type(self, path: str) -> pa.DataType | None:
        if self._form == "iceberg":
            return self._iceberg(path).value_type()
        return value_type(path, self._form)

    def _check_types(self, path: str, rows: DataFrame) -> None:
        """That a Parquet table's values stay of their types; the other sinks compare theirs. Raises UsageError."""
        known = value_type(path, self._form) if self._form == "parquet" else None
        if known is not None:
            from pyspark.sql.pandas.types import to_arrow_type

            check_types(path, known, to_arrow_type(rows.schema["value"].dataType, timezone="UTC"), "value")

    def _found(self, context: JobContext) -> list[Topic]:
        prefix = context.settings.redis.key_prefix
        return [find_topic(context.client, prefix, self._org, name) for name in self._topics]

    def _starting(self, topics: Sequence[Topic], path: str) -> str:
        """For a query that never ran: where the table ends, else the beginning."""
        offsets = dict[str, dict[str, int]]()
        for topic in topics:
            known = self._known(topic, path)
            offsets[topic.name] = {
                str(partition): known.get(partition, EARLIEST) for partition in range(topic.partition_count)
            }
        return json.dumps(offsets)
