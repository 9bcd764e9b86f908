"""isolation=read_committed in the pipeline: up to the first open transaction, without the aborted ones."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.logs import batch_bytes
from tests.support.markers import build_marker
from tests.support.topic_reads import access_to, offsets_of, rows_of
from tests.support.topics import PREFIX, WrittenTopic
from tests.support.transactions import Producer, brokers_of, transactional
from tests.support.valkey import ValkeyServer
from tidegate.records.batch import Batch
from tidegate.settings import Settings
from tidegate.store.keys import ClusterKeys
from tidegate.store.store import Store
from tidegate_pipeline.archive.index import ArchiveIndex, Archiver
from tidegate_pipeline.archive.segment_writer import ArchiveFolder, Shape, write_segment
from tidegate_pipeline.archive.slicing import slice_segments
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.redis_access import replids, with_whole_entries
from tidegate_pipeline.replay.sink import ReplayWriter, plan_of
from tidegate_pipeline.sources import reads, starting
from tidegate_pipeline.sources.access import Access
from tidegate_pipeline.sources.batch_plan import plan_ranges
from tidegate_pipeline.sources.offsets import Offsets
from tidegate_pipeline.sources.stream_plan import StreamPlan
from tidegate_pipeline.sources.tasks import arrow_rows


@pytest.fixture
def topic(client: Any) -> WrittenTopic:
    return WrittenTopic(client, "orders")


def committed(valkey: ValkeyServer, **options: str) -> Access:
    return access_to(valkey.url, subscribe="orders", isolation="read_committed", **options)


def read(access: Access) -> list[int]:
    return [offset for _, offset in offsets_of(access, plan_ranges(access))]


def records(producer_id: int, count: int = 1) -> bytes:
    return transactional(batch_bytes(count, producer_id, 0, 0))


def marker(producer_id: int, *, commits: bool) -> bytes:
    return build_marker(
        producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, committed=commits, timestamp_ms=5
    )


def test_aborted_transactions_are_left_out(topic: WrittenTopic, valkey: ValkeyServer) -> None:
    topic.append(batch_bytes(2))  # 0, 1
    topic.append(records(1, 2), records(2))  # 2, 3; 4
    topic.append(batch_bytes(1), records(1), marker(1, commits=False), records(1))  # 5; 6; 7; 8
    topic.append(marker(2, commits=True), marker(1, commits=True))  # 9; 10
    topic.append(batch_bytes(1))  # 11

    assert read(committed(valkey)) == [0, 1, 4, 5, 8, 11]
    assert read(access_to(valkey.url, subscribe="orders")) == [0, 1, 2, 3, 4, 5, 6, 8, 11]


def test_open_transaction_ends_the_query(topic: WrittenTopic, valkey: ValkeyServer) -> None:
    topic.append(batch_bytes(2), records(1), batch_bytes(3))
    access = committed(valkey, startingOffsets="earliest")
    plan = StreamPlan(access)
    start = starting.initial_offsets(access, "latest")

    assert read(access) == [0, 1]
    before = plan.next_offsets(start, None, by_records=False)
    assert offsets_of(access, plan.ranges(start, before)) == [(0, 0), (0, 1)]
    assert plan.next_offsets(before, None, by_records=False) == before
    topic.append(marker(1, commits=True), batch_bytes(1))
    after = plan.next_offsets(before, None, by_records=False)
    assert offsets_of(access, plan.ranges(before, after)) == [(0, offset) for offset in (2, 3, 4, 5, 7)]


def test_snapshot_of_brokers_has_the_outcomes(topic: WrittenTopic, client: Any, valkey: ValkeyServer) -> None:
    topic.append(records(1), records(2))  # 0; 1
    topic.append(marker(1, commits=False), records(3))  # 2; 3
    topic.append(batch_bytes(1))  # 4
    state = "0 5 0:0:1:5"
    client.hset(
        topic.keys().producers,
        mapping={"offset": 4, "max_timestamp": 5, "max_timestamp_base": 0, "aborted": "1:0:2:1",
                 "1": f"{state} -1 9 0", "2": f"{state} 1 -1 -1", "3": f"{state} 3 -1 -1", "4": state},
    )  # fmt: skip

    assert read(committed(valkey)) == []
    topic.append(marker(2, commits=True))
    assert read(committed(valkey)) == [1]
    topic.append(marker(3, commits=False))
    assert read(committed(valkey)) == [1, 4]


def test_transactions_of_many_entries(
    topic: WrittenTopic, valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several calls of the script, which end between the batches of a transaction."""
    monkeypatch.setattr(reads, "_WALK_BYTES", 200)
    monkeypatch.setattr(reads, "_WALK_BYTES_MIN", 200)
    for i in range(200):
        topic.append(records(1 + i % 3))
    for producer_id in (1, 2, 3):
        topic.append(marker(producer_id, commits=producer_id != 2))

    assert read(committed(valkey)) == [i for i in range(200) if i % 3 != 1]


def test_outcome_below_the_log_start_is_unknown(
    topic: WrittenTopic, client: Any, valkey: ValkeyServer, tmp_path: Path
) -> None:
    topic.append(batch_bytes(2), records(1, 2))
    topic.append(marker(1, commits=False), batch_bytes(1))
    raw = access_to(valkey.url, subscribe="orders", mode="raw", includeRange="true")
    rows = [batch for range_ in plan_ranges(raw) for batch in arrow_rows(raw, range_, "")]
    shape = Shape(1 << 20, 1 << 16, "zstd")
    archive = ArchiveFolder.open(str(tmp_path))
    segments = [write_segment(archive, one, shape) for one in slice_segments(rows, "default", 1 << 20)]
    ArchiveIndex(client, topic.keys()).publish(Archiver(1, "test"), segments, replids(client))
    end = topic.append(batch_bytes(1))
    topic.raise_log_start(end - 1)

    assert read(access_to(valkey.url, subscribe="orders", archive_path=str(tmp_path))) == [0, 1, 2, 3, 5, 6]
    with pytest.raises(UsageError, match="offset 2 is of a transaction below the log start 6"):
        read(committed(valkey, archive_path=str(tmp_path)))
    later = committed(valkey, archive_path=str(tmp_path), startingOffsets='{"orders": {"0": 4}}')
    assert read(later) == [5, 6]


def test_raw_batches_end_at_the_last_stable_offset(topic: WrittenTopic, valkey: ValkeyServer) -> None:
    topic.append(batch_bytes(2), records(1))
    raw = committed(valkey, mode="raw")

    assert [row["base_offset"] for row in rows_of(raw, plan_ranges(raw))] == [0]


def test_raw_batches_of_aborted_transactions_are_holes(topic: WrittenTopic, valkey: ValkeyServer) -> None:
    topic.append(batch_bytes(2), records(1, 2), marker(1, commits=False))  # 0, 1; 2, 3; 4
    topic.append(records(1), marker(1, commits=True), records(2), marker(2, commits=False))  # 5; 6; 7; 8

    raw = committed(valkey, mode="raw")
    assert [row["base_offset"] for row in rows_of(raw, plan_ranges(raw))] == [0, 5]
    ranged = committed(valkey, mode="raw", includeRange="true")
    reported = [(r["from_offset"], r["base_offset"], r["last_offset"]) for r in rows_of(ranged, plan_ranges(ranged))]
    assert reported == [(0, 0, 1), (2, 4, 4), (5, 5, 5), (6, 6, 6), (7, 8, 8)]


def test_replay_copies_committed_batches_only(
    topic: WrittenTopic, client: Any, valkey: ValkeyServer, tmp_path: Path
) -> None:
    """A copy knows no transactions: aborted records would look like the others."""
    replid = client.info("replication")["master_replid"]
    client.hset(ClusterKeys(PREFIX).info, mapping={"master_replid": replid, "incarnation": 1})
    target = WrittenTopic(client, "copy")
    client.execute_command("XGROUP", "CREATE", target.keys().log, "made", "0-0", "MKSTREAM")
    topic.append(batch_bytes(2), records(1, 2), marker(1, commits=False))  # 0, 1; 2, 3; 4
    topic.append(records(2), marker(2, commits=True), records(1))  # 5; 6; 7 is of an open transaction
    options = {
        "redis.url": valkey.url, "topic": "copy", "job": "again", "sourceTopic": "orders", "sourceId": topic.topic_id,
        "archive.path": str(tmp_path),
    }  # fmt: skip

    def replay(start: Offsets) -> Offsets:
        raw = committed(valkey, mode="raw", includeRange="true")
        plan = StreamPlan(raw)
        end = plan.next_offsets(start, None, by_records=False)
        writer = ReplayWriter(plan_of(options))
        rows = [batch for range_ in plan.ranges(start, end) for batch in arrow_rows(raw, range_, "")]
        writer.commit([writer.write(iter(rows))], 0)
        return end

    def counts() -> list[int]:
        entries = with_whole_entries(client).execute_command("XRANGE", target.keys().log, "-", "+")
        return [Batch.parse(stored).record_count for _, fields in entries for stored in fields[3::2]]

    end = replay(starting.initial_offsets(committed(valkey), "earliest"))
    assert (end.next, counts()) == ({("orders", 0): 7}, [2, 1])
    topic.append(marker(1, commits=True), batch_bytes(3))
    replay(end)
    assert counts() == [2, 1, 1, 3]


def test_query_may_change_to_committed_records_while_a_transaction_is_open(
    topic: WrittenTopic, valkey: ValkeyServer
) -> None:
    topic.append(batch_bytes(2), records(1))
    start = starting.initial_offsets(access_to(valkey.url, subscribe="orders"), "latest")
    assert start.next == {("orders", 0): 3}

    plan = StreamPlan(committed(valkey))
    assert plan.next_offsets(start, None, by_records=False).next == {("orders", 0): 3}, "it waits"
    topic.append(marker(1, commits=True), batch_bytes(1))
    end = plan.next_offsets(start, None, by_records=False)
    assert [offset for _, offset in offsets_of(committed(valkey), plan.ranges(start, end))] == [4]


@pytest.mark.parametrize("seed", [random.randrange(1 << 30)], ids=["drawn"])
async def test_committed_as_brokers_write_it(store: Store, settings: Settings, valkey: ValkeyServer, seed: int) -> None:
    """Random transactions of three producers; the brokers save snapshots meanwhile."""
    rng = random.Random(seed)
    async with brokers_of(settings, 1) as brokers:
        await brokers.create("orders", 1)
        topic = brokers.all[0].context.catalog.get("default", "orders")
        assert topic is not None
        log = brokers.all[0].context.logs.batch_log(topic, 0)
        producers = [await Producer(brokers, f"T{i}").init() for i in range(3)]
        pending: dict[int, list[int]] = {0: [], 1: [], 2: []}
        expected: list[int] = []
        for step in range(120):
            at = rng.randrange(3)
            if pending[at] and rng.random() < 0.3:
                is_commit = rng.random() < 0.5
                await producers[at].end(is_commit)
                expected += pending[at] if is_commit else []
                pending[at] = []
            else:
                pending[at].append(await producers[at].write("orders"))
            if step % 25 == 24:
                await log.progress.save_now(await log.refresh())
        stable = min([one for of in pending.values() for one in of], default=1 << 60)

        assert read(committed(valkey)) == sorted(one for one in expected if one < stable), f"seed {seed}"


def test_stream_reads_each_batch_once_for_its_transactions(
    topic: WrittenTopic, client: Any, valkey: ValkeyServer
) -> None:
    """A new leader epoch says that a fail-over may have lost what was read: then from the brokers' snapshot again."""
    topic.append(batch_bytes(2), records(1))
    access = committed(valkey)
    planner = starting.planner_of(access, ("orders", 0), starting.select(access)["orders", 0])
    assert planner.tiers().end == 2
    client.execute_command("XDEL", topic.keys().log, "0-1")  # it is not read again
    topic.append(batch_bytes(1))
    assert planner.tiers().end == 2
    topic.append(marker(1, commits=True))
    assert planner.tiers().end == 5

    topic.append(records(2))
    assert planner.tiers().end == 5
    client.hset(topic.keys().meta, "epochs", "0:0 1:5")
    client.execute_command("XDEL", topic.keys().log, "5-1")
    topic.append(batch_bytes(1))
    assert planner.tiers().end == 7
