"""The readers of `format("tidegate")`: what batch queries and streams plan, and the tasks that read it.

Spark keeps a stream's reader in one helper process beside the driver, and reads in tasks from pickled copies of it:
nothing that `latestOffset` remembers is there when a range is planned again after a restart, or read.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tidegate_pipeline.decode.schema import RANGES_ARROW
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.sources import starting
from tidegate_pipeline.sources.access import Access
from tidegate_pipeline.sources.batch_plan import appeared, grown, plan_ranges
from tidegate_pipeline.sources.filters import Pushed
from tidegate_pipeline.sources.offsets import Offsets, name_of_micro_batch
from tidegate_pipeline.sources.options import TopicOptions, schema_of
from tidegate_pipeline.sources.planning import PlannedRange, name_of
from tidegate_pipeline.sources.query_ends import remembered
from tidegate_pipeline.sources.splitting import pack
from tidegate_pipeline.sources.sql_table import same_columns
from tidegate_pipeline.sources.stream_plan import StreamPlan
from tidegate_pipeline.sources.tiers import Tier
from tidegate_pipeline.spark_errors import reports_one_line
from tidegate_pipeline.worker_heap import freeze_gc


@dataclass(frozen=True)
class Task(InputPartition):
    """Ranges as Spark hands them to a task, small ones together; `plan` names what all tasks read."""

    ranges: tuple[PlannedRange, ...]
    plan: str
    tails: tuple[int, ...] = ()
    """Of a query up to the latest offsets: which ranges are the last of their partition."""
    number: int = 0
    query: str = ""
    """Of a query up to the latest offsets: which task of which plan it is."""
    known: tuple[tuple[str, int], ...] | None = None
    """Topic ids of all tasks and their numbers of partitions, for the task that looks for new partitions."""


def _tasks(ranges: Sequence[PlannedRange], options: TopicOptions, plan: str) -> list[Task]:
    return [Task(together, plan) for together in pack(ranges, options)]


def _open_ended(tasks: Sequence[Task]) -> list[Task]:
    last: dict[tuple[str, int], tuple[int, int]] = {}
    partition_counts: dict[str, int] = {}
    for at, task in enumerate(tasks):
        for i, range_ in enumerate(task.ranges):
            last[range_.topic_id, range_.partition] = at, i
            partition_counts[range_.topic_id] = max(partition_counts.get(range_.topic_id, 0), range_.partition + 1)
    tails = defaultdict[int, list[int]](list)
    for at, i in last.values():
        tails[at].append(i)
    query = uuid4().hex
    opened = [
        replace(task, tails=tuple(tails[at]), number=at, query=query) for at, task in enumerate(tasks or [Task((), "")])
    ]
    return [*opened[:-1], replace(opened[-1], known=tuple(partition_counts.items()))]


def _late(access: Access, task: Task) -> Iterable[PlannedRange]:
    """What there is behind the plan: the same for all attempts of a task."""
    if not task.tails and task.known is None:
        return ()
    return remembered(access, task.query, task.number, lambda: _found_now(access, task))


def _found_now(access: Access, task: Task) -> Iterator[PlannedRange]:
    if task.tails:
        yield from grown(access, [task.ranges[i] for i in task.tails])
    if task.known is not None:
        yield from appeared(access, dict(task.known))


@reports_one_line
class _RangeReader:
    """What batch queries and streams share: options, the connection of the process, and the reading of a range."""

    def __init__(self, options: TopicOptions, schema: StructType) -> None:
        if not same_columns(schema, schema_of(options)):
            raise UsageError("the schema of tidegate is fixed by mode, includeHeaders and includeRange")
        self._options = options
        self._access = Access(options)
        self._arrow_schema = _arrow_schema(schema_of(options))
        freeze_gc()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task's ranges, each Arrow batch with exactly the declared schema. Runs in a task."""
        if not isinstance(partition, Task):
            return  # Spark's stand-in where nothing was planned
        if self._options.mode == "ranges":
            yield _unread(self._options, partition)
            return
        from tidegate_pipeline.sources.tasks import (
            arrow_rows,  # decodes: planning, a process of its own each time, does not
        )

        access = Access.kept(self._options)
        try:
            late = list(_late(access, partition))
            for range_ in (*partition.ranges, *late):
                if range_.start >= range_.end and range_.tier is not Tier.LOST:
                    continue  # of a topic that was made again nobody knows how much is lost
                for batch in arrow_rows(access, range_, partition.plan):
                    yield batch.cast(self._arrow_schema)
        finally:
            freeze_gc()


def _unread(options: TopicOptions, task: Task) -> pa.RecordBatch:
    """What a sink needs to read a task's raw rows, without holes, where it writes them."""
    raw = options.model_copy(update={"mode": "raw", "include_range": True})
    rows = [{"range": pickle.dumps((raw, range_, task.plan))} for range_ in task.ranges]
    return pa.RecordBatch.from_pylist(rows, schema=RANGES_ARROW)


def _arrow_schema(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


@reports_one_line
class TopicBatchReader(_RangeReader, DataSourceReader):
    """One query over a range that is fixed when it is planned."""

    def __init__(self, options: TopicOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._pushed = Pushed()

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks. Those up to the latest offsets read on to what is the latest when they run: see `Task.tails`."""
        is_open_ended = self._options.is_open_ended
        ranges = plan_ranges(self._access, self._pushed, with_empty=is_open_ended)
        tasks = _tasks(ranges, self._options, name_of(ranges))
        return _open_ended(tasks) if is_open_ended else tasks


@reports_one_line
class FilteringBatchReader(TopicBatchReader):
    """With the option pushFilters only: Spark 4.3 keeps one plan for all queries of a DataFrame (decision 0021).

    Spark refuses a reader with `pushFilters` where `spark.sql.python.filterPushdown.enabled` is not set.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Use filters on topic, partition, offset and time; gives back what Spark is to evaluate."""
        return list(self._pushed.take(filters, self._options.mode))


@reports_one_line
class TopicStreamReader(_RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: micro-batches of ranges that follow each other."""

    def __init__(self, options: TopicOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        ends = (options.ending_offsets, options.ending_timestamp, options.ending_by_timestamp)
        if any(end is not None for end in ends):
            raise UsageError("endingOffsets and the like are for batch queries; a stream ends with availableNow")
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
            raise UsageError(f"{type(limit).__name__} is not a limit that tidegate knows")
        return self._plan.next_offsets(Offsets.from_json(start), most, by_records).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends of the logs at the last planning, and figures, for the query's progress."""
        return self._plan.progress()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch: from its offsets alone."""
        begin, stop = Offsets.from_json(start), Offsets.from_json(end)
        return _tasks(self._plan.ranges(begin, stop), self._options, name_of_micro_batch(begin, stop))

    def commit(self, end: dict[str, Any]) -> None:
        """A micro-batch ended. Spark may leave this out, so only figures depend on it."""
        self._plan.count_corrupt()

    def stop(self) -> None:
        """End the connection."""
        self._access.close()
