"""The producer of one task: aiokafka's, on an event loop of a thread of its own, fed by Spark's thread.

With a transactional id its transaction stays open when it closes: the driver ends it (`sinks/transactions.py`). That of
a task that failed is aborted, if brokers answer: readers of committed records wait for it otherwise.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, Self, TypeVar

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from tidegate_pipeline.errors import PipelineError, UsageError
from tidegate_pipeline.replay.partitioner import partition_of_hash
from tidegate_pipeline.sinks.sink_options import SinkOptions
from tidegate_pipeline.sinks.sink_rows import SinkRecord
from tidegate_pipeline.sinks.transactions import PreparedTransaction

_FAILED_S: Final = 5.0
"""For how long a task that failed ends its transaction and its connections."""
_OVERHEAD_MAX: Final = 128
"""More than what a batch and a record have besides key, value and headers."""

Result = TypeVar("Result")
Place = tuple[str, int]


class TaskProducer:
    """Produces records; batches are sent when they are full, the rest by `flush`. A context manager."""

    def __init__(self, options: SinkOptions, transactional_id: str | None, first_sticky: int) -> None:
        """`first_sticky`: the partition, modulo their number, where records without a key begin."""
        self._options = options
        self._transactional_id = transactional_id
        self._sticky = first_sticky
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sink", daemon=True)
        self._builders: dict[Place, Any] = {}
        self._partition_counts: dict[str, int] = {}
        self._sent: list[asyncio.Future[Any]] = []
        self._producer: Any = None
        self.touched: set[Place] = set()

    def __enter__(self) -> Self:
        """Raises PipelineError, UsageError."""
        self._thread.start()
        try:
            self._run(self._start())
        except BaseException:
            self._close(_FAILED_S)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._close(self._options.delivery_timeout_s)
            return
        if self._transactional_id is not None:
            with suppress(Exception):  # what failed is raised, not this
                self._run(self._producer.abort_transaction(), _FAILED_S)
        self._close(_FAILED_S)

    def send(self, record: SinkRecord) -> None:
        """Add a record to the batch of its partition. Raises PipelineError, UsageError."""
        timestamp_ms = time.time_ns() // 1_000_000 if record.timestamp_ms is None else record.timestamp_ms
        self._check_size(record)
        place = (record.topic, self._partition(record))
        for _ in range(2):
            builder = self._builders.get(place)
            if builder is None:
                builder = self._builders[place] = self._producer.create_batch()
            added = builder.append(timestamp=timestamp_ms, key=record.key, value=record.value, headers=record.headers)
            if added is not None:
                return
            self._submit(place)
        raise PipelineError(f"topic {record.topic}: a record does not fit into an empty batch")

    def _check_size(self, record: SinkRecord) -> None:
        """As Kafka's producer, before compression; aiokafka's checks no batches that are made elsewhere."""
        limit = self._options.request_bytes_max
        if not record.headers and len(record.value or b"") + len(record.key or b"") + _OVERHEAD_MAX <= limit:
            return
        size = DefaultRecordBatchBuilder.estimate_size_in_bytes(record.key, record.value, record.headers)
        if size > limit:
            raise PipelineError(
                f"topic {record.topic}: a record has {size} bytes, more than kafka.max.request.size, {limit}"
            )

    def flush(self) -> None:
        """Send what is left; every record is acknowledged when this returns. Raises PipelineError."""
        for place in list(self._builders):
            self._submit(place)
        self._run(self._acknowledged())

    def prepared(self) -> PreparedTransaction:
        """The open transaction, of a transactional producer that was flushed."""
        manager = self._producer._txn_manager  # no public way to the producer's id
        return PreparedTransaction(str(self._transactional_id), manager.producer_id, manager.producer_epoch)

    async def _start(self) -> None:
        self._producer = AIOKafkaProducer(
            **self._options.connection(),
            **self._options.producer,
            enable_idempotence=True,
            transactional_id=self._transactional_id,
            transaction_timeout_ms=self._options.transaction_timeout_ms,
        )
        await self._producer.start()
        if self._transactional_id is not None:
            await self._producer.begin_transaction()

    def _partition(self, record: SinkRecord) -> int:
        count = self._partition_counts.get(record.topic)
        if count is None:
            count = self._partition_counts[record.topic] = len(self._run(self._producer.partitions_for(record.topic)))
        if record.partition is not None:
            if not 0 <= record.partition < count:
                raise UsageError(
                    f"topic {record.topic} has {count} partitions, there is no partition {record.partition}"
                )
            return record.partition
        return self._sticky % count if record.key is None else partition_of_hash(record.key_hash, count)

    def _submit(self, place: Place) -> None:
        """Queue a batch; waits while the one before it is not sent."""
        builder = self._builders.pop(place)
        topic, partition = place
        self.touched.add(place)
        self._sticky += 1
        self._sent.append(self._run(self._producer.send_batch(builder, topic, partition=partition)))
        unfinished = []
        for sent in self._sent:
            if not sent.done():
                unfinished.append(sent)
            elif (error := sent.exception()) is not None:
                raise _named(error)
        self._sent = unfinished

    async def _acknowledged(self) -> None:
        await asyncio.gather(*self._sent)
        self._sent.clear()

    def _run(self, work: Coroutine[Any, Any, Result], timeout_s: float | None = None) -> Result:
        async def limited() -> Result:
            async with asyncio.timeout(timeout_s or self._options.delivery_timeout_s):
                return await work

        try:
            return asyncio.run_coroutine_threadsafe(limited(), self._loop).result()
        except (KafkaError, TimeoutError) as error:
            raise _named(error) from error

    def _close(self, timeout_s: float) -> None:
        async def stop() -> None:
            for sent in self._sent:
                sent.cancel()
            if self._producer is None:
                return
            try:
                async with asyncio.timeout(timeout_s):
                    await self._producer.stop()
            except TimeoutError:  # without an answer there is nothing to wait for
                await self._producer.client.close()

        try:
            asyncio.run_coroutine_threadsafe(stop(), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


def _named(error: BaseException) -> PipelineError:
    reported = str(error) or "no reply in time"
    return PipelineError(f"the brokers did not take the records: {type(error).__name__}: {reported}")
