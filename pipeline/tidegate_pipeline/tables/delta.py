"""Decoded rows into a Delta table, each record once, without a jar.

Tasks write Parquet files; the driver commits those of a micro-batch all at once, with an application transaction for
each topic partition: its version is the last offset that the table has. So a micro-batch that runs again adds nothing,
also when the checkpoint was lost and micro-batches are counted from 0 again. Files of failed tasks are in no version of
the table; `compact` and `maintain` remove them.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from tidegate_pipeline.archive.segment_writer import ArchiveFolder
from tidegate_pipeline.decode.schema import DECODED_ARROW
from tidegate_pipeline.errors import ArchiveConflict, PipelineError, UsageError
from tidegate_pipeline.spark_errors import reports_one_line
from tidegate_pipeline.tables.columns import check_types
from tidegate_pipeline.tables.partition_fields import BY_DAY, NULL, PartitionColumns, as_text, partitioned_otherwise
from tidegate_pipeline.tables.topic_ids import id_of_topic

STATISTICS: Final = ("partition", "offset")
"""The columns with minimum and maximum in each file's entry of the log."""
ROW_GROUP_BYTES: Final = 32 << 20
FILE_BYTES_MAX: Final = 512 << 20
HELD_BYTES_MAX: Final = 128 << 20
"""Rows in a task's memory, in all files that it writes."""
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]")
_FOLDER_MAX: Final = 64
"""Characters of a value in the name of a folder."""

Place = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True)
class DeltaPlan:
    """Where rows go, and whose they are. `topic_id` in hex, or JSON, topic -> id: a topic made again is another one."""

    path: str
    topic_id: str
    columns: pa.Schema = DECODED_ARROW
    partition_by: str = BY_DAY

    @property
    def partitioning(self) -> PartitionColumns:
        """Raises UsageError."""
        return PartitionColumns.parse(self.partition_by)

    @property
    def table_columns(self) -> pa.Schema:
        """Those of the rows, and those that partition columns are. Raises UsageError."""
        return self.partitioning.of_table(self.columns)

    def transaction(self, topic: str, partition: int) -> str:
        """The application id under which the table knows how far a partition is."""
        return f"tidegate/{topic}/{id_of_topic(self.topic_id, topic)}/{partition}"

    def table(self) -> DeltaTable | None:
        """Its newest version, if there is one."""
        return DeltaTable(self.path) if DeltaTable.is_deltatable(self.path) else None

    def create(self) -> DeltaTable:
        """An empty one, or what another query just made."""
        return DeltaTable.create(self.path, self.table_columns, mode="ignore", partition_by=self.partitioning.names)

    def check_partitioning(self) -> None:
        """That a table that is there is partitioned so. Raises UsageError."""
        self.partitioning.of_table(self.columns)
        names, table = self.partitioning.names, self.table()
        there = names if table is None else table.metadata().partition_columns
        if there != names:
            raise partitioned_otherwise(self.path, there, names)

    def evolved(self, table: DeltaTable) -> DeltaTable:
        """The table with the columns and nested fields that rows have and it has not. Raises UsageError."""
        known, rows = (pa.struct(list(columns)) for columns in (pa.schema(table.schema()), self.table_columns))
        check_types(self.path, known, rows)
        if not _has_more(known, rows):
            return table
        try:
            write_deltalake(self.path, self.table_columns.empty_table(), mode="append", schema_mode="merge")
        except DeltaError as error:
            raise UsageError(f"{self.path}: its columns cannot become those of the rows: {error}") from error
        return DeltaTable(self.path)

    def offsets(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """The next offset of each partition of which the table has anything."""
        table = self.table()
        found = {p: table.transaction_version(self.transaction(topic, p)) for p in partitions} if table else {}
        return {partition: last + 1 for partition, last in found.items() if last is not None}

    def advanced(self, table: DeltaTable, ranges: Mapping[Place, tuple[int, int]]) -> list[Transaction]:
        """What records the last offsets of a micro-batch. Raises ArchiveConflict where the table has them."""
        transactions = []
        for (topic, partition), (first, last) in sorted(ranges.items()):
            name = self.transaction(topic, partition)
            there = table.transaction_version(name)
            if there is not None and first <= there:
                raise ArchiveConflict(
                    f"{topic}/{partition}: offsets {first} to {last} go across {there}, which {self.path} has:"
                    " another query writes this table"
                )
            transactions.append(Transaction(name, last))
        return transactions

    def sync(self) -> None:
        """The newest version's entry in the log: deltalake leaves that to the system."""
        table, folder = self.table(), ArchiveFolder.open(self.path)
        if table is not None and folder.is_local:
            folder.sync(folder.path(f"_delta_log/{table.version():020d}.json"))


@dataclass(frozen=True, slots=True)
class Added:
    """A file below the table's folder, with the rows of one partition of the table."""

    path: str
    size: int
    values: Mapping[str, str | None]
    rows: int
    least: Mapping[str, Any]
    most: Mapping[str, Any]

    def action(self, now_ms: int) -> AddAction:
        """As the table's log has it."""
        stats = {"numRecords": self.rows, "minValues": dict(self.least), "maxValues": dict(self.most)}
        return AddAction(self.path, self.size, dict(self.values), now_ms, True, json.dumps(stats))


@dataclass(frozen=True, slots=True)
class Tabled(WriterCommitMessage):
    """What a task wrote: files, and for each (topic, partition) its first and last offset."""

    files: tuple[Added, ...]
    ranges: Mapping[Place, tuple[int, int]]


@reports_one_line
class DeltaWriter(DataSourceStreamArrowWriter):
    """Pickled into tasks; keeps nothing between micro-batches."""

    def __init__(self, plan: DeltaPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Tabled:
        """One task's rows to files of their partitions, those left out that the table has."""
        return _Task(self._plan).run(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """One version of the table. Raises ArchiveConflict where another query wrote the same offsets."""
        tabled = [message for message in messages if isinstance(message, Tabled)]
        actions: list[AddAction | RemoveAction] = [
            file.action(int(time.time() * 1000)) for message in tabled for file in message.files
        ]
        if not actions:
            return
        self._check_files(file.path for message in tabled for file in message.files)
        table = self._plan.evolved(self._plan.table() or self._plan.create())
        properties = CommitProperties(app_transactions=self._plan.advanced(table, _joined(tabled)))
        try:
            table.create_write_transaction(
                actions, "append", self._plan.table_columns, self._plan.partitioning.names,
                commit_properties=properties,
            )  # fmt: skip
        except DeltaError as error:
            raise ArchiveConflict(f"{self._plan.path}: another query writes this table: {error}") from error
        self._plan.sync()

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: files that no version names do not count."""

    def _check_files(self, paths: Iterable[str]) -> None:
        """Of a micro-batch that slept for longer than `table-compact` keeps such files, none may be left."""
        folder = ArchiveFolder.open(self._plan.path)
        infos = folder.filesystem.get_file_info([folder.path(path) for path in paths])
        gone = [info.path for info in infos if info.type != fs.FileType.File]
        if gone:
            raise PipelineError(f"{gone[0]}: it is gone before it was committed, and {len(gone) - 1} more: start again")


def _has_more(known: pa.DataType, rows: pa.DataType) -> bool:
    """Whether rows have a field, at any depth, that the table has not."""
    if pa.types.is_list(rows):
        return _has_more(known.value_type, rows.value_type)
    if pa.types.is_map(rows):
        return _has_more(known.item_type, rows.item_type)
    if not pa.types.is_struct(rows):
        return False
    types = {field.name: field.type for field in known}
    return any(field.name not in types or _has_more(types[field.name], field.type) for field in rows)


def _joined(tabled: Iterable[Tabled]) -> dict[Place, tuple[int, int]]:
    """The offsets of a micro-batch; several tasks may have had a partition."""
    ranges: dict[Place, tuple[int, int]] = {}
    for message in tabled:
        for place, (first, last) in message.ranges.items():
            known_first, known_last = ranges.get(place, (first, last))
            ranges[place] = (min(first, known_first), max(last, known_last))
    return ranges


class _Task:
    """One task's rows, on their way into files."""

    def __init__(self, plan: DeltaPlan) -> None:
        self._plan = plan
        self._table = plan.table()
        self._folder = ArchiveFolder.open(plan.path)
        self._there: dict[Place, int] = {}
        self._ranges: dict[Place, tuple[int, int]] = {}
        self._partitioning = plan.partitioning
        self._open: dict[tuple[str | None, ...], _PartitionFile] = {}
        self._files: list[Added] = []

    def run(self, iterator: Iterator[pa.RecordBatch]) -> Tabled:
        """Every row that the table has not."""
        for batch in iterator:
            rows = pa.Table.from_batches([batch]).cast(self._plan.columns)
            for topic in pc.unique(rows["topic"]).to_pylist():
                of_topic = rows.filter(pc.equal(rows["topic"], topic))
                for partition in pc.unique(of_topic["partition"]).to_pylist():
                    self._take((topic, partition), of_topic.filter(pc.equal(of_topic["partition"], partition)))
        self._files += [file.close() for file in self._open.values()]
        return Tabled(tuple(self._files), self._ranges)

    def _take(self, place: Place, rows: pa.Table) -> None:
        if place not in self._there:
            there = self._table.transaction_version(self._plan.transaction(*place)) if self._table else None
            self._there[place] = -1 if there is None else there
        rows = rows.filter(pc.greater(rows["offset"], self._there[place]))
        if not len(rows):
            return
        first, last = pc.min_max(rows["offset"]).as_py().values()
        self._ranges[place] = (self._ranges.get(place, (first, last))[0], last)
        values = self._partitioning.values(rows)
        distinct = values.group_by(values.column_names).aggregate([]).to_pylist()
        for chosen in distinct:
            self._write(chosen, rows.filter(_equal(values, chosen)) if len(distinct) > 1 else rows)
        while sum(file.held_bytes for file in self._open.values()) > HELD_BYTES_MAX:
            max(self._open.values(), key=lambda file: file.held_bytes).flush()

    def _write(self, partition: Mapping[str, Any], rows: pa.Table) -> None:
        texts = {name: as_text(partition[name]) for name in self._partitioning.names}
        place = tuple(texts.values())
        if place not in self._open:
            columns = self._partitioning.in_files(self._plan.columns)
            self._open[place] = _PartitionFile(self._folder, texts, columns)
        file = self._open[place]
        file.add(rows)
        if file.size >= FILE_BYTES_MAX:
            self._files.append(self._open.pop(place).close())


def _equal(values: pa.Table, chosen: Mapping[str, Any]) -> pa.ChunkedArray:
    """Which rows have these values, null among them."""
    found = None
    for name, value in chosen.items():
        column = values[name]
        same = (
            pc.is_null(column)
            if value is None
            else pc.fill_null(pc.equal(column, pa.scalar(value, column.type)), False)
        )
        found = same if found is None else pc.and_(found, same)
    return found


class _PartitionFile:
    """A file of one partition's rows that grows by row groups; `size` is that of all its rows in memory."""

    def __init__(self, folder: ArchiveFolder, values: Mapping[str, str | None], columns: pa.Schema) -> None:
        self._folder = folder
        self._values = values
        self._columns = columns
        self._name = f"{_below(values)}/{secrets.token_hex(16)}.parquet"
        path = folder.path(self._name)
        if folder.is_local:
            folder.filesystem.create_dir(path.rpartition("/")[0])
        self._writer = pq.ParquetWriter(path, columns, filesystem=folder.filesystem, compression="zstd")
        self._held: list[pa.Table] = []
        self.held_bytes = self.size = self._rows = 0
        self._least: dict[str, Any] = {}
        self._most: dict[str, Any] = {}

    def add(self, rows: pa.Table) -> None:
        """Rows of the partition."""
        rows = rows.select(self._columns.names)
        self._held.append(rows)
        self.held_bytes += rows.nbytes
        self.size += rows.nbytes
        self._rows += len(rows)
        for name in STATISTICS:
            if name not in self._columns.names:
                continue
            least, most = pc.min_max(rows[name]).as_py().values()
            self._least[name] = min(least, self._least.get(name, least))
            self._most[name] = max(most, self._most.get(name, most))
        if self.held_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def close(self) -> Added:
        """The whole file, on the disk: what is committed is not read again."""
        self.flush()
        self._writer.close()
        self._folder.sync(self._folder.path(self._name))
        size = self._folder.filesystem.get_file_info(self._folder.path(self._name)).size
        return Added(self._name, size, self._values, self._rows, self._least, self._most)

    def flush(self) -> None:
        """A row group of the rows that are held."""
        if self._held:
            self._writer.write_table(pa.concat_tables(self._held))
            self._held, self.held_bytes = [], 0


def _below(values: Mapping[str, str | None]) -> str:
    """A partition's folder. For people: what counts are the values in the table's log."""
    named = {name: NULL if value is None else _UNSAFE.sub("_", value)[:_FOLDER_MAX] for name, value in values.items()}
    return "/".join(f"{name}={value}" for name, value in named.items())
