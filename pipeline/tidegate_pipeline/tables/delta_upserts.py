"""The current state of a compacted topic as a Delta table: a row a key, the newest; a tombstone removes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from tidegate_pipeline.archive.segment_writer import ArchiveFolder
from tidegate_pipeline.errors import ArchiveConflict, UsageError
from tidegate_pipeline.spark_errors import reports_one_line
from tidegate_pipeline.tables import upserts
from tidegate_pipeline.tables.delta import DeltaPlan
from tidegate_pipeline.tables.upserts import Staged, StagingTask


@dataclass(frozen=True, slots=True)
class DeltaStatePlan(DeltaPlan):
    """A table without partitions: a key's rows of several days replace each other."""

    @property
    def table_columns(self) -> pa.Schema:
        """Those of the rows."""
        return self.columns

    def create(self) -> DeltaTable:
        """An empty one, or what another query just made."""
        return DeltaTable.create(self.path, self.table_columns, mode="ignore")

    def evolved(self, table: DeltaTable) -> DeltaTable:
        """As of any table. Raises UsageError for one of all records."""
        if table.metadata().partition_columns:
            raise UsageError(f"{self.path} is a table of all records: choose another for the newest of each key")
        return DeltaPlan.evolved(self, table)


@reports_one_line
class DeltaStateWriter(DataSourceStreamArrowWriter):
    """Pickled into tasks; keeps nothing between micro-batches."""

    def __init__(self, plan: DeltaStatePlan) -> None:
        """Raises UsageError."""
        upserts.check_columns(plan.columns, "tidegate-delta")
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """One task's rows, the newest of each key."""
        table = self._plan.table()

        def last_offset(topic: str, partition: int) -> int:
            found = table.transaction_version(self._plan.transaction(topic, partition)) if table else None
            return -1 if found is None else int(found)

        return StagingTask(self._folder(), "", self._plan.columns, last_offset).run(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """One version of the table. Raises ArchiveConflict where another query wrote the same offsets."""
        ranges = upserts.ranges_of(messages)
        if not ranges:
            return
        plan, folder = self._plan, self._folder()
        rows = upserts.of_commit(folder, messages, plan.columns)
        table = plan.evolved(plan.table() or plan.create())
        properties = CommitProperties(app_transactions=plan.advanced(table, ranges))
        try:
            (
                table.merge(
                    rows, "t.partition = s.partition AND t.topic = s.topic AND t.key = s.key",
                    source_alias="s", target_alias="t", commit_properties=properties,
                )
                .when_matched_delete("s.value IS NULL")
                .when_matched_update_all()
                .when_not_matched_insert_all("s.value IS NOT NULL")
                .execute()
            )  # fmt: skip
        except DeltaError as error:
            raise ArchiveConflict(f"{plan.path}: another query writes this table: {error}") from error
        plan.sync()
        upserts.remove(folder, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Files that tasks wrote are not needed."""
        upserts.remove(self._folder(), messages)

    def _folder(self) -> ArchiveFolder:
        return ArchiveFolder.open(self._plan.path)
