"""Scenarios 1-31 of the specification: joining, the initial delay, the join phase."""

from __future__ import annotations

import asyncio

from tests.support.groups import World, answer, refused
from tidegate.errors import (
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    MemberIdRequired,
    UnknownMemberId,
)

NONE, ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS = 0, 22, 25, 27


async def test_scenario_1_a_new_member_is_given_an_id(world: World) -> None:
    a = world.peer("client")

    member_id = await refused(a.ask_join(), MemberIdRequired)

    assert member_id.startswith("client-")
    assert len(member_id) == len("client-") + 36
    assert await world.state() == ("Empty", 0)
    assert await world.store.command("HGET", world.keys.shard_keys.groups, world.keys.ref) == b"classic Empty "


async def test_scenario_2_the_first_join_is_answered_after_the_initial_delay(world: World) -> None:
    a = world.peer("a")
    join = await a.start_join()

    await world.advance(2_999)
    assert not join.done()
    await world.advance(1)
    joined = await answer(join)

    assert (joined.generation, joined.leader, joined.protocol, joined.protocol_type) == (
        1,
        a.member_id,
        "range",
        "consumer",
    )
    assert [(member.member_id, member.metadata) for member in joined.members] == [(a.member_id, b"metadata")]
    assert not joined.skip_assignment


async def test_scenario_3_old_versions_park_at_once(world: World) -> None:
    a = world.peer("a", version=3)
    join = await a.parked(a.ask_join())
    assert not join.done()

    await world.advance(3_000)

    assert (await answer(join)).generation == 1


async def test_scenario_4_static_members_park_at_once(world: World) -> None:
    a = world.peer("a", instance_id="s1")
    join = await a.parked(a.ask_join())
    assert not join.done()

    await world.advance(3_000)

    joined = await answer(join)
    assert joined.member_id.startswith("s1-")
    assert joined.members[0].instance_id == "s1"


async def test_scenario_5_an_unknown_id_makes_no_group(world: World) -> None:
    a = world.peer("a", member_id="x")

    assert await refused(a.ask_join(), UnknownMemberId) == "x"
    assert await world.store.command("EXISTS", world.keys.group) == 0


async def test_scenario_6_a_pending_id_lapses(world: World) -> None:
    a = world.peer("a")
    await a.claim_id()

    await world.advance(10_000)

    assert await refused(a.ask_join(), UnknownMemberId) == a.member_id


async def test_scenario_7_a_pending_id_is_no_member(world: World) -> None:
    a = world.peer("a")
    await a.claim_id()

    assert await a.heartbeat(generation=0) == UNKNOWN_MEMBER_ID
    await refused(a.sync(generation=0), UnknownMemberId)


async def test_scenario_8_session_timeouts_have_bounds(world: World) -> None:
    a = world.peer("a", member_id="x")

    for session_timeout_ms in (5_999, 1_800_001):
        assert await refused(a.ask_join(session_timeout_ms=session_timeout_ms), InvalidSessionTimeout) == "x"
    for session_timeout_ms in (6_000, 1_800_000):
        await refused(a.ask_join(member_id="", session_timeout_ms=session_timeout_ms), MemberIdRequired)


async def test_scenario_9_a_join_needs_a_type_and_protocols(world: World) -> None:
    a = world.peer("a")

    assert await refused(a.ask_join(protocol_type=""), InconsistentGroupProtocol) == ""
    assert await refused(a.ask_join(protocols=()), InconsistentGroupProtocol) == ""
    assert await world.store.command("EXISTS", world.keys.group) == 0


async def test_scenario_10_one_type_a_group(world: World) -> None:
    [a] = await world.stable("a")
    b = world.peer("b", protocol_type="connect")

    await refused(b.ask_join(), InconsistentGroupProtocol)
    assert await a.heartbeat() == NONE

    assert await a.leave() == NONE
    join = await b.start_join()
    await world.advance(3_000)
    assert (await answer(join)).protocol_type == "connect"


async def test_scenario_11_no_protocol_that_all_support(world: World) -> None:
    [a] = await world.stable("a")

    assert await refused(a.ask_join(protocols=(("roundrobin", b""),)), InconsistentGroupProtocol) == a.member_id
    assert await world.state() == ("Stable", 1)


async def test_scenario_12_a_phase_waits_for_the_rebalance_timeout(world: World) -> None:
    a, b = await world.stable("a", "b", rebalance_timeout_ms=10_000, session_timeout_ms=20_000)
    c = world.peer("c", rebalance_timeout_ms=10_000)
    join = await c.start_join()
    rejoin = await a.start_join()

    await world.advance(9_999, beating=[b])
    assert not join.done()
    await world.advance(1)

    assert (await answer(join)).generation == (await answer(rejoin)).generation == 2
    assert await b.heartbeat() == UNKNOWN_MEMBER_ID


async def test_scenario_14_a_second_member_extends_the_initial_delay(world: World) -> None:
    a, b = world.peer("a"), world.peer("b")
    first = await a.start_join()
    await world.advance(1_000)
    second = await b.start_join()

    await world.advance(4_999)
    assert not first.done() and not second.done()
    await world.advance(1)

    assert (await answer(first)).leader == (await answer(second)).leader == a.member_id
    assert a.generation == b.generation == 1


async def test_scenario_15_the_initial_delay_never_passes_the_rebalance_timeout(world: World) -> None:
    peers = [world.peer("a", rebalance_timeout_ms=10_000, session_timeout_ms=30_000)]
    joins = [await peers[0].start_join()]
    for pause in (1_000, 3_000, 3_000, 2_500):
        await world.advance(pause)
        peers.append(world.peer("x"))
        joins.append(await peers[-1].start_join())

    await world.advance(499)
    assert not any(join.done() for join in joins)
    await world.advance(1)

    assert {(await answer(join)).generation for join in joins} == {1}


async def test_scenario_16_a_short_rebalance_timeout_means_one_delay(world: World) -> None:
    a, b = world.peer("a", rebalance_timeout_ms=2_000), world.peer("b")
    first = await a.start_join()
    await world.advance(1_000)
    second = await b.start_join()

    await world.advance(2_000)

    assert (await answer(first)).generation == (await answer(second)).generation == 1


async def test_scenario_16_a_join_sent_again_extends_nothing(world: World) -> None:
    a = world.peer("a")
    first = await a.start_join()
    await world.advance(2_000)
    again = await a.parked(a.ask_join())

    await world.advance(1_000)

    assert await answer(first) == await answer(again)


async def test_scenario_17_leaving_during_the_initial_delay(world: World) -> None:
    a, b = world.peer("a"), world.peer("b")
    first = await a.start_join()
    await world.advance(500)
    second = await b.start_join()
    await world.advance(500)

    assert await a.leave() == NONE
    assert await refused(first, UnknownMemberId) == ""

    await world.advance(4_999)
    assert not second.done()
    await world.advance(1)
    assert (await answer(second)).leader == b.member_id


async def test_scenario_18_everyone_left_during_the_initial_delay(world: World) -> None:
    a = world.peer("a")
    join = await a.start_join()
    await world.advance(1_000)
    await a.leave()
    await refused(join, UnknownMemberId)

    await world.advance(2_000)
    assert await world.state() == ("Empty", 1)

    b = world.peer("b")
    join = await b.start_join()
    await world.advance(3_000)
    assert (await answer(join)).generation == 2


async def test_scenario_19_no_delay_is_prompt(world: World) -> None:
    world.use(group_initial_rebalance_delay_ms=0)
    a = world.peer("a")

    assert (await asyncio.wait_for(a.join(), 30)).generation == 1


async def test_scenario_20_a_pending_id_does_not_prolong_the_initial_phase(world: World) -> None:
    a, p = world.peer("a"), world.peer("p")
    join = await a.start_join()
    await world.advance(1_000)
    await p.claim_id()
    await world.advance(2_000)
    assert (await answer(join)).generation == 1

    await world.advance(1_000)
    second = await p.start_join()
    assert await a.heartbeat() == REBALANCE_IN_PROGRESS
    assert (await a.join()).generation == 2
    assert (await answer(second)).generation == 2


async def test_scenario_21_a_third_member_joins(world: World) -> None:
    a, b = await world.stable("a", "b")
    c = world.peer("c")
    join = await c.start_join()

    assert await a.heartbeat() == await b.heartbeat() == REBALANCE_IN_PROGRESS
    rejoin = await a.start_join()
    joined = await b.join()

    assert joined.generation == 2 and joined.leader == a.member_id and not joined.members
    assert not (await answer(join)).members
    assert {member.member_id for member in (await answer(rejoin)).members} == {a.member_id, b.member_id, c.member_id}


async def test_scenario_22_a_missing_member_is_removed_at_the_deadline(world: World) -> None:
    a, b = await world.stable("a", "b")
    c = world.peer("c")
    join = await c.start_join()
    rejoin = await a.start_join()

    await world.advance(19_999, beating=[b])
    assert not join.done()
    await world.advance(1)

    assert (await answer(join)).generation == (await answer(rejoin)).generation == 2
    assert await b.heartbeat() == UNKNOWN_MEMBER_ID


async def test_scenario_23_a_silent_member_ends_the_phase_with_its_session(world: World) -> None:
    a, b = await world.stable("a", "b")
    c = world.peer("c")
    join = await c.start_join()
    rejoin = await a.start_join()

    await world.advance(10_000)

    assert (await answer(join)).generation == (await answer(rejoin)).generation == 2
    assert await world.members() == {a.member_id, c.member_id}
    assert b.member_id not in await world.members()


async def test_scenario_24_a_silent_leader_is_replaced(world: World) -> None:
    _, b = await world.stable("a", "b")
    c = world.peer("c")
    join = await c.start_join()
    rejoin = await b.start_join()

    await world.advance(10_000)

    joined, rejoined = await answer(join), await answer(rejoin)
    assert joined.leader == rejoined.leader == b.member_id
    assert not joined.members and len(rejoined.members) == 2


async def test_scenario_25_a_pending_id_prolongs_a_running_phase(world: World) -> None:
    [a] = await world.stable("a")
    b, p, q = world.peer("b"), world.peer("p"), world.peer("q")
    join = await b.start_join()
    await p.claim_id()
    rejoin = await a.start_join()
    assert not join.done() and not rejoin.done()
    third = await p.start_join()
    assert len((await answer(rejoin)).members) == 3
    await answer(join), await answer(third)

    join = await world.peer("d").start_join()
    await q.claim_id()
    rejoins = [await peer.start_join() for peer in (a, b, p)]
    assert not any(rejoin.done() for rejoin in rejoins)
    assert await q.leave() == NONE
    assert {(await answer(task)).generation for task in [join, *rejoins]} == {3}


async def test_scenario_26_a_later_joiner_moves_no_deadline(world: World) -> None:
    a, b = await world.stable("a", "b")
    join = await world.peer("c").start_join()
    await world.advance(5_000, beating=[a, b])
    late = await world.peer("d", rebalance_timeout_ms=60_000).start_join()

    await world.advance(14_999, beating=[a, b])
    assert not join.done()
    await world.advance(1)

    assert (await answer(join)).generation == (await answer(late)).generation == 2


async def test_scenario_27_a_join_sent_again_elsewhere_counts_once(world: World) -> None:
    a, b = await world.stable("a", "b")
    join = await world.peer("c").start_join()
    first = await b.start_join()
    first.cancel()
    b.broker = world.brokers[0]
    second = await b.start_join()
    assert not second.done()

    assert (await a.join()).generation == 2
    assert (await answer(second)).generation == (await answer(join)).generation == 2
    assert len(await world.members()) == 3


async def test_scenario_28_a_first_join_is_parked_for_five_minutes_at_most(world: World) -> None:
    [a] = await world.stable("a", rebalance_timeout_ms=600_000)
    c = world.peer("c")
    join = await c.start_join()

    await world.advance(299_000, beating=[a])
    assert not join.done()
    await world.advance(1_000, beating=[a])

    assert await refused(join, UnknownMemberId) == ""
    assert c.member_id not in await world.members()


async def test_scenario_29_the_last_joins_race(world: World) -> None:
    a, b = await world.stable("a", "b")
    join = await world.peer("c").start_join()

    joined = await asyncio.gather(a.join(), b.join())

    assert {one.generation for one in joined} == {2} == {(await answer(join)).generation}
    assert (await world.events()).count("barrier_joined") == 2


async def test_scenario_30_the_last_two_leave_at_once(world: World) -> None:
    a, b = await world.stable("a", "b")

    assert await asyncio.gather(a.leave(), b.leave()) == [NONE, NONE]

    assert await world.state() == ("Empty", 2)


async def test_scenario_31_the_last_member_leaves(world: World) -> None:
    [a] = await world.stable("a")

    await a.leave()

    assert await world.state() == ("Empty", 2)
    assert await world.field("protocol") == ""
    assert await world.field("protocol_type") == "consumer"


async def test_scenario_31_the_missing_member_leaves(world: World) -> None:
    a, b = await world.stable("a", "b")
    rejoin = await b.parked(b.ask_join(protocols=(("range", b"changed"),)))
    assert not rejoin.done()

    await a.leave()

    joined = await answer(rejoin)
    assert (joined.generation, joined.leader) == (2, b.member_id)
