"""`format("tidegate")`: topics, for batch queries and streams.

Spark starts a process for each query that asks for the schema alone: readers and writers, with the clients of Redis and
of brokers, are imported where they are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from tidegate_pipeline.sources.options import TopicOptions, parse_options, schema_of
from tidegate_pipeline.sources.sql_table import check_no_insert, table_options, with_table_options
from tidegate_pipeline.spark_errors import reports_one_line
from tidegate_pipeline.worker_heap import freeze_gc

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@reports_one_line
class TopicSource(DataSource):
    """Records or stored batches of topics."""

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "tidegate"

    def schema(self) -> StructType:
        """The columns of the mode. Raises UsageError."""
        freeze_gc()
        return with_table_options(schema_of(self._options()), dict(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """For batch queries."""
        from tidegate_pipeline.sources.topic_readers import FilteringBatchReader, TopicBatchReader

        options = self._options(schema)
        return (FilteringBatchReader if options.push_filters else TopicBatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For streams."""
        from tidegate_pipeline.sources.topic_readers import TopicStreamReader

        return TopicStreamReader(self._options(schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For `df.write`. Raises UsageError."""
        from tidegate_pipeline.sinks.sink_options import parse_sink_options
        from tidegate_pipeline.sinks.topic_writer import TopicWriter

        check_no_insert(schema, self.options)
        return TopicWriter(parse_sink_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """For `writeStream`. Raises UsageError."""
        from tidegate_pipeline.sinks.sink_options import parse_sink_options
        from tidegate_pipeline.sinks.topic_writer import TopicStreamWriter

        return TopicStreamWriter(parse_sink_options(self.options), schema, overwrite)

    def _options(self, schema: StructType | None = None) -> TopicOptions:
        of_table = table_options(schema) if schema is not None else {}
        return parse_options({**_lowered(of_table), **_lowered(self.options)})


def _lowered(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}
