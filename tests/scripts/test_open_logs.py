"""Logs that left the memory of a broker give the same answers when they are used again; on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.logs import TOPIC, append, broker, given_log
from tests.support.valkey import ValkeyServer
from tidegate.errors import OutOfOrderSequenceNumber
from tidegate.log import partition
from tidegate.log.logs import Logs
from tidegate.settings import Settings
from tidegate.store.store import Store

PARTITIONS = 5


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The logs that were loaded, one for each load."""
    loaded: list[str] = []
    load_state = partition.load_state

    async def load(store: Store, keys: Any, *args: Any) -> Any:
        loaded.append(keys.log)
        return await load_state(store, keys, *args)

    monkeypatch.setattr(partition, "load_state", load)
    yield loaded


async def evict(logs: Logs, index: int = 0) -> None:
    """Remove a log from memory, once its progress is stored."""
    await logs._sweep()
    await logs.store.command("PING")  # the sweep's commands are answered before
    logs.open_logs._bytes_max = 0
    for other in range(3):
        logs.partition(TOPIC, 1_000 + other)
    assert (TOPIC.topic_hex, index) not in logs.open_logs


async def test_evicted_log_is_loaded_with_its_end_and_its_producers(
    store: Store, settings: Settings, loads: list[str]
) -> None:
    await given_log(store)
    async with broker(settings) as logs:
        for sequence in range(3):
            await append(logs.partition(TOPIC, 0), producer_id=7, epoch=0, sequence=sequence)
        known = logs.partition(TOPIC, 0).known()
        await evict(logs)

        assert await logs.partition(TOPIC, 0).latest() == known
        assert (await append(logs.partition(TOPIC, 0), producer_id=7, epoch=0, sequence=1)).base_offset == 1
        with pytest.raises(OutOfOrderSequenceNumber):
            await append(logs.partition(TOPIC, 0), producer_id=7, epoch=0, sequence=5)
        assert (await append(logs.partition(TOPIC, 0), producer_id=7, epoch=0, sequence=3)).base_offset == 3
        assert len(loads) == 2


async def test_evicted_log_has_the_same_high_watermark_without_replicas() -> None:
    primary = ValkeyServer(["--repl-diskless-sync-delay", "0"])
    store = Store(Settings(redis_url=primary.url))
    await store.start()
    await given_log(store)
    replica = ValkeyServer(["--replicaof", f"127.0.0.1 {primary.port}"])
    try:
        while "state=online" not in str(await store.command("INFO", "replication")):
            await asyncio.sleep(0.02)
        async with broker(store.settings, durability="replicated:1", durability_timeout_ms=5_000) as logs:
            await append(logs.partition(TOPIC, 0))
            await append(logs.partition(TOPIC, 0))
            known = logs.partition(TOPIC, 0).known()
            assert known is not None and known.high_watermark == 2
            await evict(logs)
            replica.stop()

            assert await logs.partition(TOPIC, 0).latest() == known
    finally:
        replica.stop()
        await store.close()
        primary.stop()


async def test_logs_below_their_share_are_loaded_once(store: Store, settings: Settings, loads: list[str]) -> None:
    for index in range(PARTITIONS):
        await given_log(store, index=index)
    async with broker(settings) as logs:
        for _ in range(3):
            for index in range(PARTITIONS):
                await logs.partition(TOPIC, index).latest()
            await logs._sweep()
        assert len(loads) == PARTITIONS


async def test_logs_of_a_burst_of_requests_at_once_stay_below_their_share(
    store: Store, settings: Settings, loads: list[str]
) -> None:
    for index in range(PARTITIONS):
        await given_log(store, index=index)
    async with broker(settings) as logs:
        logs.open_logs._bytes_max = 25_000
        for _ in range(2):
            ends = await asyncio.gather(*(logs.partition(TOPIC, index).latest() for index in range(PARTITIONS)))
            assert [end.log_end_offset for end in ends] == [0] * PARTITIONS
            await logs._sweep()
            await logs._sweep()
            assert logs.open_logs.bytes <= 25_000
        assert PARTITIONS < len(loads) < 2 * PARTITIONS


async def test_log_that_others_made_larger_is_measured_without_subscribers(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as logs, broker(settings) as others:
        log = logs.partition(TOPIC, 0)
        remove = log.on_change(lambda: None)
        await log.latest()
        for producer_id in range(20):
            await append(others.partition(TOPIC, 0), producer_id=producer_id, epoch=0, sequence=0)
        await log.latest()
        await logs._sweep()
        assert log.counted_bytes < log.memory_bytes
        remove()
        log.subscription._idle_since = float("-inf")
        await logs._sweep()
        assert log.counted_bytes == log.memory_bytes
