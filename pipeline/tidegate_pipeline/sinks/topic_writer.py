"""`df.write.format("tidegate")` and `writeStream.format("tidegate")`: rows become records of topics.

Records go through the brokers, so access rules, validation and limits of topics hold. With `exactly-once` a batch
query's records appear when its job has ended, a micro-batch's once, see `sinks/transactions.py`. With `at-least-once`
they appear at once, and again if a task or a micro-batch runs again.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from tidegate_pipeline.errors import PipelineError, UsageError
from tidegate_pipeline.sinks.sink_options import SinkOptions
from tidegate_pipeline.sinks.sink_rows import check_columns, records_of
from tidegate_pipeline.sinks.task_producer import TaskProducer
from tidegate_pipeline.sinks.transactions import PreparedTransaction, commit_micro_batch, connected
from tidegate_pipeline.spark_errors import reports_one_line

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class RunningTask:
    """What Spark calls the task: its number in the stage, its attempt, and the micro-batch of which query."""

    number: int
    attempt: int
    query_id: str = ""
    batch_id: int = -1


@dataclass(frozen=True)
class TaskTransaction(WriterCommitMessage):
    """What a task wrote: nothing if it had no rows, or if its micro-batch was decided before."""

    query_id: str = ""
    transaction: PreparedTransaction | None = None
    places: frozenset[tuple[str, int]] = frozenset()
    is_decided: bool = False


class _Writer:
    """What both writers share. Pickled into tasks: it has no connection."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        """Raises UsageError."""
        if overwrite:
            raise UsageError("a topic cannot be overwritten: mode is append")
        check_columns(schema, options.topic)
        self._options = options

    def _write(self, iterator: Iterator[pa.RecordBatch], task: RunningTask, name: str) -> TaskTransaction:
        """Produce a task's rows; `name` is that of the query."""
        batches = (batch for batch in iterator if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return TaskTransaction()
        options = self._options
        if task.query_id and options.is_transactional and asyncio.run(self._is_decided(task, name)):
            return TaskTransaction(query_id=task.query_id, is_decided=True)
        transactional_id = f"{name}-{task.number}-{task.attempt}" if options.is_transactional else None
        with TaskProducer(options, transactional_id, first_sticky=task.number) as producer:
            for batch in chain([first], batches):
                for record in records_of(batch, options.topic):
                    producer.send(record)
            producer.flush()
            prepared = producer.prepared() if options.is_transactional else None
            return TaskTransaction(task.query_id, prepared, frozenset(producer.touched))

    async def _is_decided(self, task: RunningTask, name: str) -> bool:
        """To be asked before there is a producer: its start aborts what its transactional id left open."""
        async with connected(self._options) as client:
            decision = await client.decided(name)
        if decision is None or decision.batch_id < task.batch_id:
            return False
        if decision.batch_id > task.batch_id:
            raise PipelineError(
                f"micro-batch {task.batch_id}: the sink has micro-batch {decision.batch_id} of this query: the"
                " checkpoint is an older copy"
            )
        return bool(decision.transactions)


@reports_one_line
class TopicWriter(_Writer, DataSourceArrowWriter):
    """A batch query: its records appear together, when all tasks have ended."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        self._name = f"{options.id_prefix}-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskTransaction:
        """One task."""
        task = running_task()
        return self._write(iterator, RunningTask(task.number, task.attempt), self._name)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks have ended. Raises PipelineError."""
        self._end(messages, is_commit=True)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """A task failed for good; transactions of tasks that left no message time out."""
        self._end(messages, is_commit=False)

    def _end(self, messages: list[WriterCommitMessage | None], *, is_commit: bool) -> None:
        prepared = _prepared(messages)
        if prepared:
            ended = asyncio.run(_end_all(self._options, prepared, is_commit=is_commit))
            if is_commit and not all(ended):
                raise PipelineError(
                    f"{ended.count(False)} of {len(ended)} transactions timed out before they were committed"
                    " (kafka.transaction.timeout.ms): their records are missing; deliveryGuarantee=at-least-once has"
                    " no such limit"
                )


@reports_one_line
class TopicStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """A stream: each micro-batch once."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskTransaction:
        """One task."""
        task = running_task()
        return self._write(iterator, task, self._name(task.query_id))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks of a micro-batch have ended. Raises DataLoss, PipelineError."""
        written = [message for message in messages if isinstance(message, TaskTransaction) and message.query_id]
        if not (self._options.is_transactional and written):
            return
        asyncio.run(self._commit(written, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """A task or the commit failed: what is not decided is aborted."""
        written = [message for message in messages if isinstance(message, TaskTransaction) and message.query_id]
        if self._options.is_transactional and written:
            asyncio.run(self._abort(written, batchId))

    async def _commit(self, written: list[TaskTransaction], batch_id: int) -> None:
        decided = {message.is_decided for message in written}
        if len(decided) > 1:
            raise PipelineError(f"micro-batch {batch_id}: another query with this checkpoint writes at the same time")
        async with connected(self._options) as client:
            await commit_micro_batch(
                client,
                self._name(written[0].query_id),
                batch_id,
                _prepared(written),
                {place for message in written for place in message.places},
                is_decided=decided == {True},
            )

    async def _abort(self, written: list[TaskTransaction], batch_id: int) -> None:
        async with connected(self._options) as client:
            decision = await client.decided(self._name(written[0].query_id))
            if decision is None or decision.batch_id < batch_id:
                await client.end_all(_prepared(written), is_commit=False)

    def _name(self, query_id: str) -> str:
        return f"{self._options.id_prefix}-{query_id}"


def running_task() -> RunningTask:
    """The task of this process, of a micro-batch if its query is a stream."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise PipelineError("not in a task of Spark")
    query_id = context.getLocalProperty("sql.streaming.queryId") or ""
    batch_id = context.getLocalProperty("streaming.sql.batchId") or "-1"
    return RunningTask(context.partitionId(), context.attemptNumber(), query_id, int(batch_id))


def _prepared(messages: list[WriterCommitMessage | None] | list[TaskTransaction]) -> list[PreparedTransaction]:
    return [one.transaction for one in messages if isinstance(one, TaskTransaction) and one.transaction is not None]


async def _end_all(options: SinkOptions, prepared: list[PreparedTransaction], *, is_commit: bool) -> list[bool]:
    async with connected(options) as client:
        ended = await client.end_all(prepared, is_commit=is_commit)
        await client.abort_earlier(prepared)
        return ended
