"""Append and read on a real server, one broker."""

from __future__ import annotations

import asyncio
import gc
from unittest import mock

import pytest

from tests.support.logs import TOPIC, append, append_later, batch, batches_of, broker, given_log, read, read_all
from tests.support.markers import build_marker
from tidegate.errors import OffsetOutOfRange, StoreUnavailable, UnknownTopicOrPartition
from tidegate.log import producers_table
from tidegate.log.append import ENTRY_BATCHES_MAX
from tidegate.log.logs import Logs
from tidegate.log.partition import PartitionLog
from tidegate.log.partitions import delete_partition
from tidegate.log.read import Slice
from tidegate.records.batch import Batch, holds_zstd
from tidegate.settings import Settings
from tidegate.store.store import Store


async def _open(store: Store, logs: Logs) -> PartitionLog:
    await given_log(store)
    return logs.partition(TOPIC, 0)


async def test_append_dense_offsets_and_unchanged_batches(store: Store, settings: Settings) -> None:
    async with broker(settings) as logs:
        log = await _open(store, logs)
        first, second = batch(count=3), batch(count=2)
        offsets = [(await append(log, item)).base_offset for item in (first, second, batch())]
        found = batches_of(await read(log, 0))

    assert offsets == [0, 3, 5]
    assert [item.base_offset for item in found] == [0, 3, 5]
    assert [item.leader_epoch for item in found] == [0, 0, 0]
    assert bytes(found[0].buffer[16:]) == bytes(first.buffer[16:])
    found[1].verify_crc()


async def test_append_batches_of_one_tick_become_one_entry(store: Store, settings: Settings) -> None:
    async with broker(settings) as logs:
        log = await _open(store, logs)
        answers = await asyncio.gather(*(append_later(log, batch(count=2)) for _ in range(50)))
        assert [answer.base_offset for answer in answers] == list(range(0, 100, 2))
        assert await store.command("XLEN", log.keys.log) == 1


async def test_entries_stay_below_the_cap(store: Store, settings: Settings) -> None:
    async with broker(settings, entry_bytes_max=1_000) as logs:
        log = await _open(store, logs)
        await asyncio.gather(*(append_later(log, batch(value=b"x" * 400)) for _ in range(5)))
        await append(log, value=b"x" * 5_000)
        assert await store.command("XLEN", log.keys.log) == 4


async def test_entries_are_bounded_by_batches(store: Store, settings: Settings) -> None:
    async with broker(settings) as logs:
        log = await _open(store, logs)
        await asyncio.gather(*(append_later(log, one) for one in [batch()] * (ENTRY_BATCHES_MAX + 1)))
        assert await store.command("XLEN", log.keys.log) == 2


async def test_append_5000_markers_of_one_tick(store: Store, settings: Settings) -> None:
    """Lua cannot pass so many batches to one command."""
    markers = [
        Batch.parse(
            build_marker(producer_id=number, producer_epoch=0, coordinator_epoch=0, committed=True, timestamp_ms=1)
        )
        for number in range(5_000)
    ]
    async with broker(settings) as logs:
        log = await _open(store, logs)
        appended = await asyncio.gather(*(append_later(log, marker) for marker in markers))
    assert [one.base_offset for one in appended] == list(range(5_000))


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
async def test_read_starts_with_the_batch_that_contains_the_offset(
    store: Store, settings: Settings, cache_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.log.services.CACHE_BYTES_MAX", cache_bytes)
    async with broker(settings) as logs:
        log = await _open(store, logs)
        await asyncio.gather(*(append_later(log, batch(count=10)) for _ in range(3)))
        await append(log, count=10)
        log.void("start cold")
        one = batch(count=10).size
        assert [b.base_offset for b in batches_of(await read(log, 15))] == [10, 20, 30]
        assert [b.base_offset for b in batches_of(await read(log, 15, one))] == [10]
        assert [b.base_offset for b in batches_of(await read(log, 39, 2 * one))] == [30]
        assert [b.base_offset for b in batches_of(await read(log, 5, one - 1))] == [0]
        assert (await read(log, 5, one - 1, at_least_one=False)).size == 0
        found = await read(log, 0, 2 * one + 5)
        assert (found.end_offset, found.high_watermark) == (20, 40)


async def test_known_end_is_empty_and_above_it_is_out_of_range(store: Store, settings: Settings) -> None:
    async with broker(settings) as logs:
        log = await _open(store, logs)
        await append(log, count=4)
        assert (await read(log, 4)).size == 0
        with pytest.raises(OffsetOutOfRange):
            await read(log, 5)


async def test_another_brokers_append_wakes_the_listener(store: Store, settings: Settings) -> None:
    async with broker(settings) as ours, broker(settings) as theirs:
        log = await _open(store, ours)
        await log.ensure()
        reported = asyncio.Event()
        remove = log.on_change(reported.set)
        await asyncio.sleep(0.05)
        reported.clear()
        await append(theirs.partition(TOPIC, 0), count=3)
        async with asyncio.timeout(30):
            while (known := log.known()) is None or known.high_watermark < 3:
                await reported.wait()
                reported.clear()
        remove()

    assert known.high_watermark == 3


async def test_lost_message_costs_one_poll(store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.log.logs.POLL_MS", 50)
    async with broker(settings) as ours:
        log = await _open(store, ours)
        reported = asyncio.Event()
        log.on_change(reported.set)
        await asyncio.sleep(0.1)
        reported.clear()
        await store.command("XADD", log.keys.log, "0-1", "w", "x:1", "b", bytes(batch(count=2).buffer))
        async with asyncio.timeout(30):
            while (await log.ensure()).high_watermark < 2:
                await reported.wait()
                reported.clear()


async def test_log_append_time_is_stamped_with_a_new_crc(store: Store, settings: Settings) -> None:
    from dataclasses import replace

    topic = replace(TOPIC, config=replace(TOPIC.config, message_timestamp_type="LogAppendTime"))
    async with broker(settings) as logs:
        await given_log(store)
        log = logs.partition(topic, 0)
        answer = await append(log, timestamp=1)
        (found,) = batches_of(await read(log, 0))

    found.verify_crc()
    assert found.is_log_append_time and found.base_timestamp == 1
    assert found.max_timestamp == answer.log_append_time_ms > 1


async def test_deleted_partition_is_unknown_to_appends_and_reads(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.log.logs.POLL_MS", 10)
    async with broker(settings) as logs:
        log = await _open(store, logs)
        await append(log)
        await delete_partition(store, log.keys)
        with pytest.raises(UnknownTopicOrPartition):
            await append(log)
        with pytest.raises(UnknownTopicOrPartition):
            await read(log, 0)


async def test_read_of_an_uncached_log_reaches_its_end(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.log.services.CACHE_BYTES_MAX", 2_000)
    async with broker(settings, entry_bytes_max=300) as logs:
        log = await _open(store, logs)
        await asyncio.gather(*(append_later(log, batch(count=2, value=b"y" * 50)) for _ in range(100)))
        found = await read_all(log)

    assert [item.base_offset for item in found] == list(range(0, 200, 2))


@pytest.mark.parametrize("how", ["evicted", "void"])
async def test_slice_of_the_last_read_is_released_with_the_cached_pages(
    store: Store, settings: Settings, how: str
) -> None:
    async with broker(settings) as logs:
        log = await _open(store, logs)
        await append(log, value=b"x" * 1_000)
        assert len(batches_of(await read(log, 0))) == 1
        assert _slice_count() == 1
        if how == "void":
            log.void("the connection ended")
        else:
            page, _ = log.pages.find(0) or pytest.fail("not cached")
            log.pages.drop(page)

        assert _slice_count() == 0
        assert len(batches_of(await read(log, 0))) == 1


def _slice_count() -> int:
    gc.collect()
    return sum(isinstance(one, Slice) for one in gc.get_objects())


async def test_small_batches_of_an_entry_leave_in_one_piece(store: Store, settings: Settings) -> None:
    async with broker(settings) as logs:
        log = await _open(store, logs)
        await asyncio.gather(*(append_later(log, batch(count=2)) for _ in range(20)))
        whole = await read(log, 0)
        part = await read(log, 6)

    assert len(whole.buffers) == 1
    assert [item.base_offset for item in batches_of(whole)] == list(range(0, 40, 2))
    assert [item.base_offset for item in batches_of(part)] == list(range(6, 40, 2))
    assert not holds_zstd(whole.buffers)
    zstd = bytearray(whole.buffers[0])
    second = 12 + int.from_bytes(zstd[8:12])
    zstd[second + 22] |= 4
    assert holds_zstd([zstd])


async def test_append_4000_batches_in_reverse_judges_few_times(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = mock.Mock(side_effect=producers_table.judge)
    monkeypatch.setattr("tidegate.log.admission.judge", judged)
    monkeypatch.setattr("tidegate.log.admission.SEQUENCE_GAP_TIMEOUT_MS", 600_000)  # however slow the machine is
    batches = [batch(producer_id=9, epoch=0, sequence=sequence) for sequence in reversed(range(4_000))]
    async with broker(settings) as logs:
        log = await _open(store, logs)
        appended = await asyncio.gather(*(append_later(log, one) for one in batches))
    assert [one.base_offset for one in appended] == list(reversed(range(4_000)))
    assert judged.call_count < 10 * len(batches)


async def test_append_gapped_batches_are_not_judged_with_each_append_of_others(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker(settings) as logs:
        log = await _open(store, logs)
        await append(log, producer_id=9, epoch=0, sequence=0)
        for name, value in (("SEQUENCE_GAP_TIMEOUT_MS", 600_000), ("_GAP_REFRESH_S", 600)):
            monkeypatch.setattr(f"tidegate.log.admission.{name}", value)  # however slow the machine is
        gapped = [append_later(log, batch(producer_id=9, epoch=0, sequence=sequence)) for sequence in range(2, 102)]
        judged = mock.Mock(side_effect=producers_table.judge)
        monkeypatch.setattr("tidegate.log.admission.judge", judged)
        for _ in range(50):
            await append(log)
        assert judged.call_count <= 5 * len(gapped)
        await append(log, producer_id=9, epoch=0, sequence=1)
        assert [(await one).base_offset for one in gapped] == list(range(52, 152))


async def test_append_too_many_waiting_batches_of_a_producer_are_sent_again(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.log.waiting.WAITING_MAX", 2)
    monkeypatch.setattr("tidegate.log.admission.SEQUENCE_GAP_TIMEOUT_MS", 600_000)  # however slow the machine is
    async with broker(settings) as logs:
        log = await _open(store, logs)
        futures = [append_later(log, batch(producer_id=9, epoch=0, sequence=sequence)) for sequence in (4, 2, 3, 0)]
        with pytest.raises(StoreUnavailable):
            await futures[2]
        assert (await futures[3]).base_offset == 0
        assert (await append(log, producer_id=9, epoch=0, sequence=1)).base_offset == 1
        assert (await futures[1]).base_offset == 2
        assert (await append(log, producer_id=9, epoch=0, sequence=3)).base_offset == 3
        assert (await futures[0]).base_offset == 4
