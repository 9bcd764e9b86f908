"""What the sink records of a micro-batch's transactions, and how a task that fails ends; without brokers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tidegate_pipeline.errors import PipelineError, UsageError
from tidegate_pipeline.sinks import task_producer
from tidegate_pipeline.sinks.sink_options import SinkOptions, parse_sink_options
from tidegate_pipeline.sinks.sink_rows import SinkRecord
from tidegate_pipeline.sinks.task_producer import TaskProducer
from tidegate_pipeline.sinks.transactions import METADATA_MAX, PreparedTransaction, _chunks, _decoded

GROUP = "tidegate-spark-0e1b2c3d-0000-4000-8000-0123456789ab"


def test_two_hundred_tasks_fit_into_the_metadata_of_one_partition() -> None:
    """Spark's default of spark.sql.shuffle.partitions is 200."""
    written = tuple(PreparedTransaction(f"{GROUP}-{task}-0", 1_234_567 + task, 0) for task in range(200))

    (chunk,) = _chunks(written, GROUP)
    assert len(chunk.encode()) <= METADATA_MAX
    assert _decoded(chunk, GROUP) == written


def test_decisions_of_many_chunks_and_of_whole_names_are_read() -> None:
    written = tuple(PreparedTransaction(f"{GROUP}-{task}-3", task, 2) for task in range(1_000))
    chunks = _chunks(written, GROUP)
    assert len(chunks) > 1
    assert _decoded("".join(chunks), GROUP) == written
    before = f"{GROUP}-0-1 7 2\n{GROUP}-1-0 8 0\n"
    assert _decoded(before, GROUP) == (
        PreparedTransaction(f"{GROUP}-0-1", 7, 2),
        PreparedTransaction(f"{GROUP}-1-0", 8, 0),
    )


class StuckProducer:
    """A producer whose brokers do not answer any more."""

    def __init__(self, **_: Any) -> None:
        self.client = self
        self.steps: list[str] = []

    async def start(self) -> None:
        self.steps.append("start")

    async def begin_transaction(self) -> None:
        self.steps.append("begin")

    async def abort_transaction(self) -> None:
        self.steps.append("abort")
        await asyncio.Event().wait()

    async def stop(self) -> None:
        self.steps.append("stop")
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.steps.append("close")


def test_task_that_fails_while_brokers_are_away_reports_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[StuckProducer] = []

    def make(**arguments: Any) -> StuckProducer:
        made.append(StuckProducer(**arguments))
        return made[-1]

    monkeypatch.setattr(task_producer, "AIOKafkaProducer", make)
    monkeypatch.setattr(task_producer, "_FAILED_S", 0.01)

    with (
        pytest.raises(UsageError, match="no topic"),
        TaskProducer(SinkOptions("127.0.0.1:1", delivery_timeout_ms=60_000), "id", 0) as producer,
    ):
        raise UsageError("a row has no topic")

    assert made[0].steps == ["start", "begin", "abort", "stop", "close"]
    assert not producer._thread.is_alive()


@pytest.mark.parametrize(("options", "fits"), [({}, 1 << 20), ({"kafka.max.request.size": "3000000"}, 3_000_000)])
def test_record_above_the_request_size_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], fits: int
) -> None:
    class EmptyBatch:
        def append(self, **_: Any) -> object:
            return object()

    class Producer(StuckProducer):
        async def partitions_for(self, _topic: str) -> set[int]:
            return {0}

        def create_batch(self) -> EmptyBatch:
            return EmptyBatch()

    monkeypatch.setattr(task_producer, "AIOKafkaProducer", Producer)
    monkeypatch.setattr(task_producer, "_FAILED_S", 0.01)
    parsed = parse_sink_options({"kafka.bootstrap.servers": "127.0.0.1:1", **options})
    overhead = 61 + 21 + 2 + 4  # of a batch, a record, the key and its length, the length of the value

    with (
        pytest.raises(PipelineError, match=rf"topic out: .* {fits + 1} bytes.*kafka.max.request.size, {fits}"),
        TaskProducer(parsed, "id", 0) as producer,
    ):
        producer.send(SinkRecord("out", b"k", bytes(fits - overhead), [], None, None, 0))
        producer.send(SinkRecord("out", b"k", bytes(fits - overhead + 1), [], None, None, 0))


def test_include_headers_is_accepted_as_by_the_connector() -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1"}
    assert parse_sink_options({**given, "includeHeaders": "true"}) == parse_sink_options(given)
