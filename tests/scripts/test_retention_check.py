"""Which logs a broker loads for their retention; on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.support.logs import TOPIC, FakeTopicConfig, append, broker, given_log
from tidegate.log.logs import Logs
from tidegate.log.retention_check import RetentionCheck, check_retention
from tidegate.log.upkeep import Retention
from tidegate.settings import Settings
from tidegate.store.store import Store

DAY_MS = 24 * 3_600_000


def topic_of(**config: Any) -> Any:
    return replace(TOPIC, config=FakeTopicConfig(**config))


@dataclass(frozen=True)
class AgedLog:
    """A log whose first record is two days old and whose second is new."""

    logs: Logs
    keys: Any

    @property
    def store(self) -> Store:
        return self.logs.store

    async def check(self) -> RetentionCheck:
        return await check_retention(self.store, self.keys)

    async def is_due(self, **config: Any) -> bool:
        return (await self.check()).is_due(topic_of(**config).config, self.store.clock.now_ms())


@pytest.fixture
async def written(store: Store, settings: Settings) -> AsyncIterator[AgedLog]:
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(TOPIC, 0)
        now_ms = logs.store.clock.now_ms()
        await append(log, timestamp=now_ms - 2 * DAY_MS)
        await append(log, timestamp=now_ms)
        log.write_progress()
        yield AgedLog(logs, log.keys)


@pytest.mark.parametrize(
    ("config", "is_due"),
    [
        ({}, False),
        ({"retention_ms": DAY_MS}, True),
        ({"retention_ms": 3 * DAY_MS}, False),
        ({"retention_bytes": 1}, True),
        ({"retention_bytes": 1 << 20}, False),
        ({"cleanup_policy": frozenset({"compact"})}, True),
        ({"cleanup_policy": frozenset({"compact", "delete"})}, True),
        ({"remote_storage": True}, True),
    ],
)
async def test_retention_check_is_due_by_config(written: AgedLog, config: dict[str, Any], is_due: bool) -> None:
    assert await written.is_due(**config) is is_due


async def test_retention_check_reads_what_the_log_has(written: AgedLog) -> None:
    known = await written.logs.partition(TOPIC, 0).end_offset()
    check = await written.check()
    assert (check.log_start, check.local_start, check.log_end) == (0, 0, known.log_end_offset) == (0, 0, 2)
    assert check.local_bytes == int(await written.store.command("HGET", written.keys.meta, "bytes")) > 0
    assert written.store.clock.now_ms() - check.max_timestamp >= 2 * DAY_MS
    assert (check.is_estimate, check.ends_well) == (0, 1)


async def test_retention_check_of_deleted_records_is_not_due(written: AgedLog) -> None:
    log = written.logs.partition(TOPIC, 0)
    await log.delete_records(1)
    assert not await written.is_due(retention_ms=DAY_MS)  # the new record is first
    await append(log, timestamp=0)
    log.write_progress()
    await log.delete_records(3)
    assert not await written.is_due(retention_ms=DAY_MS)  # the stream still has its last entry


async def test_retention_check_of_empty_log_is_not_due(written: AgedLog) -> None:
    await given_log(written.store, index=1)
    check = await check_retention(written.store, written.logs.partition(TOPIC, 1).keys)
    assert check == RetentionCheck(0, 0, 0, 0, 0, -1, 1)
    assert not check.is_due(topic_of(retention_ms=0, retention_bytes=0).config, DAY_MS)


async def test_retention_check_of_records_without_time_is_due(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(TOPIC, 0)
        await append(log, timestamp=-1)
        written = AgedLog(logs, log.keys)
        assert await written.is_due(retention_ms=DAY_MS)
        assert not await written.is_due()


async def stray_entry(written: AgedLog) -> None:
    await written.store.command("XADD", written.keys.log, "*", "key", "a")


async def removed_stray_entry(written: AgedLog) -> None:
    entry_id = await written.store.command("XADD", written.keys.log, "*", "key", "a")
    await written.store.command("XDEL", written.keys.log, entry_id)


async def wrong_bytes(written: AgedLog) -> None:
    await written.store.command("HSET", written.keys.meta, "bytes", -1)


async def archived_part(written: AgedLog) -> None:
    await written.store.command("HSET", written.keys.meta, "local_start", 1)


@pytest.mark.parametrize("change", [stray_entry, removed_stray_entry, wrong_bytes, archived_part])
async def test_retention_check_of_a_log_that_must_be_loaded_is_due(
    written: AgedLog, change: Callable[[AgedLog], Awaitable[None]]
) -> None:
    assert not await written.is_due()
    await change(written)
    assert await written.is_due()


async def test_retention_check_of_estimated_bytes_is_due_where_bytes_are_limited(written: AgedLog) -> None:
    await written.store.command("HSET", written.keys.meta, "recount", 0)
    assert not await written.is_due()
    assert await written.is_due(retention_bytes=1 << 30)


async def in_upkeep(logs: Logs) -> int:
    """The partitions in the list of upkeep; all are due."""
    upkeep = logs.store.cluster_keys.upkeep
    for item in await logs.store.command("ZRANGE", upkeep, 0, -1):
        await logs.store.command("ZADD", upkeep, 0, item)
    return int(await logs.store.command("ZCARD", upkeep))


async def test_retention_loads_only_logs_that_are_due(written: AgedLog, settings: Settings) -> None:
    await given_log(written.store, index=1)
    await append(written.logs.partition(TOPIC, 1), timestamp=written.store.clock.now_ms())
    await written.logs._sweep()
    assert await in_upkeep(written.logs) == 2
    topic = replace(topic_of(retention_ms=DAY_MS), partition_count=2)
    async with broker(settings) as others:
        retention = Retention(others.store, settings, lambda org, name: topic, others.partition)
        assert await retention.run_due() == 2
        assert [log.index for log in others.open_logs.values()] == [0]
        assert (await others.partition(topic, 0).end_offset()).log_start_offset == 1


async def test_retention_removes_the_item_of_a_deleted_partition(written: AgedLog) -> None:
    await written.logs._sweep()
    assert await in_upkeep(written.logs) == 1
    await written.store.command("HSET", written.keys.meta, "state", "deleted")
    await written.store.command("DEL", written.keys.log)
    retention = Retention(written.store, written.store.settings, lambda org, name: TOPIC, written.logs.partition)
    assert await retention.run_due() == 1
    assert await in_upkeep(written.logs) == 0


@pytest.mark.parametrize("item", [b"foreign", b"default/t:x:00", b"t:0:00", b"\xff/t:0:00"])
async def test_retention_foreign_item_is_removed_and_delays_no_partition(written: AgedLog, item: bytes) -> None:
    await written.logs._sweep()
    await written.store.command("ZADD", written.store.cluster_keys.upkeep, 0, item)
    assert await in_upkeep(written.logs) == 2
    topic = topic_of(retention_ms=DAY_MS)
    retention = Retention(written.store, written.store.settings, lambda org, name: topic, written.logs.partition)
    assert await retention.run_due() == 2

    assert (await written.check()).log_start == 1
    assert await in_upkeep(written.logs) == 1


async def test_retention_faulty_log_of_a_deleted_topic_delays_no_partition(written: AgedLog) -> None:
    await written.logs._sweep()
    gone = written.store.log_keys("default", "gone", 0, "00" * 16)
    await written.store.command("SET", gone.meta, "foreign")
    await written.store.command("ZADD", written.store.cluster_keys.upkeep, 0, f"default/gone:0:{'00' * 16}")
    await in_upkeep(written.logs)
    topic = topic_of(retention_ms=DAY_MS)
    find = {"orders": topic}.get
    retention = Retention(written.store, written.store.settings, lambda org, name: find(name), written.logs.partition)
    assert await retention.run_due() == 2

    assert (await written.check()).log_start == 1


async def test_retention_faulty_log_delays_no_partition(written: AgedLog, settings: Settings) -> None:
    await given_log(written.store, index=1)
    now_ms = written.store.clock.now_ms()
    for timestamp in (now_ms - 2 * DAY_MS, now_ms):
        await append(written.logs.partition(TOPIC, 1), timestamp=timestamp)
    await written.logs._sweep()
    assert await in_upkeep(written.logs) == 2
    for key in (written.keys.log, written.keys.meta):
        await written.store.command("DEL", key)
        await written.store.command("SET", key, "foreign")
    topic = replace(topic_of(retention_ms=DAY_MS), partition_count=2)
    async with broker(settings) as others:
        retention = Retention(others.store, settings, lambda org, name: topic, others.partition)
        assert await retention.run_due() == 2
        assert (await others.partition(topic, 1).end_offset()).log_start_offset == 1
