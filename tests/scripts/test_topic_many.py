"""A thousand partitions: few round trips to plan them, few and small tasks, one connection of a worker."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from redis.connection import Connection

from tests.support.topic_reads import access_to
from tests.support.topics import WrittenTopic
from tests.support.valkey import ValkeyServer
from tidegate_pipeline.redis_access import kept_client
from tidegate_pipeline.sources.access import Access
from tidegate_pipeline.sources.batch_plan import plan_ranges
from tidegate_pipeline.sources.topic_readers import Task
from tidegate_pipeline.sources.topic_source import TopicSource

PARTITIONS = 1_000
ROUND_TRIPS_MAX = 19
TASK_BYTES_MAX = 8 << 10


@pytest.fixture
def topic(client: Any) -> WrittenTopic:
    """Two records in each partition, in two entries."""
    written = WrittenTopic(client, "orders", PARTITIONS)
    for partition in range(PARTITIONS):
        written.fill([1, 1], partition=partition)
    return written


@pytest.fixture
def round_trips(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """One item for each time that a connection sent something."""
    sent: list[int] = []
    send = Connection.send_packed_command

    def counting(self: Connection, command: Any, check_health: bool = True) -> None:
        sent.append(1)
        send(self, command, check_health)

    monkeypatch.setattr(Connection, "send_packed_command", counting)
    yield sent


def reader_of(valkey: ValkeyServer, **options: str) -> Any:
    source = TopicSource(CaseInsensitiveDict({"redis.url": valkey.url, "subscribe": "orders", **options}))
    return source.streamReader(source.schema())


@pytest.mark.usefixtures("topic")
def test_thousand_partitions_are_planned_in_few_round_trips(valkey: ValkeyServer, round_trips: list[int]) -> None:
    for limit, is_limited in ((ReadMaxBytes(100 << 10), True), (ReadMaxRows(1_500), True), (ReadAllAvailable(), False)):
        reader = reader_of(valkey, startingOffsets="earliest")
        start = reader.initialOffset()
        del round_trips[:]
        end = reader.latestOffset(start, limit)
        tasks = reader.partitions(start, end)
        assert len(round_trips) <= ROUND_TRIPS_MAX, limit
        del round_trips[:]
        again = reader_of(valkey, startingOffsets="earliest").partitions(start, end)
        assert len(round_trips) <= ROUND_TRIPS_MAX, "after a restart"

        assert again == tasks
        read = sum(range_.end - range_.start for task in tasks for range_ in task.ranges)
        assert read == (1_000 if is_limited else 2_000)

    del round_trips[:]
    assert len(plan_ranges(access_to(valkey.url, subscribe="orders"))) == PARTITIONS
    assert len(round_trips) <= ROUND_TRIPS_MAX


@pytest.mark.usefixtures("topic")
def test_small_partitions_share_tasks_of_bounded_size(valkey: ValkeyServer) -> None:
    def planned(**options: str) -> list[Task]:
        source = TopicSource(CaseInsensitiveDict({"redis.url": valkey.url, "subscribe": "orders", **options}))
        tasks: list[Task] = source.reader(source.schema()).partitions()
        return tasks

    tasks = planned()
    assert [range_.partition for task in tasks for range_ in task.ranges] == list(range(PARTITIONS))
    assert len(tasks) == 16
    sizes = [len(pickle.dumps(task)) for task in tasks]
    assert max(sizes) <= TASK_BYTES_MAX
    assert sum(sizes) <= 100 * PARTITIONS, "its own ranges only"
    assert len(planned(minPartitions="500")) >= 500
    assert len(planned(maxRecordsPerPartition="4")) == PARTITIONS // 2


def test_partitions_with_nothing_to_read_are_no_tasks_that_are_asked_for(client: Any, valkey: ValkeyServer) -> None:
    WrittenTopic(client, "orders", 8).fill([1] * 8, partition=3)
    options = {"redis.url": valkey.url, "subscribe": "orders", "minPartitions": "4"}
    source = TopicSource(CaseInsensitiveDict(options))

    tasks = source.reader(source.schema()).partitions()

    reading = [task for task in tasks if any(range_.start < range_.end for range_ in task.ranges)]
    assert len(reading) >= 4


def test_large_partition_has_a_task_of_its_own(client: Any, valkey: ValkeyServer) -> None:
    topic = WrittenTopic(client, "orders", 4)
    for partition, size in enumerate((10, 1 << 20, 10, 10)):
        topic.fill([1], partition=partition, value=bytes(size))
    source = TopicSource(CaseInsensitiveDict({"redis.url": valkey.url, "subscribe": "orders"}))

    tasks = source.reader(source.schema()).partitions()

    assert [[range_.partition for range_ in task.ranges] for task in tasks] == [[0], [1], [2, 3]]


def test_worker_keeps_its_connection(client: Any, valkey: ValkeyServer) -> None:
    WrittenTopic(client, "orders", 2).fill([3])
    source = TopicSource(CaseInsensitiveDict({"redis.url": valkey.url, "subscribe": "orders", "minPartitions": "2"}))
    reader = source.reader(source.schema())
    tasks = reader.partitions()
    kept = kept_client(valkey.url)
    before = client.info("stats")["total_connections_received"]

    for _ in range(3):
        assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == 3

    assert kept_client(valkey.url) is kept
    assert Access.kept(access_to(valkey.url, subscribe="orders").options).client is kept
    assert client.info("stats")["total_connections_received"] <= before + 1
    kept.connection_pool.disconnect()
    assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == 3, "one that was lost is made again"
