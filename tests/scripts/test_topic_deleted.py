"""Topics that are deleted before they were read, or that there never were: on the real server, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from tests.support.topic_reads import access_to, offsets_of
from tests.support.topics import WrittenTopic
from tests.support.valkey import ValkeyServer
from tidegate_pipeline.errors import DataLoss, UsageError
from tidegate_pipeline.jobs.failures import cause_of
from tidegate_pipeline.sources import starting
from tidegate_pipeline.sources.batch_plan import plan_ranges
from tidegate_pipeline.sources.offsets import Offsets
from tidegate_pipeline.sources.stream_plan import StreamPlan


@pytest.fixture
def topic(client: Any) -> WrittenTopic:
    """Offsets 0 to 39 in entries of ten."""
    written = WrittenTopic(client, "orders")
    written.fill([10] * 4)
    return written


def gaps(root: Path) -> list[tuple[int, int]]:
    rows: list[dict[str, Any]] = parquet.read_table(root / "quarantine/gaps").to_pylist()
    return sorted((row["wanted_offset"], row["log_start"]) for row in rows)


def test_topic_deleted_between_plan_and_read(valkey: ValkeyServer, topic: WrittenTopic, tmp_path: Path) -> None:
    access = access_to(valkey.url, subscribe="orders")
    start = starting.initial_offsets(access, "earliest")
    planned = plan_ranges(access)
    end = StreamPlan(access).next_offsets(start, None, by_records=False)
    topic.delete()

    reported_text = "topic orders partition 0 was deleted, and was read up to offset 0: 40 offsets are lost, 0 to 39"
    with pytest.raises(DataLoss, match=reported_text):
        StreamPlan(access).ranges(start, end)
    with pytest.raises(DataLoss, match=reported_text):
        offsets_of(access, planned)
    with pytest.raises(UsageError, match="no such topic in organisation default: orders"):
        plan_ranges(access)
    allowed = access_to(valkey.url, subscribe="orders", failOnDataLoss="false", archive_path=str(tmp_path))
    for ranges in (planned, StreamPlan(allowed).ranges(start, end)):
        assert offsets_of(allowed, ranges) == []
    assert gaps(tmp_path) == [(0, 40)]


def test_topic_deleted_while_its_batch_query_is_planned(client: Any, valkey: ValkeyServer) -> None:
    topic = WrittenTopic(client, "orders")
    client.hset(topic.keys().meta, "state", "deleted")

    with pytest.raises(DataLoss, match="topic orders partition 0: it was deleted") as failed:
        plan_ranges(access_to(valkey.url, subscribe="orders"))
    worker = f"Traceback (most recent call last):\n  File\ntidegate_pipeline.errors.LogGone: {failed.value}\n"
    assert cause_of(RuntimeError(worker)).exit_status == DataLoss.exit_status == 3


@pytest.mark.parametrize("chosen", [{"subscribe": "orders"}, {"subscribePattern": "ord.*"}])
def test_topic_deleted_with_unread_records_fails_the_stream(
    client: Any, valkey: ValkeyServer, topic: WrittenTopic, chosen: dict[str, str], tmp_path: Path
) -> None:
    access = access_to(valkey.url, **chosen)
    start = starting.initial_offsets(access, "earliest")
    middle = StreamPlan(access).next_offsets(start, 15, by_records=True)
    topic.delete()

    once = StreamPlan(access)
    once.fix_target()
    for plan in (StreamPlan(access), once):
        with pytest.raises(DataLoss) as failed:
            plan.next_offsets(middle, None, by_records=False)
        assert str(failed.value).startswith(
            "topic orders partition 0 was deleted, and was read up to offset 15: 25 offsets are lost, 15 to 39. "
        )
    client.delete(topic.keys().meta)
    with pytest.raises(DataLoss, match="was read up to offset 15: where it ended is not known"):
        StreamPlan(access).next_offsets(middle, None, by_records=False)


def test_topic_deleted_with_unread_records_is_a_gap(
    client: Any, valkey: ValkeyServer, topic: WrittenTopic, tmp_path: Path
) -> None:
    options = {"failOnDataLoss": "false", "archive_path": str(tmp_path)}
    access = access_to(valkey.url, subscribe="orders", **options)
    start = starting.initial_offsets(access, "earliest")
    plan = StreamPlan(access)
    topic.delete()

    end = plan.next_offsets(start, None, by_records=False)
    assert end.next == {("orders", 0): 40}
    assert offsets_of(access, plan.ranges(start, end)) == []
    assert gaps(tmp_path) == [(0, 40)]
    progress = plan.progress()
    assert progress is not None
    assert progress["_metrics"]["pipeline_lost_offsets_total"] == 40
    assert plan.next_offsets(end, None, by_records=False) == Offsets()
    client.delete(topic.keys().meta)
    assert StreamPlan(access).next_offsets(start, None, by_records=False) == Offsets(), "where it ended is not known"


def test_topic_deleted_after_all_was_read_is_forgotten(valkey: ValkeyServer, topic: WrittenTopic) -> None:
    access = access_to(valkey.url, subscribePattern="ord.*")
    end = starting.initial_offsets(access, "latest")
    topic.delete()

    assert StreamPlan(access).next_offsets(end, None, by_records=False) == Offsets()
    named = access_to(valkey.url, subscribe="orders")
    with pytest.raises(UsageError, match="no such topic in organisation default: orders"):
        StreamPlan(named).next_offsets(end, None, by_records=False)


def test_partition_that_does_not_exist_fails_a_restarted_stream(valkey: ValkeyServer, topic: WrittenTopic) -> None:
    start = starting.initial_offsets(access_to(valkey.url, subscribe="orders"), "latest")
    assigned = {"assign": '{"orders":[0,7,9]}'}

    with pytest.raises(UsageError, match=r"no such partition: orders 7, orders 9$"):
        StreamPlan(access_to(valkey.url, **assigned)).next_offsets(start, None, by_records=False)
    lenient = access_to(valkey.url, **assigned, failOnDataLoss="false")
    assert StreamPlan(lenient).next_offsets(start, None, by_records=False) == start


def test_misspelt_topic_fails_a_restarted_stream(client: Any, valkey: ValkeyServer, topic: WrittenTopic) -> None:
    WrittenTopic(client, "payments").fill([2])
    start = starting.initial_offsets(access_to(valkey.url, subscribe="orders"), "latest")

    for chosen in ({"subscribe": "orders,payment"}, {"assign": '{"orders":[0],"payment":[0]}'}):
        with pytest.raises(UsageError, match=r"no such topic in organisation default: payment$"):
            StreamPlan(access_to(valkey.url, **chosen)).next_offsets(start, None, by_records=False)
    lenient = access_to(valkey.url, subscribe="orders,payment", failOnDataLoss="false")
    assert StreamPlan(lenient).next_offsets(start, None, by_records=False) == start
    other = access_to(valkey.url, subscribe="payments")
    assert StreamPlan(other).next_offsets(start, None, by_records=False).next == {("orders", 0): 40, ("payments", 0): 0}
