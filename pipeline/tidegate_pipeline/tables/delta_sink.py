"""`format("tidegate-delta")`: every decoded row, or the newest of each key, in a Delta table."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from tidegate_pipeline.format_options import FormatOptions
from tidegate_pipeline.tables.columns import columns_of
from tidegate_pipeline.tables.delta import DeltaPlan, DeltaWriter
from tidegate_pipeline.tables.delta_upserts import DeltaStatePlan, DeltaStateWriter


class DeltaSink(DataSource):
    """Options: `path`, the table's folder or URI; `topicId`; `upsert`: the newest row of each key only."""

    @classmethod
    def name(cls) -> str:
        """As `format` takes it."""
        return "tidegate-delta"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """For one query. Raises UsageError."""
        columns = columns_of(schema, "tidegate-delta")
        options = FormatOptions("tidegate-delta", ("path", "topicId", "upsert"), self.options)
        path, topic_id = options.required_text("path"), options.required_text("topicId")
        if options.flag("upsert", False):
            return DeltaStateWriter(DeltaStatePlan(path, topic_id, columns))
        return DeltaWriter(DeltaPlan(path, topic_id, columns))
