"""The current state of a compacted topic as an Iceberg table: a row a key, the newest; a tombstone removes it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import And, BooleanExpression, EqualTo, In, Or
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from tidegate_pipeline.archive.segment_writer import ArchiveFolder
from tidegate_pipeline.spark_errors import reports_one_line
from tidegate_pipeline.tables import upserts
from tidegate_pipeline.tables.iceberg_table import IcebergPlan
from tidegate_pipeline.tables.upserts import Staged, StagingTask

if TYPE_CHECKING:
    from pyiceberg.table import Table, Transaction


@reports_one_line
class IcebergStateWriter(DataSourceStreamArrowWriter):
    """Pickled into tasks; keeps nothing between micro-batches."""

    def __init__(self, plan: IcebergPlan) -> None:
        """Raises UsageError."""
        upserts.check_columns(plan.columns, "tidegate-iceberg")
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """One task's rows, the newest of each key."""
        plan = self._plan
        table = plan.table() or plan.prepared()
        there: dict[str, dict[int, int]] = {}

        def last_offset(topic: str, partition: int) -> int:
            if topic not in there:
                there[topic] = plan.last_offsets(table, topic)
            return there[topic].get(partition, -1)

        return StagingTask(ArchiveFolder.open(table.location()), "data/", plan.columns, last_offset).run(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """One version of the table. Raises ArchiveConflict where another query wrote the same offsets."""
        ranges = upserts.ranges_of(messages)
        if not ranges:
            return
        table = self._plan.table() or self._plan.prepared()
        folder = ArchiveFolder.open(table.location())
        rows = upserts.of_commit(folder, messages, self._plan.columns)
        known = schema_to_pyarrow(table.schema(), include_field_ids=False)
        present = rows.filter(pc.is_valid(rows["value"])).cast(
            pa.schema([known.field(name) for name in self._plan.columns.names])
        )
        replaced = _same_keys(rows)
        summary = {"tidegate.batch-id": str(batchId)}

        def change(transaction: Transaction) -> None:
            if transaction.table_metadata.current_snapshot_id is not None:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "Delete operation did not match any records")
                    transaction.delete(replaced, snapshot_properties=summary)
            if len(present):
                transaction.append(present, snapshot_properties=summary)

        self._plan.commit(ranges, change)
        upserts.remove(folder, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Files that tasks wrote are not needed."""
        table: Table | None = self._plan.table()
        if table is not None:
            upserts.remove(ArchiveFolder.open(table.location()), messages)


def _same_keys(rows: pa.Table) -> BooleanExpression:
    """Rows of a table that have the key of one of these."""
    places = rows.select(("topic", "partition")).group_by(["topic", "partition"]).aggregate([]).to_pylist()
    conditions: list[BooleanExpression] = []
    for place in places:
        here = pc.and_(pc.equal(rows["topic"], place["topic"]), pc.equal(rows["partition"], place["partition"]))
        keys = In("key", rows.filter(here)["key"].to_pylist())
        conditions.append(And(EqualTo("topic", place["topic"]), EqualTo("partition", place["partition"]), keys))
    return reduce(Or, conditions)
