"""Scenarios 67-83 of the specification: static members (KIP-345), and groups that are full."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.groups import Peer, World, answer, refused
from tidegate.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    RebalanceInProgress,
    UnknownMemberId,
)
from tidegate.groups import classic

NONE, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, FENCED_INSTANCE_ID = 0, 25, 27, 82


async def static(world: World, *names: str, **traits: object) -> list[Peer]:
    """Stable{first*, ...}@1 of static members."""
    return await world.stable_of(*(world.peer(name, instance_id=name, **traits) for name in names))


async def test_scenario_67_a_static_follower_restarts(world: World) -> None:
    s1, s2 = await static(world, "s1", "s2")
    old_id = s2.member_id
    s2.member_id = ""

    joined = await s2.join()

    assert joined.member_id != old_id and joined.member_id.startswith("s2-")
    assert (joined.generation, joined.leader, joined.members) == (1, s1.member_id, ())
    assert await s1.heartbeat() == NONE
    assert (await s2.sync()).assignment == f"{old_id}@1".encode()
    assert await world.state() == ("Stable", 1)


async def test_scenario_68_a_static_leader_restarts(world: World) -> None:
    s1, s2 = await static(world, "s1", "s2")
    s1.member_id = ""

    joined = await s1.join()

    assert joined.leader == joined.member_id and joined.skip_assignment
    assert {member.member_id for member in joined.members} == {s1.member_id, s2.member_id}
    assert (joined.generation, await world.state()) == (1, ("Stable", 1))


async def test_scenario_68_an_old_static_leader_restarts(world: World) -> None:
    s1, _ = await static(world, "s1", "s2", version=8)
    old_id, s1.member_id = s1.member_id, ""

    joined = await s1.join()

    assert joined.leader == old_id != joined.member_id
    assert not joined.members and not joined.skip_assignment


async def test_scenario_69_the_old_process_is_fenced(world: World) -> None:
    _, s2 = await static(world, "s1", "s2")
    old_id = s2.member_id
    await s2.ask_join(member_id="")

    assert await s2.heartbeat() == FENCED_INSTANCE_ID
    await refused(s2.sync(), FencedInstanceId)
    assert await refused(s2.ask_join(), FencedInstanceId) == old_id
    assert await s2.heartbeat(instance_id=None) == UNKNOWN_MEMBER_ID
    s2.instance_id = None
    await refused(s2.sync(), UnknownMemberId)


async def test_scenario_70_a_restart_with_another_subscription(world: World) -> None:
    s1, s2 = await static(world, "s1", "s2")
    s2.member_id, s2.protocols = "", (("range", b"changed"),)

    assert (await s2.join()).generation == 1

    assert await s1.heartbeat() == NONE
    stored = await world.store.command("HGET", world.keys.subscriptions, s2.member_id)
    assert stored.endswith(b"changed")


async def test_scenario_71_a_restart_that_changes_the_vote(world: World) -> None:
    s1, s2 = await static(world, "s1", "s2", protocols=(("x", b""), ("y", b"")))
    s2.member_id, s2.protocols = "", (("y", b""),)

    rejoin = await s2.start_join()

    assert not rejoin.done()
    assert await s1.heartbeat() == REBALANCE_IN_PROGRESS
    assert (await s1.join()).protocol == "y" == (await answer(rejoin)).protocol


async def test_scenario_72_a_restart_while_completing(world: World) -> None:
    s1, s2 = world.peer("s1", instance_id="s1"), world.peer("s2", instance_id="s2")
    joins = [await s1.start_join(), await s2.start_join()]
    await world.advance(6_000)
    await asyncio.gather(*joins)
    waiting = await s2.syncing()

    rejoin = await s2.parked(s2.ask_join(member_id=""))

    await refused(waiting, FencedInstanceId)
    await refused(s1.sync({}), RebalanceInProgress)
    assert (await s1.join()).generation == 2 == (await answer(rejoin)).generation


async def test_scenario_73_a_restart_while_preparing(world: World) -> None:
    s1, s2, _ = await static(world, "s1", "s2", "s3")
    first = await s1.start_join()
    parked = await s2.parked(s2.ask_join(protocols=(("range", b"changed"),)))
    old_id = s2.member_id

    second = await s2.parked(s2.ask_join(member_id=""))

    assert await refused(parked, FencedInstanceId) == old_id
    assert not second.done() and not first.done()
    assert await world.field("joined_count") == "2"
    assert len(await world.members()) == 3


async def test_scenario_74_two_processes_of_one_instance(world: World) -> None:
    one, two = world.peer("x", instance_id="s1"), world.peer("x", instance_id="s1")
    joins = await asyncio.gather(one.start_join(), two.start_join())
    await world.advance(6_000)

    results = await asyncio.gather(*joins, return_exceptions=True)

    assert sum(isinstance(result, BaseException) for result in results) == 1
    loser, winner = (one, two) if isinstance(results[0], BaseException) else (two, one)
    assert await refused(joins[0] if loser is one else joins[1], FencedInstanceId) != winner.member_id
    assert await world.members() == {winner.member_id}


async def test_scenario_75_an_absent_static_member(world: World) -> None:
    s1, s2 = await static(world, "s1", "s2", session_timeout_ms=60_000)
    rejoin = await s1.start_join()
    await world.advance(20_000)

    joined = await answer(rejoin)
    assert {member.member_id for member in joined.members} == {s1.member_id, s2.member_id}
    await s1.sync({})

    await world.advance(19_999, beating=[s1])
    assert await s1.heartbeat() == NONE
    await world.advance(1)
    assert await s1.heartbeat() == REBALANCE_IN_PROGRESS
    assert await world.members() == {s1.member_id}
    assert (await s1.join()).generation == 3


@pytest.mark.parametrize("sweeping", [True, False])
async def test_scenario_76_only_absent_static_members(world: World, sweeping: bool) -> None:
    s1, s2 = await static(world, "s1", "s2", session_timeout_ms=90_000)
    c = world.peer("c")
    await c.start_join()
    await c.leave()
    world.sweeping = sweeping

    await world.advance(89_999)
    assert await s1.heartbeat(member_id="nobody", instance_id=None) == UNKNOWN_MEMBER_ID
    assert await world.state() == ("PreparingRebalance", 1)
    assert await world.members() == {s1.member_id, s2.member_id}
    await world.advance(1)
    await s1.heartbeat(member_id="nobody", instance_id=None)
    assert await world.state() == ("Empty", 2)


async def test_scenario_77_an_absent_static_leader(world: World) -> None:
    s1, s2 = await static(world, "s1", "s2", session_timeout_ms=60_000)
    rejoin = await s2.parked(s2.join_with(protocols=(("range", b"changed"),)))

    await world.advance(20_000)

    joined = await answer(rejoin)
    assert joined.leader == s2.member_id
    assert {member.member_id for member in joined.members} == {s1.member_id, s2.member_id}


async def test_scenario_78_ids_and_instances_belong_together(world: World) -> None:
    s1, _ = await static(world, "s1", "s2")

    assert await refused(s1.ask_join(instance_id="unmapped"), UnknownMemberId) == s1.member_id
    assert await refused(s1.ask_join(instance_id="s2"), FencedInstanceId) == s1.member_id


async def test_scenario_79_a_static_member_stops_silently(world: World) -> None:
    s1, s2 = await static(world, "s1", "s2")

    await world.advance(9_999, beating=[s2])
    assert await s2.heartbeat() == NONE
    await world.advance(1)

    assert await s2.heartbeat() == REBALANCE_IN_PROGRESS
    assert (await s2.join()).generation == 2
    assert s1.member_id not in await world.members()


async def test_scenario_80_a_restart_is_repeated(world: World) -> None:
    _, s2 = await static(world, "s1", "s2")
    first_id = s2.member_id
    second_id = (await s2.ask_join(member_id="")).member_id

    third_id = (await s2.ask_join(member_id="")).member_id

    assert len({first_id, second_id, third_id}) == 3
    for old_id in (first_id, second_id):
        assert await s2.heartbeat(member_id=old_id) == FENCED_INSTANCE_ID
    assert await s2.heartbeat(member_id=third_id) == NONE


async def test_restart_that_is_run_again_does_not_fence_its_successor(world: World) -> None:
    _, s2 = await static(world, "s1", "s2")
    broker, older = s2.broker, s2.request(member_id="")
    older_id = (await classic.join(broker.store, broker.waits, s2.keys, older)).member_id
    newer_id = (await s2.ask_join(member_id="")).member_id

    assert await refused(classic.join(broker.store, broker.waits, s2.keys, older), FencedInstanceId) == older_id

    assert await s2.heartbeat(member_id=newer_id) == NONE
    assert (await s2.ask_join(member_id="")).member_id not in (older_id, newer_id), "one that restarts again is let in"


async def test_static_restart_preserves_members_that_have_synced(world: World) -> None:
    s1, s2 = world.peer("s1", instance_id="s1"), world.peer("s2", instance_id="s2")
    joins = [await s1.start_join(), await s2.start_join()]
    await world.advance(6_000)
    await asyncio.gather(*joins)
    await s1.sync({})
    s2.member_id = ""
    await s2.join()
    await s2.sync()

    await world.advance(60_000, beating=[s1, s2])

    assert await world.state() == ("Stable", 1)


# -- a full group


async def test_scenario_81_the_third_of_two(world: World) -> None:
    world.use(group_max_size=2)
    peers = [world.peer(name) for name in "abc"]
    for peer in peers:
        await peer.claim_id()
    joins = [await peer.start_join() for peer in peers[:2]]

    assert await refused(peers[2].ask_join(), GroupMaxSizeReached) == ""

    await world.advance(6_000)
    assert {(await answer(join)).generation for join in joins} == {1}


async def test_join_id_refused_in_a_full_phase_does_not_delay_it(world: World) -> None:
    (a,) = await world.stable("a")
    b, c, late = (world.peer(name) for name in "bcd")
    for peer in (b, c, late):
        await peer.claim_id()
    world.use(group_max_size=2)
    joins = [await peer.start_join() for peer in (b, c)]

    assert await refused(late.ask_join(), GroupMaxSizeReached) == ""
    assert await world.store.command("EXISTS", world.keys.pending) == 0

    assert await refused(a.ask_join(), GroupMaxSizeReached) == ""
    assert {(await answer(join)).generation for join in joins} == {2}


async def test_scenario_82_a_full_group(world: World) -> None:
    world.use(group_max_size=2)
    a, s = await world.stable_of(world.peer("a"), world.peer("s", instance_id="s1"))

    assert await refused(world.peer("c").ask_join(), GroupMaxSizeReached) == ""
    assert await world.store.command("EXISTS", world.keys.pending) == 0

    s.member_id = ""
    assert (await s.join()).generation == 1
    rejoin = await a.start_join()
    assert (await s.join()).generation == 2 == (await answer(rejoin)).generation


async def test_scenario_83_the_limit_is_lowered(world: World) -> None:
    a, b = await world.stable("a", "b")
    world.use(group_max_size=1)
    rejoin = await a.start_join()

    assert await refused(b.ask_join(), GroupMaxSizeReached) == ""

    assert (await answer(rejoin)).generation == 2
    assert await world.members() == {a.member_id}
