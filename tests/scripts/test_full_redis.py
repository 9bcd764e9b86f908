"""Redis at its `maxmemory`: commits that add little are stored, those with much metadata are refused."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.wire import request
from tests.support.log_broker import produce_request
from tests.support.transactions import NONE, Brokers, brokers_of
from tidegate.apis import committed_offsets
from tidegate.groups.offsets import COMMIT_WHILE_FREE
from tidegate.records.build import NewRecord, build_batch
from tidegate.settings import Settings
from tidegate.store.outcome import Failure
from tidegate.store.store import Store

assert committed_offsets  # registered

E = ErrorCode
METADATA = "m" * 4_096


@pytest.fixture
async def full(store: Store, settings: Settings) -> AsyncIterator[Brokers]:
    """A broker with the topic `t` of 40 partitions, on a server that is full."""
    async with brokers_of(settings, 1) as opened:
        await opened.create("t", 40)
        await _limit(store, 1)
        try:
            yield opened
        finally:
            await _limit(store, 0)


async def _limit(store: Store, maxmemory: int) -> None:
    for node in store.nodes:
        await node.control.call("CONFIG", "SET", "maxmemory", maxmemory)


async def _commit(
    brokers: Brokers, group: str, count: int, metadata: str, member: str = "", epoch: int = -1
) -> set[Any]:
    """OffsetCommit v9 of the first partitions; its codes."""
    partitions = [
        {"partition_index": index, "committed_offset": 1,
         "committed_leader_epoch": -1, "committed_metadata": metadata}
        for index in range(count)
    ]  # fmt: skip
    answer = await brokers.ask(
        request(
            8, 9, group_id=group, generation_id_or_member_epoch=epoch, member_id=member, group_instance_id=None,
            topics=[{"name": "t", "partitions": partitions}],
        )
    )  # fmt: skip
    return {one.error_code for topic in answer.topics for one in topic.partitions}


async def test_full_redis_refuses_commits_with_much_metadata_only(full: Brokers, store: Store) -> None:
    assert await _commit(full, "plain", 40, "") == {NONE}
    assert await _commit(full, "small", 2, METADATA) == {NONE}
    assert await _commit(full, "large", 40, METADATA) == {E.coordinator_not_available}
    assert await _commit(full, "plain", 40, "") == {NONE}
    assert await full.committed("plain", stable=False) == (NONE, 1)
    await _limit(store, 0)
    assert await _commit(full, "large", 40, METADATA) == {NONE}


async def test_full_redis_refused_script_is_freed_without_a_collection(full: Brokers, store: Store) -> None:
    """Its arguments may have tens of MB."""
    replies = asyncio.get_running_loop().create_future()

    class Caller:
        def __call__(self, reply: Any) -> None:
            replies.set_result(reply)

    caller = Caller()
    freed = weakref.ref(caller)
    gc.disable()
    try:
        store.send_script(COMMIT_WHILE_FREE, [store.group_keys("default", "g").group], [], caller)
        del caller
        assert isinstance(await replies, Failure)
        await asyncio.sleep(0.01)
        assert freed() is None
    finally:
        gc.enable()


async def test_full_redis_refuses_large_metadata_of_consumer_group_members(full: Brokers) -> None:
    join = {
        "group_id": "g", "member_id": "m", "member_epoch": 0, "rebalance_timeout": timedelta(seconds=5),
        "subscribed_topic_names": ("t",), "topic_partitions": (),
    }  # fmt: skip
    epoch = (await full.ask(request(68, 1, **join))).member_epoch
    assert await _commit(full, "g", 40, METADATA, "m", epoch) == {E.coordinator_not_available}
    assert await _commit(full, "g", 40, "", "m", epoch) == {NONE}


async def test_full_redis_refuses_large_metadata_in_transactions(full: Brokers, store: Store) -> None:
    await _limit(store, 0)
    producer = await full.producer().init()
    await _limit(store, 1)
    partitions = [
        {"partition_index": index, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": METADATA}
        for index in range(40)
    ]
    large = request(
        28, 5, transactional_id=producer.transactional_id, group_id="g", producer_id=producer.id,
        producer_epoch=producer.epoch, generation_id=-1, member_id="", group_instance_id=None,
        topics=[{"name": "t", "partitions": partitions}],
    )  # fmt: skip
    answer = await full.ask(large)
    assert {one.error_code for one in answer.topics[0].partitions} == {E.coordinator_not_available}
    assert await producer.commit_offset("g", 1, metadata="small") is NONE
    await producer.end(True)
    assert await full.committed("g", stable=True) == (NONE, 1)


# -- producers


async def _share(brokers: Brokers, share: float) -> None:
    """Set `maxmemory` so that each server uses this share of it; the broker measures that."""
    pressure = brokers.all[0].context.memory_pressure
    for node in brokers.all[0].store.nodes:
        reply = await node.control.call("INFO", "memory")
        used = int(reply.split(b"used_memory:")[1].split(b"\r")[0])
        await node.control.call("CONFIG", "SET", "maxmemory", int(used / share))
    await pressure.measure()


async def test_nearly_full_redis_throttles_then_refuses_records(full: Brokers) -> None:
    raw = build_batch([NewRecord(b"v", b"k", 1)])

    async def produced(version: int = 9) -> tuple[ErrorCode, float]:
        answer = await full.ask(produce_request([("t", [(0, raw)])], version=version))
        return answer.responses[0].partition_responses[0].error_code, answer.throttle_time.total_seconds()

    await _share(full, 0.5)
    assert await produced() == (NONE, 0)
    await _share(full, 0.9)
    for version in (3, 8, 9, 12):
        code, throttle_s = await produced(version)
        assert code is NONE
        assert 0.1 < throttle_s < 0.9
    await _share(full, 0.97)
    assert await produced() == (E.kafka_storage_error, 0)
    assert await _commit(full, "plain", 1, "") == {NONE}
    await _share(full, 0.5)
    assert await produced() == (NONE, 0)


async def test_nearly_full_redis_without_a_limit_is_free(full: Brokers) -> None:
    await _limit(full.all[0].store, 0)
    pressure = full.all[0].context.memory_pressure
    await pressure.measure()
    assert not pressure.is_high
    assert pressure.delay_s("any") == 0
