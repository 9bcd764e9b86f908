"""The snapshot of a group: what each member does in each state, and when its last request came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.clock import SteppedClock
from tests.support.groups import World, answer
from tidegate.diagnosis.group_snapshot import GroupSnapshot, MetadataDecoders, read_snapshot
from tidegate.errors import GroupIdNotFound
from tidegate.groups.expiry import grant_session_grace
from tidegate.protocol.consumer_blobs import (
    assigned_partitions,
    subscribed_topics,
    write_assignment,
    write_subscription,
)
from tidegate.settings import Settings

BLOBS = MetadataDecoders(subscribed_topics, assigned_partitions)
ORDERS = (("range", write_subscription(["orders"])),)


@pytest.fixture
async def world(settings: Settings, clock: SteppedClock) -> AsyncIterator[World]:
    opened = World(settings, clock)
    await opened.start()
    yield opened
    await opened.close()


async def snapshot(world: World) -> GroupSnapshot:
    return await read_snapshot(world.store, world.keys, "1", BLOBS, world.clock.now_ms)


async def phase(world: World) -> dict[str, str]:
    return {member.client_id: member.phase for member in (await snapshot(world)).members}


async def test_members_of_each_state(world: World) -> None:
    a, b = world.peer("a", protocols=ORDERS), world.peer("b", protocols=ORDERS)
    joins = [await a.start_join(), await b.start_join()]
    assert await phase(world) == {"a": "joined", "b": "joined"}

    await world.advance(world.settings.group_initial_rebalance_delay_ms * 2)
    await asyncio.gather(*(answer(join) for join in joins))
    parked = await b.parked(b.sync())
    assert await phase(world) == {"a": "unsynced", "b": "waiting"}

    await a.sync({a.member_id: write_assignment({"orders": [1, 0]}), b.member_id: write_assignment({})})
    await answer(parked)
    observed = await snapshot(world)
    assert {member.client_id: (member.phase, member.owned, member.leads) for member in observed.members} == {
        "a": ("synced", {"orders": (0, 1)}, True),
        "b": ("synced", {}, False),
    }
    assert observed.topics == {"orders"} and (observed.state, observed.generation) == ("Stable", 1)

    await world.peer("c", protocols=ORDERS).start_join()
    assert await phase(world) == {"a": "missing", "b": "missing", "c": "joined"}
    observed = await snapshot(world)
    assert observed.join_deadline_ms == world.clock.now_ms + 20_000


async def test_group_snapshot_last_heartbeats_of_members(world: World) -> None:
    a, _ = await world.stable("a", "b", protocols=ORDERS)
    began = world.clock.now_ms
    await world.advance(4_000, beating=[a])
    await world.peer("c").start_join()
    reported = {member.client_id: member.last_contact_ms for member in (await snapshot(world)).members}

    assert reported == {"a": began + 4_000, "b": began, "c": None}


async def test_group_snapshot_session_grace_is_no_heartbeat(world: World) -> None:
    a, _ = await world.stable("a", "b", protocols=ORDERS)
    await world.advance(2_000, beating=[a])
    await grant_session_grace(world.store, world.keys.shard_keys.shard)
    reported = {member.client_id: member.last_contact_ms for member in (await snapshot(world)).members}
    assert reported == {"a": None, "b": None}

    await world.advance(12_000, beating=[a])
    reported = {member.client_id: member.last_contact_ms for member in (await snapshot(world)).members}
    assert reported == {"a": world.clock.now_ms, "b": None}


async def test_group_snapshot_ids_without_a_second_join(world: World) -> None:
    member_id = await world.peer("a").claim_id()
    (pending,) = (await snapshot(world)).pending

    assert (pending.member_id, pending.client_id) == (member_id, "a")
    assert pending.ends_ms == world.clock.now_ms + 10_000


async def test_group_snapshot_expires_what_is_overdue_first(world: World) -> None:
    await world.stable("a", "b")
    world.sweeping = False
    await world.advance(60_000)

    assert (await snapshot(world)).state == "Empty"


async def test_group_that_does_not_exist(world: World) -> None:
    with pytest.raises(GroupIdNotFound):
        await snapshot(world)


async def test_group_snapshot_unreadable_metadata(world: World) -> None:
    await world.stable("a")

    (member,) = (await snapshot(world)).members
    assert member.topics is None and (await snapshot(world)).topics is None
