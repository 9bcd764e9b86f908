"""Snapshots of producers after a fail-over that lost the end of the log: on a real server."""

from __future__ import annotations

import pytest

from tests.support.logs import TOPIC, append, broker, given_log, read_all
from tidegate.log.partition import PartitionLog
from tidegate.settings import Settings
from tidegate.store.store import Store


async def _append_what_the_server_loses(store: Store, log: PartitionLog) -> None:
    """Nine entries up to 90, and one up to 100 that is lost, with the highest id of the stream."""
    for sequence in range(0, 90, 10):
        await append(log, producer_id=7, epoch=0, sequence=sequence, count=10)
    await store.command("COPY", log.keys.log, f"{log.keys.log}:replica")
    await append(log, producer_id=7, epoch=0, sequence=90, count=10)


async def _fail_over(store: Store, log: PartitionLog) -> None:
    await store.command("RENAME", f"{log.keys.log}:replica", log.keys.log)


async def test_snapshot_of_a_lost_end_is_refused(store: Store, settings: Settings) -> None:
    """A fail-over that nobody has observed yet: the failover epoch in the meta is still that of the old server."""
    await given_log(store)
    async with broker(settings) as logs, broker(settings) as others:
        log, other = logs.partition(TOPIC, 0), others.partition(TOPIC, 0)
        await _append_what_the_server_loses(store, log)
        await _fail_over(store, log)
        await log.progress.save_now(await log.load())
        stored = await store.command("HGET", log.keys.producers, "offset")
        known = await other.ensure()
        again = await append(other, producer_id=7, epoch=0, sequence=90, count=10)
        offsets = [one.base_offset for one in await read_all(other)]

    assert stored is None
    assert known.log_end_offset == 90
    assert again.base_offset == 90
    assert offsets == list(range(0, 100, 10))


@pytest.mark.parametrize("start", [0, 45])
async def test_snapshot_above_the_end_is_not_loaded(store: Store, settings: Settings, start: int) -> None:
    await given_log(store)
    async with broker(settings) as logs, broker(settings) as others:
        log, other = logs.partition(TOPIC, 0), others.partition(TOPIC, 0)
        await _append_what_the_server_loses(store, log)
        await log.progress.save_now(await log.load())
        await log.delete_records(start)
        await _fail_over(store, log)
        known = await other.ensure()
        again = await append(other, producer_id=7, epoch=0, sequence=90, count=1)
        await store.command("PING")
        stored = await store.command("HGET", log.keys.producers, "offset")

    assert (known.log_start_offset, known.log_end_offset) == (start, 90)
    assert again.base_offset == 90
    assert stored == b"91"


async def test_snapshot_inside_a_later_entry_is_not_loaded(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as logs, broker(settings) as others:
        log, other = logs.partition(TOPIC, 0), others.partition(TOPIC, 0)
        await _append_what_the_server_loses(store, log)
        snapshot = await log.load()
        await _fail_over(store, log)
        await append(other, producer_id=8, epoch=0, sequence=0, count=30)
        await store.command("HSET", log.keys.producers, "offset", snapshot.end, 7, b"0 1 90:99:90:1")
        log.void("fail-over")
        loaded = await log.load()

    assert loaded.end == 120
    assert loaded.producers[8].batches[-1].last_sequence == 29


async def test_snapshot_behind_a_removed_entry_is_stored(store: Store, settings: Settings) -> None:
    """The stream's last id shows that the server had the entry: appends continue at the snapshot."""
    await given_log(store)
    async with broker(settings) as logs, broker(settings) as others:
        log, other = logs.partition(TOPIC, 0), others.partition(TOPIC, 0)
        for sequence in (0, 10):
            await append(log, producer_id=7, epoch=0, sequence=sequence, count=10)
        await store.command("XDEL", log.keys.log, "10-1")
        await log.progress.save_now(await log.load())
        known = await other.ensure()

        assert known.log_end_offset == 20
        assert (await append(other)).base_offset == 20
