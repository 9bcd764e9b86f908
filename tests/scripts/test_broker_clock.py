"""A broker whose own clock is wrong decides nothing by it (promise P11)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.support.logs import TOPIC, FakeTopicConfig, append, append_later, batch, batches_of, broker, given_log, read
from tests.support.whole_broker import WholeBroker
from tidegate.cluster.broker_lease import BrokerLease
from tidegate.groups.reset_plan import Choice, plan
from tidegate.http.stored_offsets import StoredOffsets
from tidegate.log.retention import apply_retention
from tidegate.log.upkeep import Retention
from tidegate.settings import Settings
from tidegate.store.store import Store

WEEK_MS = 7 * 24 * 3_600_000
AHEAD_S = 8 * 24 * 3_600


@contextmanager
def own_clock_ahead(seconds: float) -> Iterator[None]:
    """This process's clock is wrong; Redis's is right."""
    real = time.time
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: real() + seconds)
        yield


async def lease_taken(store: Store) -> None:
    """What a broker's start does to its clock."""
    broker_lease = BrokerLease(store, store.settings, {"PLAINTEXT": ("127.0.0.1", 9092)}, None)
    await broker_lease.start()
    await broker_lease.close()


def _topic(**config: Any) -> Any:
    return replace(TOPIC, config=FakeTopicConfig(**config))


async def test_retention_own_clock_ahead_keeps_what_is_seconds_old(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(_topic(retention_ms=WEEK_MS), 0)
        await append(log)
        with own_clock_ahead(AHEAD_S):
            await lease_taken(logs.store)
            assert await apply_retention(log) == 0


async def test_retention_own_clock_ahead_leaves_upkeep_to_others(store: Store, settings: Settings) -> None:
    await given_log(store)
    topic = _topic(retention_ms=WEEK_MS)
    async with broker(settings) as logs:
        await append(logs.partition(topic, 0), timestamp=1)
        await logs._sweep()
        await logs.store.command("PING")
        retention = Retention(logs.store, logs.settings, lambda org, name: topic, logs.partition)
        with own_clock_ahead(AHEAD_S):
            await lease_taken(logs.store)
            assert await retention.run_due() == 0
        await lease_taken(logs.store)
        assert await retention.run_due() == 1
        assert (await logs.partition(topic, 0).end_offset()).log_start_offset == 1


async def test_producers_own_clock_ahead_retry_is_a_duplicate(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(TOPIC, 0)
        sent = await append(log, producer_id=7, epoch=0, sequence=0)
        with own_clock_ahead(AHEAD_S):
            await lease_taken(logs.store)
            await log.progress.save_now(await log.refresh())
    async with broker(settings) as others:
        again = await append(others.partition(TOPIC, 0), producer_id=7, epoch=0, sequence=0)
        assert again.base_offset == sent.base_offset
        assert (await others.partition(TOPIC, 0).end_offset()).log_end_offset == 1


async def test_append_own_clock_ahead_stamps_redis_time(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(_topic(message_timestamp_type="LogAppendTime"), 0)
        now_ms = time.time() * 1000
        with own_clock_ahead(AHEAD_S):
            await lease_taken(logs.store)
            await append_later(log, batch(), acks_all=True)
        (stored,) = batches_of(await read(log, 0))
        assert abs(stored.max_timestamp - now_ms) < 3_600_000


async def test_reset_by_duration_own_clock_ahead_counts_from_redis_time(store: Store, settings: Settings) -> None:
    broker = await WholeBroker(settings, 1).start()
    try:
        await broker.create("t", 1)
        client = broker.client("c")
        await client.produce("t", 3)
        with own_clock_ahead(AHEAD_S):
            await lease_taken(broker.context.store)
            source, choice = StoredOffsets(broker.context, "default"), Choice(by_duration="PT1H")
            (move,) = await plan(source, "g", choice, ["t"], False, str)
        assert move.after == 0
    finally:
        await broker.close()
