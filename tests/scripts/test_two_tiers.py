"""Retention and positions of a log that lies in Redis and in the archive."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.logs import TOPIC, append, batch, batches_of, broker, given_log, read, read_all
from tests.support.segments import archive
from tidegate.errors import OffsetOutOfRange, UnknownTopicOrPartition
from tidegate.log import archive_positions
from tidegate.log.logs import Logs
from tidegate.log.partition import PartitionLog
from tidegate.log.partitions import delete_partition
from tidegate.log.retention import Kept, apply_retention, trim
from tidegate.log.timestamp_search import INLINE_RECORDS_MAX
from tidegate.records.batch import Batch
from tidegate.records.build import NewRecord, build_batch
from tidegate.records.cleaning import CleaningRules, clean, key_id
from tidegate.records.record import iter_heads
from tidegate.settings import Settings
from tidegate.store.store import Store

SIZE = batch(count=2, value=b"x" * 1_000).size


@pytest.fixture
async def logs(store: Store, settings: Settings, tmp_path: Path) -> AsyncIterator[Logs]:
    await given_log(store)
    async with broker(settings, archive_path=str(tmp_path), entry_bytes_max=1) as opened:
        yield opened


def tiered(**configs: Any) -> Any:
    return replace(TOPIC, config=replace(TOPIC.config, remote_storage=True, **configs))


async def given_batches(log: PartitionLog, count: int, oldest_ms: int = 1_000, step_ms: int = 1) -> None:
    for number in range(count):
        await append(log, count=2, value=b"x" * 1_000, timestamp=oldest_ms + number * step_ms)


async def starts(log: PartitionLog) -> tuple[int, int]:
    known = await log.end_offset()
    return known.log_start_offset, known.local_start_offset


# -- the script


async def test_redis_is_trimmed_as_far_as_the_archive_reaches(logs: Logs, tmp_path: Path) -> None:
    log = logs.partition(TOPIC, 0)
    await given_batches(log, 20)
    await archive(log, tmp_path, 20)
    state = await log.refresh()

    with pytest.raises(OffsetOutOfRange):
        await trim(log, state, Kept(0, 22, 0))
    assert await starts(log) == (0, 0)
    assert await trim(log, state, Kept(0, 20, 10 * SIZE)) == 0
    assert await starts(log) == (0, 20)
    assert await log.store.command("HMGET", log.keys.meta, "log_start", "local_start") == [b"0", b"20"]
    assert len(await read_all(log)) == 20


async def test_archive_that_was_reset_or_begins_later_loses_nothing(logs: Logs, tmp_path: Path) -> None:
    log = logs.partition(TOPIC, 0)
    await given_batches(log, 20)
    await archive(log, tmp_path, 40)
    state = await log.refresh()
    await log.store.command("HSET", log.keys.archive, "start", 4)
    with pytest.raises(OffsetOutOfRange):
        await trim(log, state, Kept(2, 20, 0))
    await log.store.command("DEL", log.keys.archive)
    with pytest.raises(OffsetOutOfRange):
        await trim(log, state, Kept(0, 20, 0))

    assert await starts(log) == (0, 0)
    assert await trim(log, state, Kept(20, 20, 0)) == 20  # what is deleted needs no copy


async def test_local_start_follows_the_log_start_and_neither_decreases(logs: Logs, tmp_path: Path) -> None:
    log = logs.partition(TOPIC, 0)
    await given_batches(log, 20)
    await archive(log, tmp_path, 20)
    observed = []
    for kept in (Kept(4, 12, 0), Kept(2, 8, 0), Kept(16, 0, 0), Kept(16, 20, 0), Kept(30, 30, 0)):
        await trim(log, await log.refresh(), kept)
        observed.append(await starts(log))

    assert observed == [(4, 12), (4, 12), (16, 16), (16, 20), (30, 30)]


async def test_restore_that_lowers_both_starts_is_noticed(logs: Logs) -> None:
    log = logs.partition(TOPIC, 0)
    await given_batches(log, 3)
    await log.delete_records(4)
    assert await starts(log) == (4, 4)
    await log.store.command("HSET", log.keys.meta, "log_start", 2, "local_start", 2)

    assert batches_of(await read(log, 3, 1))[0].base_offset == 2
    assert await starts(log) == (2, 2)


async def test_last_entry_stays_when_all_is_archived(logs: Logs, tmp_path: Path) -> None:
    log = logs.partition(TOPIC, 0)
    await given_batches(log, 20)
    expected = [bytes(item.buffer) for item in await read_all(log)]
    await archive(log, tmp_path, 40)
    await trim(log, await log.refresh(), Kept(0, 40, 0))

    assert await log.store.command("XLEN", log.keys.log) >= 1
    assert await starts(log) == (0, 40)
    log.void("read again")
    assert [bytes(item.buffer) for item in await read_all(log)] == expected
    assert (await append(log)).base_offset == 40


async def test_deleting_a_topic_removes_the_index_and_leaves_the_files(logs: Logs, tmp_path: Path) -> None:
    log = logs.partition(TOPIC, 0)
    await given_batches(log, 20)
    segments = await archive(log, tmp_path, 20)
    await delete_partition(log.store, log.keys)

    assert await log.store.command("EXISTS", log.keys.segments, log.keys.archive) == 0
    assert all((tmp_path / segment.file).exists() for segment in segments)
    with pytest.raises(UnknownTopicOrPartition):
        await log.end_offset()


# -- retention


async def test_local_retention_by_size_keeps_the_rest_in_the_archive(logs: Logs, tmp_path: Path) -> None:
    log = logs.partition(tiered(local_retention_bytes=3 * SIZE), 0)
    await given_batches(log, 20)
    assert await apply_retention(log) == 0
    assert await starts(log) == (0, 0)  # nothing is archived yet
    await archive(log, tmp_path, 30)
    assert await apply_retention(log) == 0
    assert await starts(log) == (0, 30)  # not past the archive
    await archive(log, tmp_path, 40)
    await apply_retention(log)

    assert await starts(log) == (0, 34)
    await apply_retention(log)
    assert await starts(log) == (0, 34)
    assert len(await read_all(log)) == 20


async def test_local_retention_by_time(logs: Logs, tmp_path: Path) -> None:
    now = int(time.time() * 1000)
    log = logs.partition(tiered(local_retention_ms=60_000), 0)
    await given_batches(log, 20, now - 205_000, 10_000)
    await archive(log, tmp_path, 40)
    await apply_retention(log)

    assert await starts(log) == (0, 30)


async def test_broker_without_the_archive_leaves_redis_as_it_is(logs: Logs, settings: Settings, tmp_path: Path) -> None:
    topic = tiered(local_retention_bytes=0)
    await given_batches(logs.partition(topic, 0), 20)
    await archive(logs.partition(topic, 0), tmp_path, 40)
    async with broker(settings) as others:
        await apply_retention(others.partition(topic, 0))
        assert await starts(others.partition(topic, 0)) == (0, 0)


async def test_retention_by_size_counts_both_tiers_and_takes_whole_segments(logs: Logs, tmp_path: Path) -> None:
    log = logs.partition(tiered(local_retention_bytes=4 * SIZE), 0)
    await given_batches(log, 20)
    await archive(log, tmp_path, 32, segment_batches=4)
    await apply_retention(log)
    assert await starts(log) == (0, 32)
    observed = []
    for batches in (20, 18, 15, 12, 5, 3, 0):
        log.topic = tiered(local_retention_bytes=4 * SIZE, retention_bytes=batches * SIZE)
        await apply_retention(log)
        observed.append(await starts(log))

    assert observed == [(0, 32), (0, 32), (8, 32), (16, 32), (24, 32), (34, 34), (40, 40)]


async def test_retention_by_time_takes_segments_and_then_entries(logs: Logs, tmp_path: Path) -> None:
    now = int(time.time() * 1000)
    log = logs.partition(tiered(local_retention_bytes=4 * SIZE), 0)
    await given_batches(log, 20, now - 200_000, 10_000)
    await archive(log, tmp_path, 32, segment_batches=4)
    await apply_retention(log)
    observed = []
    for seconds in (205, 155, 118, 25):
        log.topic = tiered(local_retention_bytes=4 * SIZE, retention_ms=seconds * 1_000)
        await apply_retention(log)
        observed.append(await starts(log))

    assert observed == [(0, 32), (8, 32), (16, 32), (36, 36)]


async def test_retention_by_time_takes_undated_segments_with_the_next_dated_one(logs: Logs, tmp_path: Path) -> None:
    now = int(time.time() * 1000)
    log = logs.partition(tiered(local_retention_bytes=4 * SIZE), 0)
    await given_batches(log, 4, -1, 0)
    await given_batches(log, 4, now - 200_000, 10_000)
    await given_batches(log, 4, -1, 0)
    await given_batches(log, 8, now - 20_000, 1_000)
    await archive(log, tmp_path, 32, segment_batches=4)
    await apply_retention(log)
    assert await starts(log) == (0, 32)
    log.topic = tiered(local_retention_bytes=4 * SIZE, retention_ms=100_000)
    await apply_retention(log)

    assert await starts(log) == (16, 32)


async def test_topic_that_leaves_the_archive_starts_where_redis_does(logs: Logs, tmp_path: Path) -> None:
    log = logs.partition(tiered(local_retention_bytes=4 * SIZE), 0)
    await given_batches(log, 20)
    await archive(log, tmp_path, 32)
    await apply_retention(log)
    log.topic = TOPIC

    assert await apply_retention(log) == 32
    assert await starts(log) == (32, 32)


async def test_broker_without_the_archive_notice_reads_nothing_of_it(logs: Logs, tmp_path: Path) -> None:
    log = logs.partition(tiered(local_retention_bytes=4 * SIZE), 0)
    await given_batches(log, 20)
    await archive(log, tmp_path, 32)
    await apply_retention(log)
    await log.store.command(
        "HSET", log.store.cluster_keys.topic(TOPIC.org, TOPIC.name), "remote.storage.enable", "true"
    )
    log.topic = TOPIC

    assert await apply_retention(log) == 0
    assert await starts(log) == (0, 32)


async def test_retention_continues_in_redis_where_the_index_was_reset(logs: Logs, tmp_path: Path) -> None:
    log = logs.partition(tiered(local_retention_bytes=4 * SIZE), 0)
    await given_batches(log, 20)
    await archive(log, tmp_path, 32)
    await apply_retention(log)
    await log.store.command("DEL", log.keys.archive, log.keys.segments)
    observed = []
    for batches in (4, 3):
        log.topic = tiered(retention_bytes=batches * SIZE)
        await apply_retention(log)
        observed.append(await starts(log))

    assert observed == [(0, 32), (34, 34)]


# -- positions


@pytest.mark.parametrize("seed", range(10))
async def test_times_are_found_as_in_one_log(logs: Logs, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    log = logs.partition(TOPIC, 0)
    for _ in range(30):
        await append(log, timestamps=[chance.randrange(1_000, 1_060) for _ in range(chance.randrange(1, 5))])
    records = [
        (item.base_offset + head.offset_delta, head.timestamp)
        for item in await read_all(log)
        for head in iter_heads(item)
    ]
    bases = [item.base_offset for item in await read_all(log)]
    log_start, border = chance.randrange(0, bases[12]), bases[chance.randrange(14, 28)]
    times = range(995, 1_065)
    await log.delete_records(log_start)
    before = [await log.offset_for_timestamp(at) for at in times], await log.max_timestamp()
    await archive(log, tmp_path, border + 3, segment_batches=3, row_group_batches=2)
    await log.store.command("HSET", log.keys.archive, "start", log_start)
    await trim(log, await log.refresh(), Kept(log_start, border, 0))

    assert await starts(log) == (log_start, border)
    assert ([await log.offset_for_timestamp(at) for at in times], await log.max_timestamp()) == before
    kept = [record for record in records if record[0] >= log_start]
    assert before[1] == max(kept, key=lambda record: (record[1], -record[0]))
    assert batches_of(await read(log, log_start, 1))[0].base_offset <= log_start


async def test_largest_timestamp_behind_a_compacted_batch(logs: Logs, tmp_path: Path) -> None:
    """The log start is in a batch whose records from there on were removed by compaction."""
    log = logs.partition(TOPIC, 0)
    whole = Batch.parse(build_batch([NewRecord(b"v", key, 9_000) for key in (b"a", b"b")]))
    first = clean(whole, 0, CleaningRules({key_id(b"b"): 100}, 0, 0, 0)).batch
    assert first is not None
    await append(log, Batch.parse(first))
    await given_batches(log, 10)
    await log.delete_records(1)
    await archive(log, tmp_path, 20)
    await log.store.command("HSET", log.keys.archive, "start", 1)
    await trim(log, await log.refresh(), Kept(1, 18, 0))

    assert await starts(log) == (1, 18)
    assert await log.max_timestamp() == (20, 1_009)


@pytest.mark.parametrize(("count", "is_inline"), [(2, True), (INLINE_RECORDS_MAX + 1, False)])
async def test_archived_batch_of_many_records_is_searched_in_a_thread(
    logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, is_inline: bool
) -> None:
    log = logs.partition(TOPIC, 0)
    await append(log, timestamps=[1_000 + i for i in range(count)])
    await given_batches(log, 1)
    await archive(log, tmp_path, count)
    await trim(log, await log.refresh(), Kept(1, count, 0))
    threads = []

    def heads(item: Batch) -> Any:
        threads.append(threading.current_thread())
        return iter_heads(item)

    monkeypatch.setattr(archive_positions, "iter_heads", heads)

    assert await log.offset_for_timestamp(1_000 + count - 1) == (count - 1, 1_000 + count - 1)
    assert await log.max_timestamp() == (count - 1, 1_000 + count - 1)
    assert threads
    assert all((thread is threading.main_thread()) is is_inline for thread in threads)
