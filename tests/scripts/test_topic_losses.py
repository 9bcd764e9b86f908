"""What can break a read of topics (section 6 of the specification, row by row), on the real server, without Spark."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from pyspark.sql.datasource import CaseInsensitiveDict

from tests.support.logs import batch_bytes
from tests.support.markers import build_marker
from tests.support.segments import batches_from
from tests.support.topic_reads import access_to, archive_up_to, offsets_of, rows_of
from tests.support.topics import TIMESTAMP_MS, WrittenTopic
from tests.support.valkey import ValkeyServer
from tidegate.records.build import NewRecord, build_batch
from tidegate_pipeline.decode.decoder import StoredBatch
from tidegate_pipeline.errors import DataLoss, PipelineError
from tidegate_pipeline.redis_access import connect
from tidegate_pipeline.sources import starting
from tidegate_pipeline.sources.batch_plan import plan_ranges
from tidegate_pipeline.sources.offsets import Offsets
from tidegate_pipeline.sources.planning import PlannedRange
from tidegate_pipeline.sources.rows import RawRows
from tidegate_pipeline.sources.stream_plan import StreamPlan
from tidegate_pipeline.sources.tiers import Tier
from tidegate_pipeline.sources.topic_source import TopicSource
from tidegate_pipeline.sources.walking import LogOffsets, LogWalker


@pytest.fixture
def topic(client: Any) -> WrittenTopic:
    """Offsets 0 to 39 in entries of ten."""
    written = WrittenTopic(client, "orders")
    written.fill([10] * 4)
    return written


def gaps(root: Path) -> list[tuple[int, int]]:
    rows: list[dict[str, Any]] = parquet.read_table(root / "quarantine/gaps").to_pylist()
    return sorted((row["wanted_offset"], row["log_start"]) for row in rows)


def test_offset_range_trimmed_before_the_read_fails_with_all_of_it(valkey: ValkeyServer, topic: WrittenTopic) -> None:
    access = access_to(valkey.url, subscribe="orders")
    start = starting.initial_offsets(access, "earliest")
    end = StreamPlan(access).next_offsets(start, None, by_records=False)
    topic.raise_log_start(25)

    for asked in (
        lambda: StreamPlan(access).ranges(start, end),
        lambda: StreamPlan(access).ranges(start, StreamPlan(access).next_offsets(start, 10, by_records=True)),
    ):
        with pytest.raises(DataLoss) as failed:
            asked()
        reported_text = str(failed.value)
        assert reported_text.startswith(
            "topic orders partition 0: offset 0 is wanted and is gone, the log starts at 25: 25 offsets are lost, "
            "the next that can be read is 25."
        )
        assert "failOnDataLoss=false" in reported_text
        assert "\n" not in reported_text


def test_offset_range_trimmed_before_the_read_is_a_gap(
    valkey: ValkeyServer, topic: WrittenTopic, tmp_path: Path
) -> None:
    options = {"subscribe": "orders", "failOnDataLoss": "false", "archive_path": str(tmp_path)}
    access = access_to(valkey.url, **options)
    start = starting.initial_offsets(access, "earliest")
    topic.raise_log_start(25)
    plan = StreamPlan(access)

    end = plan.next_offsets(start, None, by_records=False)
    progress = plan.progress()
    assert progress is not None
    assert progress["_metrics"]["pipeline_lost_offsets_total"] == 25
    ranges = plan.ranges(start, end)

    assert [(r.tier, r.start, r.end) for r in ranges] == [(Tier.LOST, 0, 25), (Tier.REDIS, 25, 40)]
    for _ in range(2):
        assert offsets_of(access, ranges) == [(0, offset) for offset in range(25, 40)]
    assert gaps(tmp_path) == [(0, 25)], "once, however often it is read"
    plan.ranges(start, end)
    progress = plan.progress()
    assert progress is not None
    assert progress["_metrics"] == {
        "avgOffsetsBehindLatest": 0.0, "maxOffsetsBehindLatest": 0, "minOffsetsBehindLatest": 0,
        "pipeline_corrupt_batches_total": 0, "pipeline_lost_offsets_total": 25,
    }  # fmt: skip
    limited = StreamPlan(access).next_offsets(start, 1, by_records=True)
    assert limited.next == {("orders", 0): 26}

    raw = access_to(valkey.url, **options, mode="raw", includeRange="true")
    rows = [(row["from_offset"], row["last_offset"], row["records"]) for row in rows_of(raw, ranges)]
    assert rows == [(0, 24, 0), (25, 29, 10), (30, 39, 10)], "no hole, also where offsets are lost"


def test_trim_is_detected_by_the_log_start_and_not_by_remaining_entries(
    client: Any, valkey: ValkeyServer, topic: WrittenTopic
) -> None:
    client.hset(topic.keys().meta, "log_start", 15)
    access = access_to(valkey.url, subscribe="orders", startingOffsets='{"orders":{"0":0}}')

    with pytest.raises(DataLoss, match=r"the log starts at 15: 15 offsets are lost"):
        plan_ranges(access)
    hidden = access_to(valkey.url, subscribe="orders")
    assert offsets_of(hidden, plan_ranges(hidden)) == [(0, offset) for offset in range(15, 40)]


def test_archived_offsets_are_read_from_the_archive(
    client: Any, valkey: ValkeyServer, topic: WrittenTopic, tmp_path: Path
) -> None:
    archive_up_to(client, tmp_path, topic, [10, 10, 10])
    topic.raise_log_start(20, local=True)
    both = {"subscribe": "orders", "archive_path": str(tmp_path)}

    access = access_to(valkey.url, **both)
    ranges = plan_ranges(access)
    assert [(r.tier, r.start, r.end) for r in ranges] == [(Tier.ARCHIVE, 0, 20), (Tier.REDIS, 20, 40)]
    assert offsets_of(access, ranges) == [(0, offset) for offset in range(40)]

    with pytest.raises(DataLoss, match="20 offsets are lost"):
        plan_ranges(access_to(valkey.url, **both, tiers="redis", startingOffsets='{"orders":{"0":0}}'))
    cold = access_to(valkey.url, **both, tiers="archive")
    assert offsets_of(cold, plan_ranges(cold)) == [(0, offset) for offset in range(30)]

    start, observed = starting.initial_offsets(access, "earliest"), []
    while (later := StreamPlan(access).next_offsets(start, 7, by_records=True)) != start:
        observed += offsets_of(access, StreamPlan(access).ranges(start, later))
        start = later
    assert observed == [(0, offset) for offset in range(40)], "also where a share ends inside a segment"

    raw = access_to(valkey.url, **both, mode="raw", maxRecordsPerPartition="3")
    assert [row["base_offset"] for row in rows_of(raw, plan_ranges(raw))] == [0, 10, 20, 30]
    late = access_to(valkey.url, **both, startingTimestamp=str(TIMESTAMP_MS + 1))
    assert offsets_of(late, plan_ranges(late))[0] == (0, 10)


def test_offset_range_trimmed_during_the_read(
    client: Any, valkey: ValkeyServer, topic: WrittenTopic, tmp_path: Path
) -> None:
    keep = {"subscribe": "orders", "archive_path": str(tmp_path), "tiers": "redis"}
    access, both = access_to(valkey.url, **keep), access_to(valkey.url, **keep | {"tiers": "both"})
    ranges = plan_ranges(access)
    topic.raise_log_start(20)

    with pytest.raises(DataLoss, match=r"offset 0 is wanted and is gone.* 20 offsets are lost"):
        offsets_of(access, ranges)
    allowed = access_to(valkey.url, **keep, failOnDataLoss="false")
    assert offsets_of(allowed, ranges) == [(0, offset) for offset in range(20, 40)]
    assert gaps(tmp_path) == [(0, 20)]
    archive_up_to(client, tmp_path, topic, [10, 10])
    assert offsets_of(both, ranges) == [(0, offset) for offset in range(40)]


def test_log_compacted_between_plan_and_read_is_read_as_it_is(
    client: Any, valkey: ValkeyServer, topic: WrittenTopic
) -> None:
    access = access_to(valkey.url, subscribe="orders")
    ranges = plan_ranges(access)
    client.xdel(topic.keys().log, "10-1")  # all of its records have newer ones
    client.hset(topic.keys().meta, "cleaned", 30)

    assert offsets_of(access, ranges) == [(0, offset) for offset in (*range(10), *range(20, 40))]
    client.xdel(topic.keys().log, "30-1")
    with pytest.raises(PipelineError, match="the log changed meanwhile"):
        offsets_of(access, ranges)


def test_holes_of_a_log_cost_no_round_trips(
    client: Any, valkey: ValkeyServer, topic: WrittenTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.fill([10] * 16)
    for base in range(10, 190, 20):
        client.xdel(topic.keys().log, f"{base}-1")
    access = access_to(valkey.url, subscribe="orders")
    ranges = plan_ranges(access)
    asked: list[int] = []

    def offsets(self: LogWalker) -> LogOffsets:
        asked.append(1)
        return LogOffsets(0, 0, 200, ())

    monkeypatch.setattr(LogWalker, "offsets", offsets)

    assert len(offsets_of(access, ranges)) == 110
    assert len(asked) <= 2, "once for each reply"


def test_log_changed_during_the_read_is_discarded(client: Any, valkey: ValkeyServer, topic: WrittenTopic) -> None:
    access = access_to(valkey.url, subscribe="orders")
    ranges = plan_ranges(access)
    client.xdel(topic.keys().log, "30-1")

    with pytest.raises(
        PipelineError, match=r"planned as 4 entries with 40 records up to 40, and read as 3 with 30 up to 30"
    ):
        offsets_of(access, ranges)


@pytest.mark.parametrize("allowed", ["true", "false"])
def test_offsets_lower_than_before_always_fail(
    client: Any, valkey: ValkeyServer, topic: WrittenTopic, allowed: str, tmp_path: Path
) -> None:
    access = access_to(valkey.url, subscribe="orders", failOnDataLoss=allowed, archive_path=str(tmp_path))
    earlier = Offsets({("orders", 0): 20}, {"orders": topic.topic_id})
    start = StreamPlan(access).next_offsets(earlier, None, by_records=False)
    assert start.next == {("orders", 0): 40}
    client.delete(topic.keys().log)
    topic.ends.clear()
    topic.fill([10] * 3)

    reported_text = "offset 40 is wanted, but the log ends at 30: it was truncated by 10 offsets"
    with pytest.raises(DataLoss, match=reported_text):
        StreamPlan(access).next_offsets(start, None, by_records=False)
    with pytest.raises(DataLoss, match=reported_text):
        StreamPlan(access).ranges(earlier, start)

    client.hset(topic.keys().meta, "epochs", "0:0 2:30")  # the fence of the new failover epoch, and as long again
    topic.fill([10, 10])
    with pytest.raises(DataLoss, match=reported_text):
        StreamPlan(access).next_offsets(start, None, by_records=False)
    assert StreamPlan(access).next_offsets(earlier, None, by_records=False).epochs == {("orders", 0): 2}


def test_topic_made_again_is_data_loss(client: Any, valkey: ValkeyServer, topic: WrittenTopic, tmp_path: Path) -> None:
    access = access_to(valkey.url, subscribe="orders")
    start = starting.initial_offsets(access, "latest")
    topic.delete()
    again = WrittenTopic(client, "orders")
    again.fill([5] * 12)

    with pytest.raises(
        DataLoss, match=f"topic orders was deleted and made again .its id was {topic.topic_id}, now {again.topic_id}"
    ):
        StreamPlan(access).next_offsets(start, None, by_records=False)

    allowed = access_to(valkey.url, subscribe="orders", failOnDataLoss="false", archive_path=str(tmp_path))
    plan = StreamPlan(allowed)
    renewed = plan.next_offsets(start, None, by_records=False)
    assert (renewed.next, renewed.ids) == ({("orders", 0): 0}, {"orders": again.topic_id})
    options = {"subscribe": "orders", "redis.url": valkey.url, "archive.path": str(tmp_path), "failOnDataLoss": "false"}
    source = TopicSource(CaseInsensitiveDict(options))
    reader = source.streamReader(source.schema())
    assert plan.ranges(start, renewed)
    assert [list(reader.read(task)) for task in reader.partitions(start.to_json(), renewed.to_json())] == [[]]
    assert gaps(tmp_path) == [(40, 0)]
    reported = plan.progress()
    assert reported is not None
    assert reported["_metrics"]["pipeline_lost_offsets_total"] == 0, "how many is not known"
    read = plan.next_offsets(renewed, None, by_records=False)
    assert offsets_of(allowed, plan.ranges(renewed, read)) == [(0, offset) for offset in range(60)]


def test_markers_of_transactions_are_no_rows(client: Any, valkey: ValkeyServer) -> None:
    topic = WrittenTopic(client, "orders")
    marker = build_marker(producer_id=1, producer_epoch=0, coordinator_epoch=0, committed=True, timestamp_ms=5)
    topic.append(batch_bytes(2), marker, batch_bytes(1))

    for isolation in ("read_committed", "read_uncommitted"):
        access = access_to(valkey.url, subscribe="orders", isolation=isolation)
        assert offsets_of(access, plan_ranges(access)) == [(0, 0), (0, 1), (0, 3)]
        raw = access_to(valkey.url, subscribe="orders", isolation=isolation, mode="raw")
        assert [row["base_offset"] for row in rows_of(raw, plan_ranges(raw))] == [0, 3]
    whole = access_to(valkey.url, subscribe="orders", mode="raw", includeRange="true")
    assert [row["last_offset"] for row in rows_of(whole, plan_ranges(whole))] == [1, 2, 3], "the archive keeps them"


def test_batch_divided_between_two_ranges_is_a_hole_of_its_own(valkey: ValkeyServer) -> None:
    """Compaction took 5; the log start was raised to 8: the first range ends there, the other one has the batch."""
    options = access_to(valkey.url, subscribe="orders", mode="raw", includeRange="true").options
    batches = [StoredBatch(batch_bytes(5), 0), StoredBatch(batch_bytes(4), 6)]
    reported = []
    for tier, start, end in ((Tier.ARCHIVE, 0, 8), (Tier.REDIS, 8, 10)):
        rows = RawRows(PlannedRange("orders", "00", 0, tier, start, end, start, end, 1, 1, 1), options, b"")
        reported += [row for made in rows.make(batches) for row in made.to_pylist()]

    assert [(row["from_offset"], row["base_offset"], row["last_offset"], row["records"]) for row in reported] == [
        (0, 0, 4, 5), (5, 5, 5, 0), (6, 6, 7, 0), (8, 6, 9, 4),
    ]  # fmt: skip


def test_raw_batches_are_as_brokers_serve_them(client: Any, valkey: ValkeyServer, topic: WrittenTopic) -> None:
    client.hset(topic.keys().meta, "epochs", "0:0 4:20")
    access = access_to(valkey.url, subscribe="orders", mode="raw")

    served = [row["batch"] for row in rows_of(access, plan_ranges(access))]

    expected = [
        batches_from(base, [10], timestamp=TIMESTAMP_MS + base)[0][:12] + bytes([0, 0, 0, 4 if base >= 20 else 0])
        for base in (0, 10, 20, 30)
    ]  # fmt: skip
    assert [batch[:16] for batch in served] == expected


def test_redis_may_be_away_for_a_while(topic: WrittenTopic, valkey: ValkeyServer) -> None:
    own = ValkeyServer(extra=("--appendonly", "yes"))
    try:
        client = connect(own.url)
        WrittenTopic(client, "orders").fill([10] * 4)
        access = access_to(own.url, subscribe="orders", redis_retry="20")
        ranges = plan_ranges(access)
        own.kill()
        back = threading.Thread(target=lambda: (time.sleep(1), own.start()))
        back.start()

        assert offsets_of(access, ranges) == [(0, offset) for offset in range(40)]
        back.join()
        own.kill()
        gone = access_to(own.url, subscribe="orders", redis_retry="0.3")
        with pytest.raises(PipelineError, match="Redis is away"):
            plan_ranges(gone)
    finally:
        own.stop()


def test_headers_may_be_left_out(client: Any, valkey: ValkeyServer) -> None:
    WrittenTopic(client, "orders").append(build_batch([NewRecord(b"v", headers=[("h", b"1")]), NewRecord(None, b"k")]))
    whole = access_to(valkey.url, subscribe="orders", includeHeaders="true")
    without = access_to(valkey.url, subscribe="orders")

    assert [row["headers"] for row in rows_of(whole, plan_ranges(whole))] == [[{"key": "h", "value": b"1"}], None]
    assert [(row["key"], row["value"]) for row in rows_of(without, plan_ranges(without))] == [
        (None, b"v"),
        (b"k", None),
    ]
    assert "headers" not in rows_of(without, plan_ranges(without))[0]
