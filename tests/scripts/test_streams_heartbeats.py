"""Heartbeats of streams groups that report nothing: answered from snapshots, until something changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from kio.schema.streams_group_heartbeat.v0 import request as sent

from tests.scripts.test_streams_wire import Streams, active, statuses, subtopology, topic, topology_of
from tests.support.consumer_wire import code, wire_of
from tests.support.valkey import ValkeyServer
from tidegate.telemetry.metrics import metrics

WAIT_S = 40.0


@pytest.fixture
async def streams(valkey: ValkeyServer) -> AsyncIterator[Streams]:
    async with wire_of(valkey) as wire:
        yield Streams(wire)


async def is_from_snapshot(streams: Streams, member: str, epoch: int) -> bool:
    """Whether a heartbeat, which must be without news, is answered from a snapshot."""
    before = metrics.heartbeats_answered
    answer = await streams.heartbeat(member, epoch)
    assert (code(answer), answer.member_epoch, active(answer), statuses(answer)) == ("NONE", epoch, None, [])
    return metrics.heartbeats_answered > before


async def wait_for_snapshot(streams: Streams, member: str, epoch: int) -> None:
    """Heartbeat until a snapshot answers."""
    async with asyncio.timeout(WAIT_S):
        while not await is_from_snapshot(streams, member, epoch):
            await asyncio.sleep(0.05)


async def news(streams: Streams, member: str, epoch: int, is_news: Callable[[Any], bool]) -> Any:
    """Heartbeat until the answer has the news."""
    async with asyncio.timeout(WAIT_S):
        while not is_news(answer := await streams.heartbeat(member, epoch)):
            await asyncio.sleep(0.05)
    return answer


async def test_plain_heartbeat_is_answered_from_a_snapshot(streams: Streams) -> None:
    await streams.join("a")

    await wait_for_snapshot(streams, "a", 2)

    assert (await streams.heartbeat("a", 2)).heartbeat_interval.total_seconds() == 5
    assert (await streams.describe()).group_state == "Stable"


async def test_reported_tasks_need_a_decision(streams: Streams) -> None:
    await streams.join("a")
    await wait_for_snapshot(streams, "a", 2)
    before = metrics.heartbeats_answered

    assert active(await streams.own("a", 2)) == [0, 1, 2, 3]  # it reports none: its answer was lost

    assert metrics.heartbeats_answered == before


async def test_joined_member_ends_the_snapshot(streams: Streams) -> None:
    await streams.join("a")
    await wait_for_snapshot(streams, "a", 2)

    await streams.join("b")

    assert active(await news(streams, "a", 2, lambda answer: active(answer) is not None)) == [0, 1]


async def test_shutdown_ends_the_snapshot(streams: Streams) -> None:
    joined = await joined_by_two(streams)
    await wait_for_snapshot(streams, "a", joined)

    await streams.heartbeat("b", joined, shutdown_application=True)

    await news(streams, "a", joined, lambda answer: statuses(answer) == [4])


async def joined_by_two(streams: Streams) -> int:
    """Members a and b with two tasks each; their epoch."""
    await streams.join("a")
    epoch: int = (await streams.join("b")).member_epoch
    await streams.heartbeat("a", 2)
    await streams.own("a", 2, 0, 1)
    assert active(await streams.own("b", epoch)) == [2, 3]
    return epoch


async def test_new_partitions_end_the_snapshot(streams: Streams) -> None:
    await streams.join("a")
    await wait_for_snapshot(streams, "a", 2)

    await streams.wire.app.broker.context.catalog.add_partitions("default", "t4", 5)

    assert active(await news(streams, "a", 2, lambda answer: active(answer) is not None)) == [0, 1, 2, 3, 4]


async def test_changed_configs_end_the_snapshot(streams: Streams) -> None:
    app = topology_of(subtopology(state_changelog_topics=(topic("app-y-changelog", cleanup_policy="compact"),)))
    await streams.join("a", app)
    await wait_for_snapshot(streams, "a", 2)

    await streams.configure(num_standby_replicas="1", heartbeat_interval_ms="7000")

    answer = await news(streams, "a", 2, lambda answer: answer.member_epoch == 3)
    assert answer.heartbeat_interval.total_seconds() == 7


async def test_member_with_an_older_topology_is_decided_on(streams: Streams) -> None:
    await streams.join("a", topology_of(subtopology(), epoch=1))
    stale = await streams.join("b", topology_of(subtopology(sources=("t1",)), epoch=0))

    for _ in range(5):
        assert statuses(await streams.heartbeat("b", stale.member_epoch)) == [0]


async def test_processes_with_endpoints_are_decided_on(streams: Streams) -> None:
    joined = await streams.join("a", user_endpoint=sent.Endpoint(host="here", port=65_000))
    known = joined.endpoint_information_epoch

    for _ in range(5):
        answer = await streams.heartbeat("a", 2, endpoint_information_epoch=known)
        assert answer.endpoint_information_epoch == known


async def test_missing_source_is_decided_on(streams: Streams) -> None:
    joined = await streams.join("a", topology_of(subtopology(sources=("t4", "absent"))))

    for _ in range(5):
        assert statuses(await streams.heartbeat("a", joined.member_epoch)) == [1]


async def test_static_member_is_answered_by_its_instance_id(streams: Streams) -> None:
    await streams.join("a", instance_id="i")

    async with asyncio.timeout(WAIT_S):
        before = metrics.heartbeats_answered
        while metrics.heartbeats_answered == before:
            assert code(await streams.heartbeat("a", 2, instance_id="i")) == "NONE"

    assert code(await streams.heartbeat("a", 2, instance_id="other")) == "UNKNOWN_MEMBER_ID"


async def test_session_ends_after_the_last_heartbeat(streams: Streams) -> None:
    """A snapshot prolongs no session by itself."""
    await streams.configure(session_timeout_ms="5000", heartbeat_interval_ms="500")
    await streams.join("a")
    for _ in range(3):
        assert code(await streams.heartbeat("a", 2)) == "NONE"
        await asyncio.sleep(0.2)

    async with asyncio.timeout(WAIT_S):
        while (await streams.describe()).members:
            await asyncio.sleep(0.1)
    assert code(await streams.heartbeat("a", 2)) == "UNKNOWN_MEMBER_ID"


async def test_member_of_a_group_that_lost_writes_joins_again(streams: Streams) -> None:
    await streams.join("a")
    broker, keys = streams.wire.app.broker, streams.wire.app.broker.store.group_keys("default", streams.wire.group)
    version = int(await broker.store.command("HGET", keys.group, "version"))

    broker.generation_guard.apply_write(keys, 2, version + 1)
    broker.generation_guard.announce()
    answer = await news(streams, "a", 2, lambda one: code(one) != "NONE")

    assert code(answer) == "FENCED_MEMBER_EPOCH"
    assert active(await streams.join("a")) == [0, 1, 2, 3]
