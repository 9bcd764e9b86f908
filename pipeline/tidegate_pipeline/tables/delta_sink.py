"""`format("tidegate-delta")`: every decoded row, or the newest of each key, in a Delta table."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.format_options import FormatOptions
from tidegate_pipeline.spark_errors import reports_one_line
from tidegate_pipeline.tables.columns import columns_of
from tidegate_pipeline.tables.delta import DeltaPlan, DeltaWriter
from tidegate_pipeline.tables.delta_upserts import DeltaStatePlan, DeltaStateWriter
from tidegate_pipeline.tables.partition_fields import BY_DAY


@reports_one_line
class DeltaSink(DataSource):
    """Options: `path`, the table's folder or URI; `topicId`; `partitionBy`; `upsert`: the newest row of each key only,
    not partitioned."""

    @classmethod
    def name(cls) -> str:
        """As `format` takes it."""
        return "tidegate-delta"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """For one query. Raises UsageError."""
        columns = columns_of(schema, "tidegate-delta")
        options = FormatOptions("tidegate-delta", ("path", "topicId", "partitionBy", "upsert"), self.options)
        path, topic_id = options.required_text("path"), options.required_text("topicId")
        partition_by = options.optional_text("partitionBy")
        if options.flag("upsert", False):
            if partition_by is not None:
                raise UsageError("partitionBy is for tables of all records: upsert=true makes one without partitions")
            return DeltaStateWriter(DeltaStatePlan(path, topic_id, columns))
        plan = DeltaPlan(path, topic_id, columns, partition_by or BY_DAY)
        plan.check_partitioning()
        return DeltaWriter(plan)
