"""A DataFrame that is queried twice: Spark keeps its plan, and the second query has to find what is new."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql.datasource import CaseInsensitiveDict

from tests.support.topic_reads import archive_up_to
from tests.support.topics import TIMESTAMP_MS, WrittenTopic
from tests.support.valkey import ValkeyServer
from tidegate_pipeline.errors import DataLoss, PipelineError
from tidegate_pipeline.sources.topic_readers import Task

Read = list[tuple[str, int, int]]


class Frame:
    """The reader and the tasks that Spark keeps of one DataFrame."""

    def __init__(self, valkey: ValkeyServer, **options: str) -> None:
        from tidegate_pipeline.sources.topic_source import TopicSource

        source = TopicSource(CaseInsensitiveDict({"redis.url": valkey.url} | options))
        self.reader = source.reader(source.schema())
        self.tasks: list[Task] = pickle.loads(pickle.dumps(self.reader.partitions()))

    def query(self) -> Read:
        """Topic, partition and offset of every row."""
        rows = [row for task in self.tasks for batch in self.reader.read(task) for row in batch.to_pylist()]
        return sorted((row["topic"], row["partition"], row["offset"]) for row in rows)


@pytest.fixture
def spark_query(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets Spark's id of the query whose tasks run."""

    def start(execution: str) -> None:
        context = object.__new__(TaskContext)  # TaskContext() would stay the one of this process
        context._localProperties = {"spark.sql.execution.id": execution}
        monkeypatch.setattr(TaskContext, "_taskContext", context)

    return start


def offsets(topic: str, partition: int, start: int, end: int) -> Read:
    return [(topic, partition, offset) for offset in range(start, end)]


@pytest.mark.parametrize("cut", [{}, {"maxRecordsPerPartition": "2"}])
def test_second_query_reads_what_was_appended_after_the_first(
    client: Any, valkey: ValkeyServer, cut: dict[str, str]
) -> None:
    topic = WrittenTopic(client, "orders", 3)
    topic.fill([2, 3])
    topic.fill([4], partition=1)
    frame = Frame(valkey, subscribe="orders", **cut)
    first = offsets("orders", 0, 0, 5) + offsets("orders", 1, 0, 4)
    assert frame.query() == first

    topic.fill([3])
    topic.fill([1], partition=2)
    topic.grow(4)
    topic.fill([2], partition=3)

    assert frame.query() == (
        offsets("orders", 0, 0, 8)
        + offsets("orders", 1, 0, 4)
        + offsets("orders", 2, 0, 1)
        + offsets("orders", 3, 0, 2)
    )


def test_second_query_has_topics_that_are_new(client: Any, valkey: ValkeyServer) -> None:
    frame = Frame(valkey, subscribePattern="orders.*")
    assert frame.query() == []

    WrittenTopic(client, "orders-eu").fill([2])
    WrittenTopic(client, "payments").fill([2])

    assert frame.query() == offsets("orders-eu", 0, 0, 2)
    late = Frame(valkey, subscribePattern="orders.*", startingOffsets="latest")
    WrittenTopic(client, "orders-us").fill([2])
    assert late.query() == [], "it begins where the log ends, and has no partition of that topic"


def test_new_topics_begin_at_the_time_that_is_given(client: Any, valkey: ValkeyServer) -> None:
    frame = Frame(valkey, subscribePattern="orders.*", startingTimestamp=str(TIMESTAMP_MS + 2))
    assert frame.query() == []

    WrittenTopic(client, "orders-eu").fill([1, 1, 1, 1])  # a ms later each

    assert frame.query() == offsets("orders-eu", 0, 2, 4)


@pytest.mark.parametrize("fixed", [{"endingOffsets": '{"orders":{"0":2}}'}, {"pushFilters": "true"}])
def test_end_that_is_given_stays(client: Any, valkey: ValkeyServer, fixed: dict[str, str]) -> None:
    topic = WrittenTopic(client, "orders")
    topic.fill([2])
    frame = Frame(valkey, subscribe="orders", **fixed)
    topic.fill([2])

    assert frame.query() == offsets("orders", 0, 0, 2)


def test_second_query_after_a_trim_reads_the_archive_or_fails(
    client: Any, valkey: ValkeyServer, tmp_path: Path
) -> None:
    topic = WrittenTopic(client, "orders")
    topic.fill([5, 5])
    frame = Frame(valkey, subscribe="orders", **{"archive.path": str(tmp_path)})
    archive_up_to(client, tmp_path, topic, [5, 5])
    topic.fill([5, 5])
    topic.raise_log_start(15, local=True)
    with pytest.raises(DataLoss, match="offset 10 is wanted and is gone"):
        frame.query()
    archive_up_to(client, tmp_path, topic, [5, 5], start=10)

    assert frame.query() == offsets("orders", 0, 0, 20)


def test_topic_deleted_between_two_queries_fails_by_name(client: Any, valkey: ValkeyServer) -> None:
    topic = WrittenTopic(client, "orders")
    topic.fill([5])
    frame = Frame(valkey, subscribe="orders")
    topic.delete()

    with pytest.raises(DataLoss, match="topic orders partition 0 was deleted, and was read up to offset 0: 5 offsets"):
        frame.query()


def test_repeated_task_reads_what_its_first_attempt_read(
    client: Any, valkey: ValkeyServer, spark_query: Callable[[str], None]
) -> None:
    topic = WrittenTopic(client, "orders", 2)
    topic.fill([2])
    frame = Frame(valkey, subscribe="orders")
    topic.fill([3], partition=1)
    spark_query("7")
    first = frame.query()
    assert first == offsets("orders", 0, 0, 2) + offsets("orders", 1, 0, 3)

    topic.fill([1])
    topic.grow(3)
    topic.fill([2], partition=2)

    assert frame.query() == first
    spark_query("8")
    assert frame.query() == offsets("orders", 0, 0, 3) + offsets("orders", 1, 0, 3) + offsets("orders", 2, 0, 2)
    spark_query("7")
    assert frame.query() == first
    other = Frame(valkey, subscribe="orders")
    assert len(other.query()) == 8, "another plan, perhaps of another driver that counts queries alike"
    assert {client.ttl(key) > 3600 for key in client.scan_iter("*query-ends*")} == {True}


@pytest.mark.parametrize("refused", ["-@write", "-get"])
def test_user_that_may_not_write_reads_up_to_the_plan(
    client: Any, valkey: ValkeyServer, spark_query: Callable[[str], None], monkeypatch: pytest.MonkeyPatch,
    refused: str,
) -> None:  # fmt: skip
    topic = WrittenTopic(client, "orders")
    topic.fill([2])
    monkeypatch.setenv("READER", "x")
    client.execute_command("ACL", "SETUSER", "reader", "on", "nopass", "~*", "+@all", refused)
    url = valkey.url.replace("://", "://reader@")
    frame = Frame(valkey, subscribe="orders", **{"redis.url": url, "redis.passwordVariable": "READER"})
    topic.fill([3])
    spark_query("7")

    assert frame.query() == offsets("orders", 0, 0, 2)


def test_replica_is_named_as_the_reason(client: Any, valkey: ValkeyServer, spark_query: Callable[[str], None]) -> None:
    WrittenTopic(client, "orders").fill([2])
    frame = Frame(valkey, subscribe="orders")
    fixed = Frame(valkey, subscribe="orders", endingOffsets='{"orders":{"0":2}}')
    spark_query("7")
    client.replicaof("127.0.0.1", 1)
    try:
        with pytest.raises(PipelineError, match="endingOffsets or endingTimestamp fix the end"):
            frame.query()
        assert fixed.query() == offsets("orders", 0, 0, 2)
    finally:
        client.replicaof("NO", "ONE")
