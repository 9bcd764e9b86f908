"""Scenarios 55-66 of the specification: heartbeats, sessions, leaving."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.scripts.test_classic_rejoining import completing
from tests.support.groups import World, answer, refused
from tidegate.errors import UnknownMemberId
from tidegate.groups import classic
from tidegate.groups.classic import LEAVING_AT_ONCE
from tidegate.groups.expiry import grant_session_grace
from tidegate.groups.model import Leaving
from tidegate.store.link import Arg
from tidegate.store.redis_outage import RedisOutage
from tidegate.store.scripts import Script
from tidegate.store.store import Store

NONE, ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, FENCED_INSTANCE_ID = 0, 22, 25, 27, 82


async def test_scenario_55_codes_of_a_heartbeat(world: World) -> None:
    [a] = await world.stable("a")
    p = world.peer("p")
    await p.claim_id()

    assert await a.heartbeat() == NONE
    assert await a.heartbeat(generation=0) == ILLEGAL_GENERATION
    assert await a.heartbeat(generation=2) == ILLEGAL_GENERATION
    assert await a.heartbeat(member_id="nobody") == UNKNOWN_MEMBER_ID
    assert await p.heartbeat(generation=1) == UNKNOWN_MEMBER_ID
    world.group_id = "absent"
    assert await a.heartbeat() == UNKNOWN_MEMBER_ID


async def test_scenario_56_a_heartbeat_counts_in_every_state(world: World) -> None:
    a, b = await completing(world, "a", "b")
    await world.advance(9_000)
    assert await a.heartbeat() == await b.heartbeat() == NONE
    await world.advance(9_000)
    rejoin = await a.parked(a.ask_join(protocols=(("range", b"changed"),)))
    assert await b.heartbeat() == REBALANCE_IN_PROGRESS
    await world.advance(9_000)
    assert await b.heartbeat() == REBALANCE_IN_PROGRESS
    assert not rejoin.done()


async def test_scenario_57_a_wrong_generation_renews_no_session(world: World) -> None:
    a, b = await world.stable("a", "b")
    b.generation = 7

    await world.advance(10_000, beating=[a, b])

    assert await world.members() == {a.member_id}


async def test_scenario_58_a_parked_join_renews_the_session(world: World) -> None:
    a, b = await world.stable("a", "b", rebalance_timeout_ms=120_000)
    rejoin = await a.start_join()

    await world.advance(60_000, beating=[b])
    assert not rejoin.done()
    assert (await b.join()).generation == 2
    await answer(rejoin)

    await world.advance(9_999)
    assert a.member_id in await world.members()
    await world.advance(1)
    assert a.member_id not in await world.members()


async def test_scenario_60_a_session_ends_to_the_millisecond(world: World) -> None:
    [a] = await world.stable("a")
    world.sweeping = False
    await a.heartbeat()

    await world.advance(9_999)
    assert await a.heartbeat() == NONE
    await world.advance(10_001)
    assert await a.heartbeat() == UNKNOWN_MEMBER_ID


async def leave(world: World, *leaving: Leaving) -> list[int]:
    return await classic.leave(world.store, world.keys, leaving)


async def test_scenario_61_an_unknown_member_cannot_leave(world: World) -> None:
    assert await leave(world, Leaving("a"), Leaving("b")) == [UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID]
    await world.stable("a")
    assert await leave(world, Leaving("nobody")) == [UNKNOWN_MEMBER_ID]
    assert await leave(world) == []
    assert await world.state() == ("Stable", 1)


async def test_scenario_62_a_batch_leaves_with_one_rebalance(world: World) -> None:
    a, b, c = await world.stable("a", "b", "c")

    codes = await leave(world, Leaving(a.member_id), Leaving(b.member_id), Leaving("nobody"), Leaving(a.member_id))

    assert codes == [NONE, NONE, UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID]
    assert await c.heartbeat() == REBALANCE_IN_PROGRESS
    assert (await world.events()).count("rebalance_started") == 2
    assert (await c.join()).generation == 2


async def test_many_leave_in_parts_with_one_rebalance(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = await world.stable("a", "b", "c")
    strangers = [Leaving(f"nobody-{number}") for number in range(2 * LEAVING_AT_ONCE)]
    parts, run = list[int](), Store.run

    async def counting(store: Store, script: Script, keys: Sequence[str], *args: Arg) -> list[Any]:
        if script is classic.LEAVE_GROUP:
            parts.append((len(args) - 7) // 3)
        return await run(store, script, keys, *args)

    monkeypatch.setattr(Store, "run", counting)
    codes = await leave(world, Leaving(a.member_id), *strangers, Leaving(b.member_id), Leaving(a.member_id))

    assert codes == [NONE, *[UNKNOWN_MEMBER_ID] * len(strangers), NONE, UNKNOWN_MEMBER_ID]
    assert parts == [LEAVING_AT_ONCE, LEAVING_AT_ONCE, 3]
    assert (await world.events()).count("rebalance_started") == 2
    assert await world.members() == {c.member_id}
    assert (await c.join()).generation == 2


async def test_scenario_63_an_instance_is_removed_whoever_owns_it(world: World) -> None:
    a, s1 = await world.stable_of(world.peer("a"), world.peer("s", instance_id="s1"))

    assert await leave(world, Leaving("", "s1"), Leaving("", "s2"), Leaving("")) == [NONE, 25, 25]
    assert await world.members() == {a.member_id}
    assert await s1.heartbeat() == UNKNOWN_MEMBER_ID


async def test_scenario_64_a_replaced_member_cannot_leave(world: World) -> None:
    _, s1 = await world.stable_of(world.peer("a"), world.peer("s", instance_id="s1"))
    old_id = s1.member_id
    await s1.ask_join(member_id="")

    assert await leave(world, Leaving(old_id, "s1")) == [FENCED_INSTANCE_ID]
    assert await world.state() == ("Stable", 1)


async def test_scenario_65_a_pending_id_leaves(world: World) -> None:
    [a] = await world.stable("a")
    p, q = world.peer("p"), world.peer("q")
    await p.claim_id()

    assert await p.leave() == NONE
    assert await world.state() == ("Stable", 1)

    join = await world.peer("b").start_join()
    await q.claim_id()
    rejoin = await a.start_join()
    assert not rejoin.done()
    assert await q.leave() == NONE
    assert (await answer(rejoin)).generation == (await answer(join)).generation == 2


async def test_scenario_66_a_member_parked_in_join_leaves(world: World) -> None:
    a, _ = await world.stable("a", "b")
    rejoin = await a.start_join()

    assert await a.leave() == NONE

    assert await refused(rejoin, UnknownMemberId) == ""


async def test_scenario_66_a_member_parked_in_sync_leaves(world: World) -> None:
    _, b = await completing(world, "a", "b")
    waiting = await b.syncing()

    assert await b.leave() == NONE

    await refused(waiting, UnknownMemberId)


async def test_sessions_silent_during_a_redis_outage_are_extended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await world.stable("a", "b")
    world.sweeping = False
    await world.advance(12_000)
    with monkeypatch.context() as patched:
        patched.setattr(RedisOutage, "recently_recovered", True)
        assert await a.heartbeat() == NONE
    assert await world.members() == {a.member_id, b.member_id}

    await world.advance(9_999)
    assert await a.heartbeat() == NONE
    await world.advance(1)
    assert await a.heartbeat() == REBALANCE_IN_PROGRESS, "b had one session timeout more, and is not there"
    assert await world.members() == {a.member_id}


async def test_members_of_a_silent_broker_have_one_more_session_timeout(world: World) -> None:
    a, b = await world.stable("a", "b")
    await world.advance(9_000)
    assert await grant_session_grace(world.store, world.keys.shard_keys.shard) == 2
    assert await grant_session_grace(world.store, world.keys.shard_keys.shard) == 0

    await world.advance(19_999)
    assert await world.members() == {a.member_id, b.member_id}
    assert await a.heartbeat() == NONE
    await world.advance(1)
    assert await world.members() == {a.member_id}


async def test_brokers_that_falter_keep_no_dead_member(world: World) -> None:
    a, b = await world.stable("a", "b")
    for _ in range(10):
        await grant_session_grace(world.store, world.keys.shard_keys.shard)
        await world.advance(3_000, beating=[a])

    assert await world.members() == {a.member_id}
    assert b.member_id not in await world.members()


async def test_sessions_parked_lease_gets_no_grace(world: World) -> None:
    a, b = await world.stable("a", "b", rebalance_timeout_ms=300_000)
    rejoin = await a.start_join()
    lease = await world.store.command("ZSCORE", world.keys.sessions, a.member_id)

    assert await grant_session_grace(world.store, world.keys.shard_keys.shard) == 1

    assert await world.store.command("ZSCORE", world.keys.sessions, a.member_id) == lease
    assert int(await world.store.command("ZSCORE", world.keys.sessions, b.member_id)) == world.clock.now_ms + 20_000
    assert not rejoin.done()


async def test_phase_overdue_during_a_redis_outage_continues(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = await world.stable("a", "b", session_timeout_ms=30_000)
    rejoin = await a.start_join()
    world.sweeping = False
    with monkeypatch.context() as patched:
        patched.setattr(RedisOutage, "recently_recovered", True)
        await world.clock.advance(25_000)
        await world.observe()
    assert not rejoin.done()
    assert await world.members() == {a.member_id, b.member_id}

    assert (await b.join()).generation == 2 == (await answer(rejoin)).generation


async def test_sync_wait_interrupted_by_redis_continues(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = await completing(world, "a", "b")
    waiting = await b.syncing()
    world.sweeping = False
    with monkeypatch.context() as patched:
        patched.setattr(RedisOutage, "recently_recovered", True)
        await world.clock.advance(25_000)
        await world.observe()
    assert not waiting.done()

    assert (await a.sync({b.member_id: b"for b"})).assignment == b""
    assert (await answer(waiting)).assignment == b"for b"
