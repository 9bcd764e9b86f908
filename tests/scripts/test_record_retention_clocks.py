"""Retention of format `record` in Redis Cluster goes by the clock that wrote the ids: that of the log's node."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from tests.support.whole_broker import WholeBroker
from tidegate.log.record_format.record_log import RecordLog
from tidegate.log.record_format.record_retention import apply_retention
from tidegate.settings import Settings
from tidegate.store.store import Store

DAY_MS = 24 * 3_600_000
RETENTION_MS = 50_000


@pytest.fixture
async def log(store: Store, settings: Settings) -> AsyncIterator[RecordLog]:
    """A log with a record each second of the last 100, and producer 7, whose last append was long ago."""
    whole = await WholeBroker(settings, 1).start()
    await whole.create("r", 1, tidegate_format="record", retention_ms=str(RETENTION_MS))
    topic = whole.context.catalog.get("default", "r")
    assert topic is not None
    opened = whole.context.logs.partition(topic, 0)
    assert isinstance(opened, RecordLog)
    now_ms = int((await opened.store.command("TIME"))[0]) * 1000
    for ms in range(now_ms - 100_000, now_ms, 1_000):
        await opened.store.command("XADD", opened.keys.log, f"{ms}-0", "value", "v")
    await opened.store.command("HSET", opened.keys.producers, 7, f"0 {now_ms - 2 * DAY_MS} ")
    yield opened
    await whole.close()


def observe(log: RecordLog, metadata_ahead_ms: int, node_ahead_ms: int) -> None:
    """How far ahead of this broker the clocks of the node with the keys of `{cluster}` and of the log's node are."""
    now_ms = round(time.time() * 1000)
    log.store.clock.observe(now_ms + metadata_ahead_ms, 0)
    log.store.node(log.keys.log).clock.observe(now_ms + node_ahead_ms, 0)


async def retained(log: RecordLog) -> None:
    """Apply retention as in Redis Cluster."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Store, "is_sharded", property(lambda _: True))
        await apply_retention(log)


async def records(log: RecordLog) -> list[int]:
    """Their times, ms."""
    found = await log.store.command("XRANGE", log.keys.log, "-", "+")
    return [int(entry_id.partition(b"-")[0]) for entry_id, _ in found]


async def producers(log: RecordLog) -> int:
    return int(await log.store.command("HLEN", log.keys.producers))


async def test_retention_node_behind_the_one_of_the_leases_keeps_records_for_their_time(log: RecordLog) -> None:
    observe(log, 60_000, 0)
    clock, before = log.store.node(log.keys.log).clock, await records(log)

    begin_ms = clock.now_ms()
    await retained(log)
    end_ms = clock.now_ms()

    left = await records(log)
    assert [ms for ms in before if ms >= end_ms - RETENTION_MS] == [ms for ms in left if ms >= end_ms - RETENTION_MS]
    assert min(left) >= begin_ms - RETENTION_MS
    assert await producers(log) == 0


@pytest.mark.parametrize("node_ahead_ms", [-DAY_MS, DAY_MS])
async def test_retention_clock_of_the_node_is_wrong_deletes_nothing_by_time(log: RecordLog, node_ahead_ms: int) -> None:
    observe(log, 0, node_ahead_ms)

    await retained(log)

    assert (len(await records(log)), await producers(log)) == (100, 1)
