"""Planning of topics on the real server: walks, shares, targets, splits, starting points."""

from __future__ import annotations

import json
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.logs import batch_bytes
from tests.support.topic_reads import access_to, archive_up_to, offsets_of, rows_of
from tests.support.topics import TIMESTAMP_MS, WrittenTopic
from tests.support.valkey import ValkeyServer
from tidegate.records.build import NewRecord, build_batch
from tidegate_pipeline.errors import LogGone, UsageError
from tidegate_pipeline.sources import starting
from tidegate_pipeline.sources.batch_plan import plan_ranges
from tidegate_pipeline.sources.offsets import Offsets
from tidegate_pipeline.sources.stream_plan import StreamPlan
from tidegate_pipeline.sources.walking import Limits, LogWalker, Step


def walker(client: Any, topic: WrittenTopic) -> LogWalker:
    return LogWalker(client, topic.keys(), 5.0)


def test_log_walk_lists_entries_up_to_its_limit(client: Any) -> None:
    topic = WrittenTopic(client, "orders")
    walk = walker(client, topic).walk
    assert walk(0).steps == []
    for first, second in ((3, 1), (2, 1), (5, 1), (1, 1)):
        topic.append(batch_bytes(first, timestamp=topic.ends.get(0, 0)), batch_bytes(second, timestamp=2))

    whole = walk(0)
    assert (whole.offsets.redis_start, whole.offsets.end, whole.offsets.epochs, whole.position) == (
        0,
        15,
        ((0, 0),),
        15,
    )
    assert whole.steps == [Step(0, 15, 4, 15, sum(step.size for step in whole.steps), 13)]
    singly = walk(0, -1, Limits(grain_records=1)).steps
    assert [step[:4] for step in singly] == [(0, 4, 1, 4), (4, 7, 1, 3), (7, 13, 1, 6), (13, 15, 1, 2)]
    assert sum(step.size for step in singly) == whole.steps[0].size
    assert [step[:4] for step in walk(0, -1, Limits(grain_records=7)).steps] == [
        (0, 7, 2, 7),
        (7, 13, 1, 6),
        (13, 15, 1, 2),
    ]
    assert walk(5, 9).steps[0][:4] == (4, 9, 2, 9)
    assert walk(0, -1, Limits(records=6)).position == 6
    assert walk(0, -1, Limits(records=6)).steps[0][:4] == (0, 6, 2, 7), "the entry that is cut is counted whole"
    assert walk(0, -1, Limits(records=7)).position == 7
    assert walk(9, -1, Limits(records=2)).position == 11, "also where it begins inside an entry"
    assert walk(9, -1, Limits(records=0)).position == 10, "one at least"
    assert walk(9, -1, Limits(records=0, at_least_one=False)).steps == []
    assert walk(0, -1, Limits(size=1)).position == 4
    assert walk(0, -1, Limits(size=1, at_least_one=False)).steps == []
    assert walk(99).steps == []


def test_log_walk_stops_after_8_mib_and_continues_there(client: Any) -> None:
    topic = WrittenTopic(client, "orders")
    for _ in range(40):
        topic.append(batch_bytes(value=bytes(1 << 20)))

    walk, position, calls = walker(client, topic).walk, 0, 0
    taken = 0
    while position < 40:
        walked = walk(position)
        assert walked.steps[0].size <= 9 << 20
        position, calls, taken = walked.position, calls + 1, taken + walked.steps[0].entries
    assert (calls, taken) == (5, 40)


def test_walk_begins_at_what_is_shown_and_passes_holes(client: Any) -> None:
    topic = WrittenTopic(client, "orders")
    topic.fill([5, 5])
    topic.append(batch_bytes(2), at=20)
    walk = walker(client, topic).walk

    client.hset(topic.keys().meta, "log_start", 7)
    walked = walk(0)
    assert (walked.offsets.log_start, walked.offsets.redis_start, walked.position) == (7, 7, 22)
    assert walked.steps[0][:4] == (5, 22, 2, 7)
    assert walk(11, 18) == walked.__class__(walked.offsets, 18, [])
    client.hset(topic.keys().meta, "local_start", 20)
    assert walk(0).steps[0][:4] == (20, 22, 1, 2)

    topic.delete()
    with pytest.raises(LogGone):
        walk(0)


def test_stream_takes_fair_shares_until_all_is_read(client: Any, valkey: ValkeyServer) -> None:
    topic = WrittenTopic(client, "orders", 3)
    topic.fill([1] * 40)
    topic.fill([1] * 4, partition=1)
    access = access_to(valkey.url, subscribe="orders")
    offsets = starting.initial_offsets(access, "earliest")
    observed, sizes = [], []

    while True:
        plan = StreamPlan(access)
        later = plan.next_offsets(offsets, 20, by_records=True)
        if later.to_json() == offsets.to_json():
            break
        ranges = plan.ranges(offsets, later)
        assert ranges == StreamPlan(access).ranges(offsets, later), "the same without what was remembered"
        read = offsets_of(access, ranges)
        sizes.append(len(read))
        observed += read
        offsets = later

    assert sizes == [20, 20, 4]
    assert sorted(observed) == [*((0, offset) for offset in range(40)), *((1, offset) for offset in range(4))]


def test_entry_larger_than_the_limit_is_read_all_the_same(client: Any, valkey: ValkeyServer) -> None:
    topic = WrittenTopic(client, "orders", 2)
    topic.fill([50, 1])
    topic.fill([1, 70], partition=1)
    access = access_to(valkey.url, subscribe="orders")
    start = starting.initial_offsets(access, "earliest")

    later = StreamPlan(access).next_offsets(start, 1, by_records=False)
    assert later.next == {("orders", 0): 50, ("orders", 1): 1}
    later = StreamPlan(access).next_offsets(later, 1, by_records=False)
    assert later.next == {("orders", 0): 51, ("orders", 1): 71}


def test_limit_of_offsets_ends_inside_an_entry(client: Any, valkey: ValkeyServer) -> None:
    topic = WrittenTopic(client, "orders", 2)
    topic.fill([25, 3, 1])
    topic.fill([4, 30], partition=1)
    access = access_to(valkey.url, subscribe="orders")
    offsets, observed, sizes = starting.initial_offsets(access, "earliest"), list[tuple[int, int]](), list[int]()

    while (later := (plan := StreamPlan(access)).next_offsets(offsets, 10, by_records=True)) != offsets:
        ranges = plan.ranges(offsets, later)
        assert ranges == StreamPlan(access).ranges(offsets, later), "the same without what was remembered"
        read = offsets_of(access, ranges)
        sizes.append(len(read))
        observed += read
        offsets = later

    assert sizes == [10] * 6 + [3]
    assert sorted(observed) == [*((0, offset) for offset in range(29)), *((1, offset) for offset in range(34))]
    one = StreamPlan(access).next_offsets(starting.initial_offsets(access, "earliest"), 1, by_records=True)
    assert one.next == {("orders", 0): 1, ("orders", 1): 1}, "one of each partition at least"


def test_available_now_ends_at_what_was_there(client: Any, valkey: ValkeyServer) -> None:
    topic = WrittenTopic(client, "orders", 1)
    topic.fill([5] * 4)
    access = access_to(valkey.url, subscribePattern="ord.*")
    start, plan = starting.initial_offsets(access, "earliest"), StreamPlan(access)
    plan.fix_target()

    topic.fill([5] * 4)
    topic.grow(2)
    topic.fill([5], partition=1)
    WrittenTopic(client, "ordinary").fill([1])

    first = plan.next_offsets(start, 10, by_records=True)
    assert first.next == {("orders", 0): 10}
    for limit in (None, 1 << 30):
        everything = plan.next_offsets(first, limit, by_records=True)
        assert everything.next == {("orders", 0): 20}, "the target holds for every limit"
        assert plan.next_offsets(everything, limit, by_records=True) == everything
    beyond = Offsets({("orders", 0): 30}, start.ids)
    assert plan.next_offsets(beyond, None, by_records=False).next == {("orders", 0): 30}, "it never goes back"


def test_new_partitions_appear_with_their_start_and_deleted_ones_disappear(client: Any, valkey: ValkeyServer) -> None:
    topic, other = WrittenTopic(client, "orders"), WrittenTopic(client, "payments")
    topic.fill([2])
    other.fill([3])
    access = access_to(valkey.url, subscribePattern=".*")
    plan, offsets = StreamPlan(access), starting.initial_offsets(access, "latest")

    topic.grow(2)
    topic.fill([4], partition=1)
    late = WrittenTopic(client, "late")
    late.fill([5, 5])
    late.raise_log_start(5)
    other.delete()

    appeared = plan.next_offsets(offsets, None, by_records=False)
    assert appeared.next == {("orders", 0): 2, ("orders", 1): 0, ("late", 0): 5}
    assert plan.ranges(offsets, appeared) == []
    read = plan.next_offsets(appeared, None, by_records=False)
    assert offsets_of(access, plan.ranges(appeared, read)) == [(0, n) for n in range(5, 10)] + [
        (1, n) for n in range(4)
    ]
    assert plan.next_offsets(read, None, by_records=False).to_json() == read.to_json()
    assert list(read.to_json()) == ["late", "orders", "_ids"]


def test_splits_cover_a_range_without_overlap(client: Any, valkey: ValkeyServer) -> None:
    topic = WrittenTopic(client, "orders", 2)
    topic.fill([3, 1, 4, 1, 5, 9, 2, 6] * 4)
    topic.fill([1, 1], partition=1)
    whole = [*((0, offset) for offset in range(124)), *((1, offset) for offset in range(2))]

    for options, tasks in (
        ({}, 2),
        ({"minPartitions": "8"}, 8),
        ({"minPartitions": "1"}, 2),
        ({"minPartitions": "1000"}, 34),
        ({"maxRecordsPerPartition": "10"}, 17),
        ({"maxRecordsPerPartition": "1"}, 34),
    ):
        access = access_to(valkey.url, subscribe="orders", **options)
        ranges = plan_ranges(access)
        assert len(ranges) >= tasks if "minPartitions" in options else len(ranges) == tasks, options
        for before, after in pairwise(ranges):
            assert (before.end == after.start) == (before.partition == after.partition)
        if "maxRecordsPerPartition" in options:
            assert all(r.records <= int(options["maxRecordsPerPartition"]) or r.entries == 1 for r in ranges)
        assert offsets_of(access, ranges) == whole


def test_queries_begin_and_end_at_the_options(client: Any, valkey: ValkeyServer, tmp_path: Path) -> None:
    topic = WrittenTopic(client, "orders", 2)
    topic.fill([5] * 4)
    topic.fill([5] * 2, partition=1)

    def starts(**options: str) -> dict[int, int]:
        access = access_to(valkey.url, **({"subscribe": "orders"} | options))
        return {partition: offset for (_, partition), offset in starting.initial_offsets(access, "latest").next.items()}

    assert starts() == {0: 20, 1: 10}
    assert starts(startingOffsets="earliest") == {0: 0, 1: 0}
    assert starts(startingOffsets=json.dumps({"orders": {"0": 7, "1": -2}})) == {0: 7, 1: 0}
    assert starts(startingOffsets=json.dumps({"orders": {"0": -1}}), subscribe="", assign='{"orders":[0]}') == {0: 20}
    latest = partial(starts, startingOffsetsByTimestampStrategy="latest")
    assert latest(startingTimestamp=str(TIMESTAMP_MS + 6)) == {0: 10, 1: 10}
    assert starts(startingTimestamp=str(TIMESTAMP_MS + 5)) == {0: 5, 1: 5}
    assert starts(startingTimestamp="0") == {0: 0, 1: 0}
    client.zadd(topic.keys().times, {f"{10:019d}": TIMESTAMP_MS + 10})
    assert latest(startingTimestamp=str(TIMESTAMP_MS + 11)) == {0: 15, 1: 10}

    assert starts(startingOffsets="archive") == {0: 0, 1: 0}
    assert archive_up_to(client, tmp_path, topic, [5, 5]) == 10
    assert starts(startingOffsets="archive") == {0: 10, 1: 0}

    def reads(ends: str, **options: str) -> list[tuple[int, int]]:
        access = access_to(valkey.url, subscribe="orders", endingOffsets=ends, **options)
        return offsets_of(access, plan_ranges(access))

    assert reads('{"orders": {"0": 3, "1": 0}}') == [(0, 0), (0, 1), (0, 2)]
    with pytest.raises(UsageError, match=r"endingOffsets is latest, or JSON with offsets or -1 \(latest\)"):
        reads('{"orders": {"0": 3, "1": -2}}')
    middle = json.dumps({"orders": {"0": 8, "1": 10}})
    assert reads('{"orders": {"0": 12, "1": -1}}', startingOffsets=middle) == [(0, n) for n in range(8, 12)]


@pytest.mark.parametrize(
    ("options", "reported_text"),
    [
        (
            {"subscribe": "orders", "startingOffsets": '{"orders":{"0":1}}'},
            "startingOffsets has no offset for orders 1",
        ),
        (
            {"subscribe": "orders", "startingOffsets": '{"orders":{"0":1,"1":1,"2":1}}'},
            "startingOffsets is for what is not read: orders 2",
        ),
        (
            {"subscribe": "orders", "startingOffsets": '{"orders":{"0":1,"1":1},"_ids":{"orders":"ff"}}'},
            "startingOffsets is of another topic orders",
        ),
    ],
)
def test_starting_offsets_of_other_partitions_are_refused(
    client: Any, valkey: ValkeyServer, options: dict[str, str], reported_text: str
) -> None:
    WrittenTopic(client, "orders", 2).fill([1, 1])
    access = access_to(valkey.url, **options)

    with pytest.raises(UsageError, match=reported_text):
        starting.initial_offsets(access, "latest")


def test_partition_waits_until_it_has_enough_or_has_waited(client: Any, valkey: ValkeyServer) -> None:
    topic = WrittenTopic(client, "orders", 2)
    topic.fill([1], value=b"x" * 400)
    topic.fill([1, 1], partition=1, value=b"x" * 400)
    options = {"subscribe": "orders", "minBytesPerPartition": "800", "maxTriggerDelay": "500ms"}
    access = access_to(valkey.url, **options)
    plan, start = StreamPlan(access), starting.initial_offsets(access, "earliest")

    first = plan.next_offsets(start, 1 << 20, False)
    assert first.next == {("orders", 0): 0, ("orders", 1): 2}, "one has enough, the other waits"
    limited = plan.next_offsets(start, 100, False)
    assert limited.next[("orders", 1)] == 1, "one that is behind does not wait"

    deadline = time.monotonic() + 30
    while (waited := plan.next_offsets(first, 1 << 20, False)) == first and time.monotonic() < deadline:
        time.sleep(0.05)
    assert waited.next == {("orders", 0): 1, ("orders", 1): 2}

    topic.fill([1], value=b"x" * 400)
    once = StreamPlan(access)
    once.fix_target()
    assert once.next_offsets(waited, 1 << 20, False).next == {("orders", 0): 2, ("orders", 1): 2}


def test_micro_batch_waits_until_there_are_as_many_offsets(client: Any, valkey: ValkeyServer) -> None:
    topic = WrittenTopic(client, "orders", 2)
    topic.fill([1])
    options = {"subscribe": "orders", "minOffsetsPerTrigger": "10", "maxTriggerDelay": "1h"}
    access = access_to(valkey.url, **options)
    plan, start = StreamPlan(access), starting.initial_offsets(access, "earliest")

    first = plan.next_offsets(start, 1 << 20, False)
    assert first.next == {("orders", 0): 1, ("orders", 1): 0}, "the first one does not wait"
    topic.fill([5])
    topic.fill([4], partition=1)
    assert plan.next_offsets(first, 1 << 20, False) == first, "9 wait"
    once = StreamPlan(access)
    once.fix_target()
    assert once.next_offsets(first, 1 << 20, False).next == {("orders", 0): 6, ("orders", 1): 4}
    topic.fill([1], partition=1)
    assert plan.next_offsets(first, 1 << 20, False).next == {("orders", 0): 6, ("orders", 1): 5}


def test_batch_query_is_planned_of_one_snapshot(
    client: Any, valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics come and go while a query is planned."""
    topic = WrittenTopic(client, "orders")
    topic.fill([3])
    made: list[WrittenTopic] = []
    read = starting.tiers_of

    def reading(*args: Any) -> Any:
        found = read(*args)
        made.append(WrittenTopic(client, f"orders-{len(made)}"))
        if len(made) == 2:
            topic.delete()
        return found

    monkeypatch.setattr(starting, "tiers_of", reading)
    access = access_to(valkey.url, subscribePattern="orders.*")

    assert [(range_.topic, range_.end) for range_ in plan_ranges(access)] == [("orders", 3)]
    assert len(made) == 1, "they are read once"


def test_offsets_beyond_the_end_are_named_as_such(client: Any, valkey: ValkeyServer) -> None:
    WrittenTopic(client, "orders").fill([5])
    access = access_to(valkey.url, subscribe="orders", startingOffsets='{"orders":{"0":6}}')

    for asked in (lambda: starting.initial_offsets(access, "latest"), lambda: plan_ranges(access)):
        with pytest.raises(UsageError, match="startingOffsets: topic orders partition 0 ends at 5, 6 is beyond"):
            asked()


def test_progress_reports_the_lag_of_a_query(client: Any, valkey: ValkeyServer) -> None:
    topic = WrittenTopic(client, "orders", 2)
    topic.fill([30])
    topic.fill([4], partition=1)
    access = access_to(valkey.url, subscribe="orders")
    plan = StreamPlan(access)

    plan.next_offsets(starting.initial_offsets(access, "earliest"), 10, by_records=True)

    progress = plan.progress()
    assert progress is not None
    metrics = {name: figure for name, figure in progress["_metrics"].items() if "Behind" in name}
    assert metrics == {"minOffsetsBehindLatest": 0, "avgOffsetsBehindLatest": 12.0, "maxOffsetsBehindLatest": 24}


def test_log_with_holes_is_read_whole_and_holes_are_rows_of_ranges(client: Any, valkey: ValkeyServer) -> None:
    topic = WrittenTopic(client, "orders")
    topic.append(batch_bytes(3), batch_bytes(2))
    topic.append(batch_bytes(2), at=20)
    topic.append(batch_bytes(4), at=50)
    records = [(0, offset) for offset in (*range(5), 20, 21, *range(50, 54))]

    for options in ({}, {"maxRecordsPerPartition": "1"}):
        access = access_to(valkey.url, subscribe="orders", **options)
        ranges = plan_ranges(access)
        assert offsets_of(access, ranges) == records
        assert [(before.end, after.start) for before, after in pairwise(ranges)] == [
            (r.start, r.start) for r in ranges[1:]
        ]
    ended = access_to(
        valkey.url, subscribe="orders", mode="raw", includeRange="true", endingOffsets='{"orders":{"0":40}}'
    )
    reported = [(row["from_offset"], row["last_offset"], row["records"]) for row in rows_of(ended, plan_ranges(ended))]
    assert reported == [(0, 2, 3), (3, 4, 2), (5, 21, 2), (22, 39, 0)]
    within = access_to(
        valkey.url,
        subscribe="orders",
        mode="raw",
        startingOffsets='{"orders":{"0":30}}',
        endingOffsets='{"orders":{"0":45}}',
    )
    assert rows_of(within, plan_ranges(within)) == []
    inside = access_to(valkey.url, subscribe="orders", mode="raw", endingOffsets='{"orders":{"0":4}}')
    assert [row["last_offset"] for row in rows_of(inside, plan_ranges(inside))] == [2], "a range has its whole batches"


def test_times_are_found_to_the_record(client: Any, valkey: ValkeyServer) -> None:
    """Batches of three records, 10 ms apart; the second batch of partition 0 is out of order."""
    topic = WrittenTopic(client, "orders", 2)

    def batch(*times: int) -> bytes:
        return build_batch([NewRecord(b"v", timestamp=TIMESTAMP_MS + time) for time in times])

    topic.append(batch(0, 10, 20), batch(50, 30, 40))
    topic.append(batch(60, 70, 80))
    topic.append(batch(5, 15, 25), partition=1)

    def ranges(**options: str) -> dict[int, tuple[int, int]]:
        access = access_to(valkey.url, **({"subscribe": "orders"} | options))
        start, end = starting.initial_offsets(access, "earliest"), starting.ending_offsets(access)
        return {place[1]: (offset, end.next[place]) for place, offset in start.next.items()}

    def by_partition(first: int, second: int) -> str:
        return json.dumps({"orders": {"0": TIMESTAMP_MS + first, "1": TIMESTAMP_MS + second}})

    assert ranges(startingTimestamp=str(TIMESTAMP_MS + 15)) == {0: (2, 9), 1: (1, 3)}
    assert ranges(startingTimestamp=str(TIMESTAMP_MS + 21)) == {0: (3, 9), 1: (2, 3)}
    assert ranges(startingOffsetsByTimestamp=by_partition(61, 0)) == {0: (7, 9), 1: (0, 3)}
    assert ranges(endingTimestamp=str(TIMESTAMP_MS + 20)) == {0: (0, 2), 1: (0, 2)}
    assert ranges(endingOffsetsByTimestamp=by_partition(70, 90)) == {0: (0, 7), 1: (0, 3)}
    with pytest.raises(UsageError, match="startingTimestamp: topic orders partition 1 has no record of "):
        ranges(startingTimestamp=str(TIMESTAMP_MS + 26))
    with pytest.raises(UsageError, match="startingOffsetsByTimestamp has no offset for orders 1"):
        ranges(startingOffsetsByTimestamp='{"orders":{"0":1}}')


def test_times_are_found_to_the_record_in_the_archive(client: Any, valkey: ValkeyServer, tmp_path: Path) -> None:
    topic = WrittenTopic(client, "orders")
    topic.fill([5] * 4)
    assert archive_up_to(client, tmp_path, topic, [5, 5]) == 10
    topic.raise_log_start(10, local=True)
    access = access_to(
        valkey.url, subscribe="orders", archive_path=str(tmp_path), startingTimestamp=str(TIMESTAMP_MS + 4)
    )

    found = starting.initial_offsets(access, "earliest").next["orders", 0]
    first = next(row for row in rows_of(access, plan_ranges(access)))
    assert first["offset"] == found
    assert first["timestamp"].timestamp() * 1000 >= TIMESTAMP_MS + 4
