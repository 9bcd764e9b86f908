"""`format("tidegate-iceberg")`: decoded rows into an Iceberg table by pyiceberg, each record once, without a jar.

Tasks write data files; the driver commits those of a micro-batch in one snapshot, see `iceberg_table`. Files of failed
tasks are in no snapshot; `maintain` removes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import _dataframe_to_data_files, schema_to_pyarrow
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tidegate_pipeline.format_options import FormatOptions
from tidegate_pipeline.spark_errors import reports_one_line
from tidegate_pipeline.tables.columns import columns_of
from tidegate_pipeline.tables.iceberg_table import STATE_PARTITION_BY, IcebergPlan, Place
from tidegate_pipeline.tables.partition_fields import BY_DAY

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction

HELD_BYTES_MAX: Final = 128 << 20
"""Rows in a task's memory, from which on they become files."""


@dataclass(frozen=True, slots=True)
class WrittenFiles(WriterCommitMessage):
    """What a task wrote: files, and for each (topic, partition) its first and last offset."""

    files: tuple[DataFile, ...]
    ranges: Mapping[Place, tuple[int, int]]


@reports_one_line
class IcebergSink(DataSource):
    """Options: `table` (catalog.namespace.table), `topicId` in hex, `partitionBy`; `upsert`: the newest row of each key
    only."""

    @classmethod
    def name(cls) -> str:
        """As `format` takes it."""
        return "tidegate-iceberg"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """For one micro-batch: the table is made, or gets the columns that it lacks. Raises UsageError."""
        options = FormatOptions(self.name(), ("table", "topicId", "partitionBy", "upsert"), self.options)
        is_upsert = options.flag("upsert", False)
        plan = IcebergPlan(
            options.required_text("table"),
            options.required_text("topicId"),
            columns_of(schema, self.name()),
            options.text("partitionBy", STATE_PARTITION_BY if is_upsert else BY_DAY),
            is_upsert,
        )
        plan.prepared()
        if is_upsert:
            from tidegate_pipeline.tables.iceberg_upserts import IcebergStateWriter

            return IcebergStateWriter(plan)
        return IcebergWriter(plan)


@reports_one_line
class IcebergWriter(DataSourceStreamArrowWriter):
    """Pickled into tasks; keeps nothing between micro-batches."""

    def __init__(self, plan: IcebergPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        """One task's rows to files, those left out that the table has."""
        return _Task(self._plan).run(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """One snapshot of the table. Raises ArchiveConflict where another query wrote the same offsets."""
        written = [message for message in messages if isinstance(message, WrittenFiles)]
        files = [file for message in written for file in message.files]
        if not files:
            return

        def append_files(transaction: Transaction) -> None:
            summary = {"tidegate.batch-id": str(batchId)}
            with transaction.update_snapshot(snapshot_properties=summary).fast_append() as append:
                for file in files:
                    append.append_data_file(file)

        self._plan.commit(_joined(written), append_files)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: files that no snapshot names do not count."""


def _joined(written: Sequence[WrittenFiles]) -> dict[Place, tuple[int, int]]:
    ranges: dict[Place, tuple[int, int]] = {}
    for message in written:
        for place, (first, last) in message.ranges.items():
            known = ranges.get(place, (first, last))
            ranges[place] = min(first, known[0]), max(last, known[1])
    return ranges


class _Task:
    """One task's rows, on their way into files."""

    def __init__(self, plan: IcebergPlan) -> None:
        self._plan = plan
        self._table: Table = plan.table() or plan.prepared()
        table_columns = schema_to_pyarrow(self._table.schema(), include_field_ids=False)
        self._columns = pa.schema([table_columns.field(name) for name in plan.columns.names])
        """As the table has them: rows may lack fields of structs that older ones had."""
        self._there: dict[str, dict[int, int]] = {}
        self._ranges: dict[Place, tuple[int, int]] = {}
        self._held: list[pa.Table] = []
        self._files: list[DataFile] = []

    def run(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        """Every row that the table has not."""
        for batch in iterator:
            rows = pa.Table.from_batches([batch]).select(self._plan.columns.names).cast(self._plan.columns)
            for topic in pc.unique(rows["topic"]).to_pylist():
                of_topic = rows.filter(pc.equal(rows["topic"], topic))
                for partition in pc.unique(of_topic["partition"]).to_pylist():
                    self._take((topic, partition), of_topic.filter(pc.equal(of_topic["partition"], partition)))
            if sum(table.nbytes for table in self._held) >= HELD_BYTES_MAX:
                self._flush()
        self._flush()
        return WrittenFiles(tuple(self._files), self._ranges)

    def _take(self, place: Place, rows: pa.Table) -> None:
        topic, partition = place
        if topic not in self._there:
            self._there[topic] = self._plan.last_offsets(self._table, topic)
        rows = rows.filter(pc.greater(rows["offset"], self._there[topic].get(partition, -1)))
        if len(rows):
            first, last = pc.min_max(rows["offset"]).as_py().values()
            self._ranges[place] = (self._ranges.get(place, (first, last))[0], last)
            self._held.append(rows)

    def _flush(self) -> None:
        if self._held:
            rows = pa.concat_tables(self._held).cast(self._columns)
            self._files += _dataframe_to_data_files(self._table.metadata, rows, self._table.io)
            self._held = []
