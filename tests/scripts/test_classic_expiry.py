"""Overdue groups that nobody looks at: who takes them, and when."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.groups import World
from tests.support.steps import poll_deadlines
from tidegate.cluster.deadlines import HOLD_MS, LATE_MS, TAKE_DUE, Deadlines, Due
from tidegate.groups.expiry import GroupExpiry, expire_group
from tidegate.groups.group_index import group_of
from tidegate.store.store import Store


async def take(store: Store, late_ms: int = 0, items_max: int = 10) -> tuple[int, list[bytes]]:
    """Milliseconds until the next item, and the items taken, of shard 3."""
    until_ms, *items = await store.run(TAKE_DUE, [store.shard_keys(3).deadlines], late_ms, HOLD_MS, items_max, 0)
    return until_ms, items


async def swept_now(world: World) -> bool:
    """Whether the group's shard was swept at this moment of the stepped clock."""
    return await world.store.command("ZSCORE", world.keys.shard_keys.deadlines, "swept") == -world.clock.now_ms


async def test_expiry_taken_item_is_due_again_unless_it_is_resolved(world: World) -> None:
    store, deadlines = world.store, world.store.shard_keys(3).deadlines
    now_ms = world.clock.now_ms
    await store.command("ZADD", deadlines, now_ms, "session|default/a", now_ms + 700, "join|default/b")

    assert await take(store) == (700, [b"session|default/a"])
    assert await take(store) == (700, [])
    await world.clock.advance(HOLD_MS)
    assert sorted((await take(store))[1]) == [b"join|default/b", b"session|default/a"]


async def test_no_more_is_taken_than_asked_for(world: World) -> None:
    store, deadlines = world.store, world.store.shard_keys(3).deadlines
    for n in range(5):
        await store.command("ZADD", deadlines, world.clock.now_ms - n, f"session|default/{n}")

    until_ms, items = await take(store, items_max=3)

    assert (until_ms, len(items)) == (0, 3)
    assert await take(world.brokers[1].store, items_max=3) == (HOLD_MS, [b"session|default/1", b"session|default/0"])


async def test_empty_shard_has_nothing_to_wait_for(world: World) -> None:
    assert await take(world.store) == (-1, [])


async def test_others_shards_are_taken_only_when_late(world: World) -> None:
    taken: list[Due] = []

    async def on_due(due: list[Due]) -> None:
        taken.extend(due)

    await world.store.command("ZADD", world.store.shard_keys(3).deadlines, world.clock.now_ms, "session|default/a|b")
    stranger = Deadlines(world.store, lambda shard: shard != 3, on_due)

    await poll_deadlines(stranger)
    assert taken == []
    await world.clock.advance(LATE_MS)
    await poll_deadlines(stranger)
    assert taken == [Due("session", "default/a|b")]


async def test_expiry_loop_expires_a_silent_group_by_itself(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.cluster.deadlines._POLL_MAX_MS", 20)
    await world.stable("a", "b")
    expiry = GroupExpiry(world.store, lambda _: True, lambda: "9")
    await expiry.start()

    async with asyncio.timeout(30):
        for _ in range(5):
            await world.clock.advance(2_000)  # less than a gap between two sweeps
            while await world.state() != ("Empty", 2) and not await swept_now(world):
                await asyncio.sleep(0.02)
        while await world.state() != ("Empty", 2):
            await asyncio.sleep(0.02)
    await expiry.close()


async def test_expiry_of_an_absent_group_drops_its_hints(world: World) -> None:
    deadlines = world.keys.shard_keys.deadlines
    await world.store.command("ZADD", deadlines, 1, f"session|{world.keys.ref}", 1, f"join|{world.keys.ref}")

    await expire_group(world.store, world.keys)

    assert await world.store.command("ZCARD", deadlines) == 0


async def test_groups_name_leads_back_to_its_keys(world: World) -> None:
    for group_id in ("orders", "a/b|c:d {x} é", "%41"):
        keys = world.store.group_keys("default", group_id)
        assert group_of(world.store, keys.ref) == keys


async def test_after_an_outage_sessions_are_judged_by_redis_time_alone(world: World) -> None:
    a, b = await world.stable("a", "b")
    world.sweeping = False
    await world.advance(9_000)
    assert await a.heartbeat() == 0
    await world.advance(2_000)

    assert await a.heartbeat() == 27
    assert await world.members() == {a.member_id}
    assert b.member_id not in await world.members()
