"""The sink's writers without Spark, through a real broker: each record is there once, whatever is killed when.

A micro-batch is run as Spark runs it: tasks, then the driver's commit or abort. A kill is a step that is left out.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.types import StructType

from bench.cluster import Cluster
from tidegate_pipeline.decode.schema import decoded_schema
from tidegate_pipeline.errors import DataLoss, PipelineError, UsageError
from tidegate_pipeline.sinks import topic_writer
from tidegate_pipeline.sinks.sink_options import parse_sink_options
from tidegate_pipeline.sinks.sink_rows import check_columns
from tidegate_pipeline.sinks.topic_writer import RunningTask, TaskTransaction, TopicStreamWriter, TopicWriter
from tidegate_pipeline.sinks.transactions import Decision, TransactionClient, connected

ROWS = pa.schema(
    {
        "key": pa.string(),
        "value": pa.binary(),
        "partition": pa.int32(),
        "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
)
PARTITIONS = 3
_topics = iter(range(1_000_000))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(1) as running:
        yield running


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A new topic."""
    name = f"out-{next(_topics)}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    configs = {"retention.ms": "-1"}  # some records are of a fixed day
    for made in admin.create_topics([NewTopic(name, PARTITIONS, config=configs)]).values():
        made.result(30)
    return name


def rows(*values: str, **columns: Any) -> pa.RecordBatch:
    """Rows with these values; keys are the values."""
    found = [{"key": value, "value": value.encode(), **columns} for value in values]
    return pa.RecordBatch.from_pylist(found, schema=ROWS)


class Query:
    """A query with a sink; `start` again is a new process of it."""

    def __init__(self, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch, **more: str) -> None:
        self._options = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": topic, **more}
        self._monkeypatch = monkeypatch
        self.query_id = f"query-of-{topic}"

    def writer(self) -> TopicStreamWriter:
        """Through pickle, as tasks and the driver's helper get it."""
        options = parse_sink_options(self._options)
        return pickle.loads(pickle.dumps(TopicStreamWriter(options, decoded_schema(), overwrite=False)))

    def tasks(self, batch_id: int, *batches: pa.RecordBatch, attempt: int = 0) -> list[Any]:
        """The messages of a micro-batch with a task for each batch of rows."""
        messages = []
        for number, batch in enumerate(batches):
            task = RunningTask(number, attempt, self.query_id, batch_id)
            self._monkeypatch.setattr(topic_writer, "running_task", lambda task=task: task)
            messages.append(pickle.loads(pickle.dumps(self.writer().write(iter([batch])))))
        return messages

    def run(self, batch_id: int, *batches: pa.RecordBatch) -> None:
        """A micro-batch from begin to end."""
        self.writer().commit(self.tasks(batch_id, *batches), batch_id)

    def decide(self, batch_id: int, messages: list[TaskTransaction]) -> None:
        """The driver's first step of a commit alone."""
        prepared = tuple(message.transaction for message in messages if message.transaction)
        places = tuple(sorted({place for message in messages for place in message.places}))
        self._driver(lambda client: client.decide(self._group, Decision(batch_id, prepared, places)))

    def end(self, messages: list[TaskTransaction], *, is_commit: bool) -> None:
        """End these transactions, as a driver that is killed after some, or brokers when they time out."""
        prepared = [message.transaction for message in messages if message.transaction]
        self._driver(lambda client: client.end_all(prepared, is_commit=is_commit))

    @property
    def _group(self) -> str:
        return f"tidegate-spark-{self.query_id}"

    def _driver(self, work: Any) -> None:
        async def connect_and_work() -> None:
            async with connected(parse_sink_options(self._options)) as client:
                assert isinstance(client, TransactionClient)
                await work(client)

        asyncio.run(connect_and_work())


@pytest.fixture
def query(cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch) -> Query:
    return Query(cluster, topic, monkeypatch)


def committed(cluster: Cluster, topic: str) -> list[Any]:
    """All messages that a read_committed consumer gets, by partition and offset."""
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "reader", "isolation.level": "read_committed",
                "enable.partition.eof": True, "auto.offset.reset": "earliest"}  # fmt: skip
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    messages, ended = [], 0
    while ended < PARTITIONS:
        message = consumer.poll(60)
        assert message is not None
        if message.error() is None:
            messages.append(message)
        else:
            ended += 1
    consumer.close()
    return sorted(messages, key=lambda message: (message.partition(), message.offset()))


def values(cluster: Cluster, topic: str) -> list[str]:
    return sorted(message.value().decode() for message in committed(cluster, topic))


def test_micro_batches_are_committed_in_order(cluster: Cluster, topic: str, query: Query) -> None:
    query.run(0, rows("a", "b"), rows("c"), rows())
    query.run(1, rows(), rows())
    query.run(2, rows("d"))
    assert values(cluster, topic) == ["a", "b", "c", "d"]


def test_records_match_the_rows(cluster: Cluster, topic: str, query: Query) -> None:
    at = 1_795_000_000_123_456
    headers = [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    query.run(0, rows("a", partition=2, headers=headers, timestamp=at), rows("k1", "k2", "k3", "k4", "k5"))
    nulls = pa.RecordBatch.from_pylist([{"value": None}], schema=pa.schema({"value": pa.binary()}))
    query.run(1, nulls)

    messages = {message.value(): message for message in committed(cluster, topic)}
    found = messages[b"a"]
    assert (found.partition(), found.key(), found.timestamp(), found.headers()) == (
        2, b"a", (1, at // 1000), [("h", b"1"), ("h", None)],
    )  # fmt: skip
    assert (messages[None].key(), messages[None].headers()) == (None, None)
    placed = Producer({"bootstrap.servers": cluster.bootstrap, "partitioner": "murmur2_random"})
    theirs: dict[bytes, int] = {}
    for key in (b"k1", b"k2", b"k3", b"k4", b"k5"):
        placed.produce(topic, key, key, on_delivery=lambda _, m: theirs.update({m.key(): m.partition()}))
    assert placed.flush(30) == 0
    assert {key: messages[key].partition() for key in theirs} == theirs, "as Java's and librdkafka's partitioners"


def test_records_larger_than_a_batch_and_many_batches(cluster: Cluster, topic: str, query: Query) -> None:
    large = [f"{number}{'x' * 300_000}" for number in range(5)]
    query.run(0, rows(*large), rows(*(f"{number:04}" for number in range(3_000)), partition=1))
    found = values(cluster, topic)
    assert len(found) == 3_005
    assert set(large) <= set(found)


def test_kill_before_the_decision_writes_again(cluster: Cluster, topic: str, query: Query) -> None:
    query.tasks(0, rows("a", "b"), rows("c"))
    query.run(0, rows("a"), rows("b", "c"))
    assert values(cluster, topic) == ["a", "b", "c"]


@pytest.mark.parametrize("ended", [0, 1, 2])
def test_kill_after_the_decision_commits_what_was_written(
    cluster: Cluster, topic: str, query: Query, ended: int
) -> None:
    messages = query.tasks(0, rows("a", "b"), rows("c"))
    query.decide(0, messages)
    query.end(messages[:ended], is_commit=True)

    query.run(0, rows("a"), rows("b"), rows("c"))
    query.run(1, rows("d"))
    assert values(cluster, topic) == ["a", "b", "c", "d"]


def test_abort_after_the_decision_keeps_it(cluster: Cluster, topic: str, query: Query) -> None:
    messages = query.tasks(0, rows("a"))
    query.decide(0, messages)
    query.writer().abort(messages, 0)
    query.run(0, rows("a"))
    assert values(cluster, topic) == ["a"]


def test_abort_before_the_decision_frees_readers(cluster: Cluster, topic: str, query: Query) -> None:
    query.writer().abort(query.tasks(0, rows("a")), 0)
    query.run(0, rows("b"))
    assert values(cluster, topic) == ["b"]


def test_attempt_of_a_killed_executor_is_not_committed(cluster: Cluster, topic: str, query: Query) -> None:
    query.tasks(0, rows("a"))
    messages = query.tasks(0, rows("a"), attempt=1)
    query.writer().commit(messages, 0)
    query.run(1, rows("b"))
    assert values(cluster, topic) == ["a", "b"]


def test_task_that_fails_frees_readers(cluster: Cluster, topic: str, query: Query) -> None:
    good, bad = rows(*map(str, range(20_000)), partition=0), rows("x", partition=3)
    with pytest.raises(UsageError, match="there is no partition 3"):
        query.tasks(0, pa.concat_batches([good, bad]))

    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce(topic, b"a", partition=0)
    assert not producer.flush(30)
    assert values(cluster, topic) == ["a"]


def test_attempts_of_killed_executors_do_not_delay_readers(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch, query: Query
) -> None:
    for attempt in (0, 1):
        query.tasks(0, rows("a", partition=0), attempt=attempt)
    query.writer().commit(query.tasks(0, rows("a", partition=0), attempt=2), 0)
    assert values(cluster, topic) == ["a"]

    options = parse_sink_options({"kafka.bootstrap.servers": cluster.bootstrap, "topic": topic})
    writer = TopicWriter(options, decoded_schema(), overwrite=False)
    for attempt in (0, 1):
        monkeypatch.setattr(topic_writer, "running_task", lambda attempt=attempt: RunningTask(0, attempt))
        message = writer.write(iter([rows("b", partition=0)]))
    writer.commit([message])
    assert values(cluster, topic) == ["a", "b"]


def test_time_out_of_all_after_the_decision_writes_again(cluster: Cluster, topic: str, query: Query) -> None:
    messages = query.tasks(0, rows("a"), rows("b"))
    query.decide(0, messages)
    query.end(messages, is_commit=False)
    with pytest.raises(PipelineError, match="start the query again"):
        query.run(0, rows("a"), rows("b"))
    query.run(0, rows("a"), rows("b"))
    assert values(cluster, topic) == ["a", "b"]


def test_time_out_of_some_after_the_decision_fails_each_time(cluster: Cluster, topic: str, query: Query) -> None:
    messages = query.tasks(0, rows("a"), rows("b"))
    query.decide(0, messages)
    query.end(messages[:1], is_commit=False)
    for _ in range(2):
        with pytest.raises(DataLoss, match="micro-batch 0: 1 of 2 transactions timed out"):
            query.run(0, rows("a"), rows("b"))


def test_older_copy_of_a_checkpoint_is_refused(query: Query) -> None:
    query.run(3, rows("a"))
    with pytest.raises(PipelineError, match="micro-batch 2: the sink has micro-batch 3"):
        query.run(2, rows("b"))


def test_two_drivers_of_one_checkpoint_do_not_both_commit(cluster: Cluster, topic: str, query: Query) -> None:
    first = query.tasks(0, rows("a"))
    query.run(0, rows("a"))
    with pytest.raises(PipelineError, match="another query with this checkpoint"):
        query.writer().commit(first, 0)
    assert values(cluster, topic) == ["a"]


def test_at_least_once_needs_no_commit(cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(cluster, topic, monkeypatch, deliveryGuarantee="at-least-once")
    messages = query.tasks(0, rows("a"), rows("b"))
    assert values(cluster, topic) == ["a", "b"]
    query.writer().commit(messages, 0)
    assert values(cluster, topic) == ["a", "b"]


def test_batch_query_commits_all_or_nothing(cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = parse_sink_options({"kafka.bootstrap.servers": cluster.bootstrap, "topic": topic})
    for value, end in (("a", "abort"), ("b", "commit")):
        writer = TopicWriter(options, decoded_schema(), overwrite=False)
        monkeypatch.setattr(topic_writer, "running_task", lambda: RunningTask(0, 0))
        message = writer.write(iter([rows(value)]))
        getattr(writer, end)([message, None])
    assert values(cluster, topic) == ["b"]


def test_missing_topic_and_partition_are_named(cluster: Cluster, topic: str, query: Query) -> None:
    with pytest.raises(UsageError, match=f"topic {topic} has 3 partitions, there is no partition 3"):
        query.tasks(0, rows("a", partition=3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the option kafka.bootstrap.servers"),
        ({"kafka.linger.ms": "5"}, "unknown option of the sink tidegate: kafka.linger.ms"),
        ({"kafka.sasl.jaas.config": "x"}, "kafka.sasl.jaas.config has a password"),
        ({"kafka.acks": "1"}, "kafka.acks is one of all, -1, not 1"),
        ({"deliveryGuarantee": "once"}, "deliveryGuarantee is one of exactly-once, at-least-once"),
        ({"kafka.security.protocol": "SASL_SSL"}, "needs the option kafka.sasl.username"),
    ],
)
def test_sink_option_that_is_wrong_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_sink_options({"kafka.bootstrap.servers": "127.0.0.1:1", **options} if options else {})


def test_columns_that_are_no_record_are_named() -> None:
    for schema, topic, message in (
        ("value binary", None, "no column topic, and there is no option topic"),
        ("key binary", "t", "the rows have no column value"),
        ("value long", "t", "the column value is binary or string, not bigint"),
    ):
        name, kind = schema.split()
        with pytest.raises(UsageError, match=message):
            check_columns(StructType().add(name, kind), topic)
