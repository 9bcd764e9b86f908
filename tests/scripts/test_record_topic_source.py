"""The source of the pipeline on topics of format record: entries become rows, in batch queries and streams."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.record_topics import RecordTopic
from tests.support.topic_reads import access_to, offsets_of, rows_of
from tests.support.topics import WrittenTopic
from tests.support.valkey import ValkeyServer
from tidegate.records.batch import Batch
from tidegate.store.keys import ClusterKeys
from tidegate_pipeline.archive.index import ArchiveIndex, Archiver
from tidegate_pipeline.archive.place import Place
from tidegate_pipeline.archive.segment_writer import ArchiveFolder, Shape, write_segment
from tidegate_pipeline.archive.slicing import slice_segments
from tidegate_pipeline.archive.upkeep import Upkeep
from tidegate_pipeline.errors import DataLoss
from tidegate_pipeline.redis_access import replids
from tidegate_pipeline.settings import PipelineSettings
from tidegate_pipeline.sources import starting
from tidegate_pipeline.sources.batch_plan import plan_ranges
from tidegate_pipeline.sources.offsets import Offsets
from tidegate_pipeline.sources.stream_plan import StreamPlan
from tidegate_pipeline.sources.tasks import arrow_rows

MS = 1_700_000_000_000


@pytest.fixture
def topic(client: Any) -> RecordTopic:
    made = RecordTopic(client, "orders", 2)
    for i in range(6):
        made.add(f"{MS + 1000 * i}-{i}", key=f"k{i}", value=f"v{i}")
    return made


def offset(i: int) -> int:
    """Of the fixture's record."""
    return (MS + 1000 * i) << 10 | i


def test_entries_become_rows(topic: RecordTopic, valkey: ValkeyServer) -> None:
    topic.add(f"{MS + 9000}-0", 1, value=b"\xff\x00", header__trace="7", colour="blue", timestamp=str(MS))
    topic.add(f"{MS + 9000}-1", 1, key="gone")
    topic.add(f"{MS + 9000}-2000", 1, value="no offset")

    access = access_to(valkey.url, subscribe="orders", includeHeaders="true")
    rows = rows_of(access, plan_ranges(access))

    assert [(row["partition"], row["offset"], row["key"], row["value"]) for row in rows] == [
        *((0, offset(i), b"k%d" % i, b"v%d" % i) for i in range(6)),
        (1, (MS + 9000) << 10, None, b"\xff\x00"),
        (1, (MS + 9000) << 10 | 1, b"gone", None),
    ]
    assert rows[1]["timestamp"] == datetime.fromtimestamp((MS + 1000) / 1000, UTC)
    assert rows[6]["timestamp"] == datetime.fromtimestamp(MS / 1000, UTC)
    assert [(one["key"], one["value"]) for one in rows[6]["headers"]] == [("trace", b"7"), ("colour", b"blue")]


def test_own_sequence_bits(client: Any, valkey: ValkeyServer) -> None:
    topic = RecordTopic(client, "orders")
    topic.bits = 12
    client.hset(ClusterKeys("tidegate").topic("default", "orders"), "tidegate.sequence.bits", "12")
    added = topic.add(f"{MS}-3000")

    access = access_to(valkey.url, subscribe="orders")

    assert offsets_of(access, plan_ranges(access)) == [(0, added)]


def test_offsets_and_times_bound_a_query(topic: RecordTopic, valkey: ValkeyServer) -> None:
    given = json.dumps({"orders": {"0": offset(1) + 1, "1": -2}})
    by_offset = access_to(valkey.url, subscribe="orders", startingOffsets=given)
    by_time = access_to(
        valkey.url, assign='{"orders": [0]}', startingTimestamp=str(MS + 1500), endingTimestamp=str(MS + 4000)
    )

    assert offsets_of(by_offset, plan_ranges(by_offset)) == [(0, offset(i)) for i in range(2, 6)]
    assert offsets_of(by_time, plan_ranges(by_time)) == [(0, offset(i)) for i in (2, 3)]


def test_tasks_share_the_records(topic: RecordTopic, valkey: ValkeyServer) -> None:
    access = access_to(valkey.url, subscribe="orders", maxRecordsPerPartition="2")
    ranges = plan_ranges(access)

    assert [range_.records for range_ in ranges if range_.records] == [2, 2, 2]
    assert offsets_of(access, ranges) == [(0, offset(i)) for i in range(6)]


def test_stream_continues_after_a_restart(topic: RecordTopic, valkey: ValkeyServer) -> None:
    access = access_to(valkey.url, subscribe="orders", startingOffsets="earliest")
    plan = StreamPlan(access)
    start = starting.initial_offsets(access, "latest")
    end = plan.next_offsets(start, 4, by_records=True)
    first = offsets_of(access, plan.ranges(start, end))
    again = offsets_of(
        access, StreamPlan(access).ranges(Offsets.from_json(start.to_json()), Offsets.from_json(end.to_json()))
    )
    last = topic.add(f"{MS + 60_000}-0")
    later = plan.next_offsets(end, None, by_records=False)
    rest = offsets_of(access, plan.ranges(end, later))

    assert first == again == [(0, offset(i)) for i in range(4)]
    assert rest == [(0, offset(4)), (0, offset(5)), (0, last)]
    assert offsets_of(access, plan.ranges(later, plan.next_offsets(later, None, by_records=False))) == []


def test_trims_by_programs_are_holes_and_those_of_retention_loss(
    topic: RecordTopic, client: Any, valkey: ValkeyServer
) -> None:
    access = access_to(valkey.url, subscribe="orders", startingOffsets="earliest")
    ranges = plan_ranges(access)
    client.execute_command("XTRIM", topic.keys().log, "MINID", f"{MS + 1000}-0")
    client.execute_command("XDEL", topic.keys().log, f"{MS + 3000}-3")
    assert offsets_of(access, ranges) == [(0, offset(i)) for i in (1, 2, 4, 5)]

    client.hset(topic.keys().meta, "log_start", offset(2))
    with pytest.raises(DataLoss, match="offset 0 is wanted and is gone"):
        offsets_of(access, ranges)
    lenient = access_to(valkey.url, subscribe="orders", failOnDataLoss="false")
    assert offsets_of(lenient, ranges) == [(0, offset(i)) for i in (2, 4, 5)]


def test_raw_rows_are_batches(topic: RecordTopic, valkey: ValkeyServer) -> None:
    raw = access_to(valkey.url, subscribe="orders", mode="raw", includeRange="true")
    rows = [row for row in rows_of(raw, plan_ranges(raw)) if row["records"]]

    assert [(row["from_offset"], row["base_offset"], row["records"]) for row in rows] == [(0, offset(0), 6)]
    served = Batch.parse(rows[0]["batch"])
    served.verify_crc()
    assert served.next_offset == offset(5) + 1


def archive_topic(topic: RecordTopic, url: str, folder: Path) -> None:
    """What the archive job makes of partition 0."""
    raw = access_to(url, assign='{"orders": [0]}', mode="raw", includeRange="true")
    batches = [batch for range_ in plan_ranges(raw) for batch in arrow_rows(raw, range_, "")]
    archive = ArchiveFolder.open(str(folder))
    shape = Shape(1 << 20, 1 << 16, "zstd")
    segments = [write_segment(archive, one, shape) for one in slice_segments(batches, "default", 1 << 20)]
    index = ArchiveIndex(topic.client, Place("default", "orders", topic.topic_id, 0).keys("tidegate"))
    index.publish(Archiver(1, "test"), segments, replids(topic.client))


def verified(topic: RecordTopic, url: str, folder: Path) -> tuple[list[str], int]:
    """Problems, and the number of batches that the log has too."""
    settings = PipelineSettings.model_validate({"redis": {"url": url}, "archive": {"path": str(folder)}})
    reported = Upkeep.of(settings, topic.client).verify([])
    return reported["problems"], reported["log_batches"]


def test_verify_compares_records_with_the_log(
    topic: RecordTopic, client: Any, valkey: ValkeyServer, tmp_path: Path
) -> None:
    for i in range(600):
        topic.add(f"{MS + 100_000 + i}-0", value=str(i), header__h="x")
    archive_topic(topic, valkey.url, tmp_path)
    problems, batches = verified(topic, valkey.url, tmp_path)
    assert problems == [] and batches >= 1
    topic.add(f"{MS + 900_000}-0", value="not archived yet")
    client.execute_command("XDEL", topic.keys().log, f"{MS + 1000}-1")
    client.execute_command("XTRIM", topic.keys().log, "MINID", f"{MS + 1000}-0")
    assert verified(topic, valkey.url, tmp_path)[0] == []


@pytest.mark.parametrize("changed", ["added", "replaced", "shortened"])
def test_verify_names_records_that_differ(
    topic: RecordTopic, client: Any, valkey: ValkeyServer, tmp_path: Path, changed: str
) -> None:
    archive_topic(topic, valkey.url, tmp_path)
    entries = client.xrange(topic.keys().log)
    client.delete(topic.keys().log)
    for entry_id, fields in entries[: 3 if changed == "shortened" else None]:
        if changed == "added" and entry_id == entries[3][0]:
            client.xadd(topic.keys().log, {"value": "new"}, id=f"{MS + 2500}-0")
        is_replaced = changed == "replaced" and entry_id == entries[3][0]
        client.xadd(topic.keys().log, {"value": "other"} if is_replaced else fields, id=entry_id)
    [problem] = verified(topic, valkey.url, tmp_path)[0]
    assert {
        "added": f"a record of offset {(MS + 2500) << 10}, the archive has not",
        "replaced": f"another record of offset {offset(3)} than the archive",
        "shortened": "the archive claims offsets up to",
    }[changed] in problem


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_timestamp_type_of_records(
    topic: RecordTopic, client: Any, valkey: ValkeyServer, tmp_path: Path, kind: str
) -> None:
    topic.add(f"{MS + 9000}-0", value="produced earlier", timestamp=str(MS))
    client.hset(ClusterKeys("tidegate").topic("default", "orders"), "message.timestamp.type", kind)
    access = access_to(valkey.url, subscribe="orders")
    rows = rows_of(access, plan_ranges(access))
    is_appended = kind == "LogAppendTime"
    assert {row["timestampType"] for row in rows} == {int(is_appended)}
    expected_ms = [*(MS + 1000 * i for i in range(6)), MS + 9000 if is_appended else MS]
    assert [row["timestamp"] for row in rows] == [datetime.fromtimestamp(ms / 1000, UTC) for ms in expected_ms]
    archive_topic(topic, valkey.url, tmp_path)
    assert verified(topic, valkey.url, tmp_path)[0] == []


def test_archived_records_are_read_when_they_are_trimmed(
    topic: RecordTopic, client: Any, valkey: ValkeyServer, tmp_path: Path
) -> None:
    archive_topic(topic, valkey.url, tmp_path)
    client.hset(topic.keys().meta, "log_start", offset(4))
    client.execute_command("XTRIM", topic.keys().log, "MINID", f"{MS + 4000}-0")
    last = topic.add(f"{MS + 60_000}-0")

    both = access_to(valkey.url, subscribe="orders", archive_path=str(tmp_path))

    assert offsets_of(both, plan_ranges(both)) == [*((0, offset(i)) for i in range(6)), (0, last)]


def test_batch_topics_beside(topic: RecordTopic, client: Any, valkey: ValkeyServer) -> None:
    WrittenTopic(client, "plain").fill([3])
    access = access_to(valkey.url, subscribePattern=".*")

    assert sorted(offsets_of(access, plan_ranges(access)))[:3] == [(0, 0), (0, 1), (0, 2)]
