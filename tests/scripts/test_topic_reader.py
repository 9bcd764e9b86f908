"""The readers of topics as Spark's Python processes use them: pickled, JSON between the calls, no JVM."""

from __future__ import annotations

import inspect
import json
import pickle
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxFiles, ReadMaxRows
from pyspark.sql.types import StructType

from tests.support.topics import WrittenTopic
from tests.support.valkey import ValkeyServer
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.sources.topic_readers import TopicStreamReader
from tidegate_pipeline.sources.topic_source import TopicSource


def source(valkey: ValkeyServer, **options: str) -> TopicSource:
    """The data source; its options as Spark hands them over."""
    return TopicSource(CaseInsensitiveDict({"redis.url": valkey.url, "Subscribe": "orders", **options}))


def stream_reader(valkey: ValkeyServer, **options: str) -> Any:
    """The helper process's reader: of a source that came pickled."""
    made = pickle.loads(pickle.dumps(source(valkey, **options)))
    return made.streamReader(made.schema())


def reported(value: Any) -> Any:
    """As it comes back from the JVM."""
    return json.loads(json.dumps(value))


def test_stream_as_spark_drives_it(client: Any, valkey: ValkeyServer) -> None:
    topic = WrittenTopic(client, "orders", 2)
    topic.fill([2, 3])
    topic.fill([4], partition=1)
    reader = stream_reader(valkey, startingOffsets="earliest", maxOffsetsPerTrigger="4")
    assert len(inspect.signature(reader.latestOffset).parameters) == 2, "what switches admission control on"
    assert reader.getDefaultReadLimit() == ReadMaxRows(4)
    assert stream_reader(valkey).getDefaultReadLimit() == ReadMaxBytes(256 << 20)
    assert reader.reportLatestOffset() is None

    start = reported(reader.initialOffset())
    end = reported(reader.latestOffset(start, ReadMaxRows(4)))
    assert {topic: end[topic] for topic in ("orders",)} == {"orders": {"0": 2, "1": 2}}
    tasks = [pickle.loads(pickle.dumps(task)) for task in reader.partitions(start, end)]
    assert all(isinstance(task, InputPartition) for task in tasks)
    in_a_worker = pickle.loads(pickle.dumps(reader))
    rows = [row for task in tasks for batch in in_a_worker.read(task) for row in batch.to_pylist()]
    assert [(row["partition"], row["offset"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    reader.commit(end)
    assert reported(reader.latestOffset(end, ReadAllAvailable()))["orders"] == {"0": 5, "1": 4}
    progress = reader.reportLatestOffset()
    assert (progress["orders"], progress["_metrics"]["pipeline_lost_offsets_total"]) == ({"0": 5, "1": 4}, 0)

    restarted = stream_reader(valkey, startingOffsets="earliest", maxOffsetsPerTrigger="4")
    assert restarted.partitions(start, end) == tasks, "from the offsets alone"
    with pytest.raises(UsageError, match="ReadMaxFiles is not a limit"):
        reader.latestOffset(end, ReadMaxFiles(1))
    reader.stop()
    restarted.stop()


def test_checkpoint_of_the_kafka_connector_is_refused(client: Any, valkey: ValkeyServer) -> None:
    """Its offsets look alike, and are of another cluster's records."""
    WrittenTopic(client, "orders").fill([5])
    reader = stream_reader(valkey)

    with pytest.raises(UsageError, match=r"the checkpoint is of another source.*topic orders"):
        reader.latestOffset({"orders": {"0": 3}}, ReadAllAvailable())
    reader.stop()


def test_pickled_reader_contains_no_connection_and_no_password(
    client: Any, valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    WrittenTopic(client, "orders").fill([1])
    reader = stream_reader(valkey, startingOffsets="earliest")
    reader.initialOffset()
    assert reader._access._client is not None

    copy: TopicStreamReader = pickle.loads(pickle.dumps(reader))
    assert copy._access._client is None
    monkeypatch.setenv("TIDEGATE_PIPELINE_REDIS_URL", f"redis://user:hush@127.0.0.1:{valkey.port}/0")
    secret = TopicSource(CaseInsensitiveDict({"subscribe": "orders"}))
    assert b"hush" not in pickle.dumps(secret.streamReader(secret.schema()))
    reader.stop()


def test_batch_reader_and_what_it_is_given_for_nothing(client: Any, valkey: ValkeyServer) -> None:
    WrittenTopic(client, "orders").fill([3])
    made = source(valkey)
    reader = made.reader(made.schema())

    assert [[range_.end for range_ in task.ranges] for task in reader.partitions()] == [[3]]
    assert list(reader.read(InputPartition(None))) == [], "Spark's stand-in where nothing was planned"
    with pytest.raises(UsageError, match="the schema of tidegate is fixed"):
        made.reader(StructType().add("value", "string"))
    with pytest.raises(UsageError, match="endingOffsets and the like are for batch queries"):
        source(valkey, endingOffsets="latest").streamReader(made.schema())
