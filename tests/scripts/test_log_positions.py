"""Positions by time, trimming and retention, on a real server."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from tests.support.logs import TOPIC, append, append_later, batch, batches_of, broker, given_log, read, read_all
from tidegate.errors import OffsetOutOfRange, StoreUnavailable
from tidegate.log.loading import PAGE_ENTRIES_MAX
from tidegate.log.logs import Logs
from tidegate.log.partition import PartitionLog
from tidegate.log.partitions import delete_partition
from tidegate.log.retention import apply_retention
from tidegate.log.upkeep import CHECK_INTERVAL_MS, Retention, upkeep_item
from tidegate.settings import Settings
from tidegate.store.store import Store


def _topic(**configs: Any) -> Any:
    return replace(TOPIC, config=replace(TOPIC.config, **configs))


async def test_time_is_found_exact_inside_its_batch(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(TOPIC, 0)
        await append(log, timestamps=[100, 200, 300])
        await append(log, timestamps=[50, 450, 400])
        await append(log, timestamps=[500])
        found = [await log.offset_for_timestamp(at) for at in (0, 200, 201, 301, 451, 501)]

        assert found == [(0, 100), (1, 200), (2, 300), (4, 450), (6, 500), None]
        assert await log.max_timestamp() == (6, 500)
        assert await log.delete_records(5) == 5
        assert await log.offset_for_timestamp(0) == (5, 400)


async def test_time_index_finds_what_a_scan_finds(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(TOPIC, 0)
        times = [1_000 + (i * 37) % 50 + 10 * i for i in range(400)]
        for i, at in enumerate(times):
            await append(log, timestamp=at)
            if i % 100 == 99:
                log.progress.write()
        await store.command("PING")
        assert await store.command("ZCARD", log.keys.times) == 4
        for target in range(990, 5_060, 97):
            expected = next(((i, at) for i, at in enumerate(times) if at >= target), None)
            assert await log.offset_for_timestamp(target) == expected


async def test_empty_log_has_no_times(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(TOPIC, 0)
        assert await log.max_timestamp() is None
        assert await log.offset_for_timestamp(0) is None


async def test_largest_timestamp_is_searched_anew_when_it_was_trimmed(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(TOPIC, 0)
        for at in (900, 100, 300, 200):
            await append(log, timestamp=at)
        await log.delete_records(1)

        assert await log.max_timestamp() == (2, 300)


async def test_delete_records_preserves_the_batch_that_contains_the_start(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as logs, broker(settings) as others:
        log, other = logs.partition(TOPIC, 0), others.partition(TOPIC, 0)
        for _ in range(3):
            await append(log, count=10)
        await read(other, 0)
        assert await log.delete_records(15) == 15
        assert await log.delete_records(3) == 15
        with pytest.raises(OffsetOutOfRange):
            await log.delete_records(31)
        with pytest.raises(OffsetOutOfRange):
            await read(log, 14)
        assert batches_of(await read(log, 15))[0].base_offset == 10
        assert (await other.end_offset()).log_start_offset == 15
        with pytest.raises(OffsetOutOfRange):
            await read(other, 0)


async def test_trim_wakes_listeners_of_other_brokers(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as logs, broker(settings) as others:
        log, other = logs.partition(TOPIC, 0), others.partition(TOPIC, 0)
        await append(log, count=10)
        reported = asyncio.Event()
        other.on_change(reported.set)
        await asyncio.sleep(0.05)
        reported.clear()
        await log.delete_records(4)
        async with asyncio.timeout(30):
            while (known := other.known()) is None or known.log_start_offset < 4:
                await reported.wait()
                reported.clear()

    assert known.log_start_offset == 4


async def test_log_start_never_passes_the_producer_snapshot(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(TOPIC, 0)
        await append(log, producer_id=7, epoch=0, sequence=0)
        await append(log, count=9)
        await log.delete_records(-1)
        assert await store.command("HGET", log.keys.producers, "offset") == b"10"
    async with broker(settings) as others:
        again = await append(others.partition(TOPIC, 0), producer_id=7, epoch=0, sequence=0)

    assert again.base_offset == 0


async def test_log_57_time_takes_what_is_old_and_nothing_behind_a_younger_batch(
    store: Store, settings: Settings
) -> None:
    """Scenario 57, by time."""
    await given_log(store)
    now = int(time.time() * 1000)
    async with broker(settings, entry_bytes_max=1) as logs:
        log = logs.partition(_topic(retention_ms=60_000), 0)
        for age in (90_000, 80_000, 10_000, 70_000, 0):
            await append(log, timestamp=now - age)
        assert await apply_retention(log) == 2
        log.topic = _topic(retention_ms=0)
        await asyncio.sleep(0.01)
        assert await apply_retention(log) == 5
        assert (await append(log)).base_offset == 5
        log.topic = _topic(retention_ms=-1)
        assert await apply_retention(log) == 5


async def test_retention_batches_without_a_time_are_deleted_with_the_next_that_is_too_old(
    store: Store, settings: Settings
) -> None:
    """Their timestamp is -1: taken as a time, it would be older than every limit, and new records would be deleted."""
    await given_log(store)
    now = int(time.time() * 1000)
    async with broker(settings, entry_bytes_max=1) as logs:
        log = logs.partition(_topic(retention_ms=60_000), 0)
        await append(log, timestamp=-1)
        assert await apply_retention(log) == 0
        await append(log, timestamp=now - 90_000)
        await append(log, timestamp=-1)
        await append(log, timestamp=now)
        assert await apply_retention(log) == 2
        assert await apply_retention(log) == 2


async def test_log_57_size_takes_the_oldest_until_the_rest_fits(store: Store, settings: Settings) -> None:
    """Scenario 57, by size."""
    await given_log(store)
    one = batch(value=b"x" * 5_000).size
    async with broker(settings) as logs:
        log = logs.partition(_topic(retention_bytes=3 * one), 0)
        for _ in range(10):
            await append(log, value=b"x" * 5_000)
        assert await apply_retention(log) == 7
        assert await apply_retention(log) == 7
        assert await store.command("XLEN", log.keys.log) <= 4
        assert [item.base_offset for item in await read_all(log)] == [7, 8, 9]


async def test_compacted_topics_are_not_trimmed(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(_topic(retention_ms=0, cleanup_policy=frozenset({"compact"})), 0)
        await append(log, timestamp=1)
        assert await apply_retention(log) == 0


async def test_upkeep_due_runs_at_any_broker_without_appends(clock_store: Store, clock: Any) -> None:
    store, settings = clock_store, clock_store.settings
    await given_log(store)
    topic = _topic(retention_ms=60_000)
    async with broker(settings) as logs, broker(settings) as others:
        await append(logs.partition(topic, 0), timestamp=1)
        await logs._sweep()
        await store.command("PING")
        upkeep = store.cluster_keys.upkeep
        assert await store.command("ZRANGE", upkeep, 0, -1) == [upkeep_item(topic, 0).encode()]

        topics: dict[str, Any] = {"orders": topic}
        taker = Retention(others.store, others.settings, lambda org, name: topics.get(name), others.partition)
        assert await taker.run_due() == 1
        assert (await others.partition(topic, 0).end_offset()).log_start_offset == 1
        assert await taker.run_due() == 0
        for remaining, changed in [(1, {}), (1, {"orders": replace(topic, partition_count=0)}), (0, {})]:
            await clock.advance(CHECK_INTERVAL_MS)
            topics.clear()
            topics.update(changed)  # of a topic or a partition that another broker has just made, the cache lacks it
            if not remaining:
                await delete_partition(store, logs.partition(topic, 0).keys)
            assert await taker.run_due() == 1
            assert await store.command("ZCARD", upkeep) == remaining


async def test_trimming_proceeds_in_slices(store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.log.retention.SLICE_ENTRIES", 100)
    await given_log(store)
    async with broker(settings, entry_bytes_max=1) as logs:
        log = logs.partition(TOPIC, 0)
        answers = [append_later(log, batch(value=b"x" * 200)) for _ in range(600)]
        await asyncio.gather(*answers)
        assert await log.delete_records(590) == 590
        assert await store.command("XLEN", log.keys.log) < 120
        assert (await log.end_offset()).log_end_offset == 600


@pytest.mark.parametrize("times", [1, 2], ids=["once", "each time"])
async def test_delete_records_after_an_unnoticed_fail_over(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Redis refuses the snapshot of a state of an earlier failover epoch: the offset is in range all the same."""
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(TOPIC, 0)
        await append(log, count=10)
        saves: list[int] = []
        save = PartitionLog.save_producers

        async def failed_over_before(log: PartitionLog, *args: Any) -> None:
            saves.append(1)
            if len(saves) <= times:
                await store.command("HINCRBY", log.keys.meta, "incarnation", 1)
            await save(log, *args)

        with monkeypatch.context() as patched:
            patched.setattr(PartitionLog, "save_producers", failed_over_before)
            if times == 1:
                assert await log.delete_records(4) == 4
            else:
                with pytest.raises(StoreUnavailable):
                    await log.delete_records(4)

        assert len(saves) == 2
        assert await log.delete_records(5) == 5


async def test_delete_records_of_many_entries_counts_bytes_later(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The estimate is too high where the deleted entries are the larger ones: retention does not rely on it."""
    monkeypatch.setattr("tidegate.log.loading.PAGE_ENTRIES_MAX", 10)
    monkeypatch.setattr("tidegate.log.retention.COUNTED_PAGES_MAX", 2)
    await given_log(store)
    async with broker(settings, entry_bytes_max=1) as logs:
        log = logs.partition(_topic(retention_bytes=30_000), 0)
        for number in range(120):
            await append(log, value=b"x" * (5_000 if number < 60 else 10))
        log.write_progress()
        await store.command("PING")
        ranges: list[Any] = []
        read = Store.read_at_owner

        async def counted(store: Store, *args: Any, **how: Any) -> Any:
            ranges.append(args)
            return await read(store, *args, **how)

        with monkeypatch.context() as patched:
            patched.setattr(Store, "read_at_owner", counted)
            assert await log.delete_records(60) == 60
        estimate = int(await store.command("HGET", log.keys.meta, "bytes"))
        assert await apply_retention(log) == 60
        size = int(await store.command("HGET", log.keys.meta, "bytes"))

        assert len(ranges) == 2
        assert estimate > 30_000 > size > 0
        assert await store.command("HGET", log.keys.meta, "recount") is None
        assert await log.delete_records(-1) == 120
        assert 0 <= int(await store.command("HGET", log.keys.meta, "bytes")) < size


async def test_snapshots_keep_the_load_of_a_view_short(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.log.progress.SNAPSHOT_ENTRIES", 10)
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(TOPIC, 0)
        for sequence in range(25):
            await append(log, producer_id=7, epoch=0, sequence=sequence)
        await store.command("PING")
        offset = int(await store.command("HGET", log.keys.producers, "offset"))

    assert 20 <= offset <= 25
    assert isinstance(logs, Logs)


async def test_trim_between_snapshot_and_log_is_noticed(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state that loads takes the newer snapshot when what followed the older one is gone."""
    await given_log(store)
    async with broker(settings, entry_bytes_max=1) as ours, broker(settings) as theirs:
        log, other = ours.partition(TOPIC, 0), theirs.partition(TOPIC, 0)
        for sequence in range(20):
            await append(log, producer_id=7, epoch=0, sequence=sequence, value=b"x" * 5_000)
            if sequence == 4:
                await log.progress.save_now(await log.load())
        trims: list[int] = []
        read = Store.read

        async def trimmed_behind_the_snapshot(store: Store, *args: Any, **how: Any) -> Any:
            reply = await read(store, *args, **how)
            if args[0] == "HGETALL" and not trims:
                trims.append(await log.delete_records(15))
            return reply

        with monkeypatch.context() as patched:
            patched.setattr(Store, "read", trimmed_behind_the_snapshot)
            known = await other.ensure()
        answer = await append(other, producer_id=7, epoch=0, sequence=18, value=b"x" * 5_000)

    assert trims == [15]
    assert (known.log_start_offset, known.log_end_offset) == (15, 20)
    assert answer.base_offset == 18


async def test_trim_between_pages_of_a_load_is_noticed(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer whose only batches were removed behind the first page is in the newer snapshot."""
    await given_log(store)
    async with broker(settings, entry_bytes_max=1) as ours, broker(settings, entry_bytes_max=1) as theirs:
        log, other = ours.partition(TOPIC, 0), theirs.partition(TOPIC, 0)
        count, position = PAGE_ENTRIES_MAX + 150, PAGE_ENTRIES_MAX + 20
        for number in range(count):
            await append(log, batch(producer_id=7, epoch=0, sequence=0) if number == position else batch())
        trims: list[int] = []
        read = Store.read_at_owner

        async def trimmed_behind_the_first_page(store: Store, *args: Any, **how: Any) -> Any:
            reply = await read(store, *args, **how)
            if args[0] == "XRANGE" and not trims:
                trims.append(-1)
                trims[0] = await log.delete_records(count - 1)
            return reply

        with monkeypatch.context() as patched:
            patched.setattr(Store, "read_at_owner", trimmed_behind_the_first_page)
            known = await other.ensure()
        (first,) = await store.read("XRANGE", log.keys.log, "-", "+", "COUNT", 1)
        answer = await append(other, producer_id=7, epoch=0, sequence=0)

    assert trims == [count - 1]
    assert int(first[0].partition(b"-")[0]) > position
    assert (known.log_start_offset, known.log_end_offset) == (count - 1, count)
    assert answer.base_offset == position
