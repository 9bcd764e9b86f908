"""`format("tidegate")`: topics, for batch queries and streams.

Spark keeps a stream's reader in one helper process beside the driver, and reads in tasks from pickled copies of it:
nothing that `latestOffset` remembers is there when a range is planned again after a restart, or read.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tidegate_pipeline.decode.schema import RANGES_ARROW, decoded_schema, ranges_schema, raw_schema
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.sources import starting
from tidegate_pipeline.sources.access import Access
from tidegate_pipeline.sources.batch_plan import plan_ranges
from tidegate_pipeline.sources.filters import Pushed
from tidegate_pipeline.sources.offset_ranges import PartitionRange
from tidegate_pipeline.sources.offsets import Offsets
from tidegate_pipeline.sources.options import TopicOptions, parse_options
from tidegate_pipeline.sources.planning import PlannedRange, covered_ranges
from tidegate_pipeline.sources.stream_plan import StreamPlan
from tidegate_pipeline.worker_heap import freeze_gc


@dataclass(frozen=True)
class Task(InputPartition):
    """One range as Spark hands it to a task, and what is read together with it."""

    range: PlannedRange
    together: tuple[PartitionRange, ...]


def _tasks(ranges: Sequence[PlannedRange]) -> list[Task]:
    together = covered_ranges(ranges)
    return [Task(range_, together) for range_ in ranges]


class TopicSource(DataSource):
    """Records or stored batches of topics."""

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "tidegate"

    def schema(self) -> StructType:
        """The columns of the mode. Raises UsageError."""
        freeze_gc()
        return _schema(self._options())

    def reader(self, schema: StructType) -> DataSourceReader:
        """For batch queries."""
        return TopicBatchReader(self._options(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For streams."""
        return TopicStreamReader(self._options(), schema)

    def _options(self) -> TopicOptions:
        return parse_options(dict(self.options))


def _schema(options: TopicOptions) -> StructType:
    if options.mode == "ranges":
        return ranges_schema()
    if options.mode == "raw":
        return raw_schema(options.include_range)
    return decoded_schema(options.include_headers)


class _RangeReader:
    """What batch queries and streams share: options, the connection of the process, and the reading of a range."""

    def __init__(self, options: TopicOptions, schema: StructType) -> None:
        if schema != _schema(options):
            raise UsageError("the schema of tidegate is fixed by mode, includeHeaders and includeRange")
        self._options = options
        self._access = Access(options)
        self._arrow_schema = _arrow_schema(schema)
        freeze_gc()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range, each Arrow batch with exactly the declared schema. Runs in a task."""
        if not isinstance(partition, Task):
            return  # Spark's stand-in where nothing was planned
        if self._options.mode == "ranges":
            yield _unread(self._options, partition)
            return
        from tidegate_pipeline.sources.tasks import (
            arrow_rows,  # decodes: planning, a process of its own each time, does not
        )

        access = Access(self._options)
        try:
            for batch in arrow_rows(access, partition.range, partition.together):
                yield batch.cast(self._arrow_schema)
        finally:
            access.close()
            freeze_gc()


def _unread(options: TopicOptions, task: Task) -> pa.RecordBatch:
    """What a sink needs to read a task's raw rows, without holes, where it writes them."""
    raw = options.model_copy(update={"mode": "raw", "include_range": True})
    row = pickle.dumps((raw, task.range, task.together))
    return pa.RecordBatch.from_pylist([{"range": row}], schema=RANGES_ARROW)


def _arrow_schema(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


class TopicBatchReader(_RangeReader, DataSourceReader):
    """One query over a range that is fixed when it is planned."""

    def __init__(self, options: TopicOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._pushed = Pushed()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Use filters on topic, partition, offset and time; gives back what Spark is to evaluate.

        Only where the option says so: Spark 4.3 keeps one plan for all queries of a DataFrame (decision 0021).
        """
        return list(self._pushed.take(filters, self._options.mode)) if self._options.push_filters else filters

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks."""
        return _tasks(plan_ranges(self._access, self._pushed))


class TopicStreamReader(_RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: micro-batches of ranges that follow each other."""

    def __init__(self, options: TopicOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.ending_offsets is not None:
            raise UsageError("endingOffsets is for batch queries; a stream ends with the trigger availableNow")
        self._plan = StreamPlan(self._access)

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins."""
        return starting.initial_offsets(self._access, "latest").to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """In records or in bytes, by the options."""
        if self._options.bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.bytes_per_trigger)
        return ReadMaxRows(self._options.offsets_per_trigger or 0)

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is all that the query will read."""
        self._plan.fix_target()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next micro-batch ends."""
        most, by_records = None, False
        if isinstance(limit, ReadMaxRows):
            most, by_records = limit.max_rows, True
        elif isinstance(limit, ReadMaxBytes):
            most = limit.max_bytes
        elif not isinstance(limit, ReadAllAvailable):
            raise UsageError(f"{type(limit).__name__} is no limit that tidegate knows")
        return self._plan.next_offsets(Offsets.from_json(start), most, by_records).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends of the logs at the last planning, and figures, for the query's progress."""
        return self._plan.progress()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch: from its offsets alone."""
        return _tasks(self._plan.ranges(Offsets.from_json(start), Offsets.from_json(end)))

    def commit(self, end: dict[str, Any]) -> None:
        """A micro-batch ended. Spark may leave this out, so only figures depend on it."""
        self._plan.count_corrupt()

    def stop(self) -> None:
        """End the connection."""
        self._access.close()
