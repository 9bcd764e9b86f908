"""Scenarios 43-54 of the specification: handing in and waiting for assignments."""

from __future__ import annotations

import asyncio

from tests.scripts.test_classic_rejoining import completing
from tests.support.groups import World, answer, refused
from tidegate.errors import (
    IllegalGeneration,
    InconsistentGroupProtocol,
    RebalanceInProgress,
    UnknownMemberId,
)

NONE, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS = 0, 25, 27


async def test_scenario_43_the_follower_syncs_first(world: World) -> None:
    a, b = await completing(world, "a", "b")
    waiting = await b.syncing()
    assert not waiting.done()

    mine = await a.sync({a.member_id: b"for a", b.member_id: b"for b"})

    assert mine.assignment == b"for a"
    assert (mine.protocol_type, mine.protocol) == ("consumer", "range")
    assert (await answer(waiting)).assignment == b"for b"
    assert await world.state() == ("Stable", 1)


async def test_scenario_43_the_leader_syncs_first(world: World) -> None:
    a, b = await completing(world, "a", "b")

    await a.sync({b.member_id: b"for b"})
    assert await world.state() == ("Stable", 1)

    assert (await b.sync()).assignment == b"for b"


async def test_scenario_44_members_absent_from_the_assignment(world: World) -> None:
    a, b = await completing(world, "a", "b")
    waiting = await b.parked(b.sync({a.member_id: b"from a follower"}))
    assert await world.state() == ("CompletingRebalance", 1)

    mine = await a.sync({"nobody": b"lost"})

    assert mine.assignment == b"" == (await answer(waiting)).assignment
    assert await world.store.command("HKEYS", world.keys.assignments) == [b""]  # stored, and for nobody


async def test_scenario_45_other_generations(world: World) -> None:
    a, _ = await completing(world, "a", "b")

    await refused(a.sync(generation=0), IllegalGeneration)
    await refused(a.sync(generation=2), IllegalGeneration)
    a.member_id = "nobody"
    await refused(a.sync(generation=2), UnknownMemberId)


async def test_scenario_46_the_protocol_must_be_the_groups(world: World) -> None:
    a, _ = await completing(world, "a", "b")

    await refused(a.sync(protocol="other"), InconsistentGroupProtocol)
    await refused(a.sync(protocol_type="other"), InconsistentGroupProtocol)
    assert (await a.sync(protocol=None, protocol_type=None)).protocol == "range"


async def test_scenario_47_no_sync_in_a_join_phase(world: World) -> None:
    a, b = await world.stable("a", "b")
    await world.peer("c").start_join()

    await refused(b.sync(), RebalanceInProgress)
    await a.leave()
    await b.leave()
    world.group_id = "absent"
    await refused(b.sync(), UnknownMemberId)


async def test_scenario_47_no_sync_in_an_empty_group(world: World) -> None:
    [a] = await world.stable("a")
    await a.leave()

    await refused(a.sync(), UnknownMemberId)


async def test_scenario_48_the_leader_never_syncs(world: World) -> None:
    a, b = await completing(world, "a", "b")
    waiting = await b.syncing()

    await world.advance(19_999, beating=[a])
    assert not waiting.done()
    await world.advance(1)

    await refused(waiting, RebalanceInProgress)
    assert await world.members() == {b.member_id}
    assert (await b.join()).leader == b.member_id


async def test_scenario_49_a_follower_never_syncs(world: World) -> None:
    a, b = await completing(world, "a", "b")
    await a.sync({})
    assert await world.state() == ("Stable", 1)

    await world.advance(19_999, beating=[a, b])
    assert await a.heartbeat() == NONE
    await world.advance(1)

    assert await b.heartbeat() == UNKNOWN_MEMBER_ID
    assert await a.heartbeat() == REBALANCE_IN_PROGRESS


async def test_scenario_50_no_member_syncs(world: World) -> None:
    a, b = await completing(world, "a", "b")

    await world.advance(20_000, beating=[a, b])

    assert await world.state() == ("Empty", 2)


async def test_scenario_50_all_synced(world: World) -> None:
    a, b = await world.stable("a", "b")

    await world.advance(60_000, beating=[a, b])

    assert await world.state() == ("Stable", 1)
    assert await world.store.command("ZSCORE", world.keys.shard_keys.deadlines, f"sync|{world.keys.ref}") is None


async def test_scenario_51_the_first_assignments_stand(world: World) -> None:
    a, b = await completing(world, "a", "b")
    waiting = await b.syncing()

    first, second = await asyncio.gather(
        a.sync({a.member_id: b"one", b.member_id: b"one"}), a.sync({a.member_id: b"two", b.member_id: b"two"})
    )

    assert first.assignment == second.assignment == (await answer(waiting)).assignment


async def test_scenario_52_the_leaders_sync_races_a_join(world: World) -> None:
    a, b = await completing(world, "a", "b")
    waiting = await b.syncing()
    c = world.peer("c")
    await c.claim_id()

    results = await asyncio.gather(a.sync({b.member_id: b"for b"}), c.start_join(), return_exceptions=True)
    outcome = await asyncio.gather(waiting, return_exceptions=True)

    stored = not isinstance(results[0], BaseException)
    assert stored == (not isinstance(outcome[0], BaseException))
    assert stored or isinstance(outcome[0], RebalanceInProgress)
    assert await world.state() == ("PreparingRebalance", 1)


async def test_scenario_53_a_silent_leader_and_a_parked_follower(world: World) -> None:
    a, b = await completing(world, "a", "b")
    waiting = await b.syncing()

    await world.advance(10_000)

    await refused(waiting, RebalanceInProgress)
    assert await world.members() == {b.member_id}
    assert a.member_id not in await world.members()


async def test_scenario_54_a_client_gives_up_its_parked_sync(world: World) -> None:
    a, b = await world.stable("a", "b", rebalance_timeout_ms=300_000)
    rejoins = [await a.start_join(), await b.start_join()]
    await asyncio.gather(*rejoins)
    waiting = await b.syncing()
    await world.advance(30_000, beating=[a])
    waiting.cancel()

    assert (await b.join()).generation == 2
    again = await b.syncing()
    await a.sync({b.member_id: b"for b"})

    assert (await answer(again)).assignment == b"for b"
