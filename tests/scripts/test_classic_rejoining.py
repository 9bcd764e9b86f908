"""Scenarios 32-42 of the specification: joining again, and which protocol is chosen."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.groups import Peer, World, answer, refused
from tidegate.errors import InconsistentGroupProtocol, RebalanceInProgress

NONE, REBALANCE_IN_PROGRESS = 0, 27


async def completing(world: World, *names: str) -> list[Peer]:
    """Completing{first*, ...}@1: joined and not synced."""
    peers = [world.peer(name) for name in names]
    joins = [await peer.start_join() for peer in peers]
    await world.advance(6_000)
    await asyncio.gather(*(answer(join) for join in joins))
    return peers


def protocols(*names: str) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, b"metadata of " + name.encode()) for name in names)


async def test_scenario_32_a_follower_joins_again_while_completing(world: World) -> None:
    a, b = await completing(world, "a", "b")

    joined = await b.join()

    assert (joined.generation, joined.leader, joined.members) == (1, a.member_id, ())
    assert await world.state() == ("CompletingRebalance", 1)


async def test_scenario_33_the_leader_joins_again_while_completing(world: World) -> None:
    a, b = await completing(world, "a", "b")

    joined = await a.join()

    assert joined.generation == 1
    assert {member.member_id for member in joined.members} == {a.member_id, b.member_id}
    assert await world.state() == ("CompletingRebalance", 1)


async def test_scenario_34_joining_again_leaves_a_parked_sync_alone(world: World) -> None:
    a, b = await completing(world, "a", "b")
    first = await b.syncing()
    b.broker = world.brokers[0]

    await b.join()
    second = await b.syncing()
    await a.sync({b.member_id: b"for b"})

    assert (await answer(first)).assignment == (await answer(second)).assignment == b"for b"


async def test_scenario_35_changed_metadata_while_completing(world: World) -> None:
    a, b, c = await completing(world, "a", "b", "c")
    parked = await c.syncing()
    b.protocols = (("range", b"changed"),)

    rejoin = await b.start_join()

    await refused(parked, RebalanceInProgress)
    await refused(a.sync({}), RebalanceInProgress)
    again = await a.start_join()
    assert (await c.join()).generation == 2
    assert (await answer(rejoin)).generation == (await answer(again)).generation == 2


async def test_scenario_36_a_follower_joins_again_when_stable(world: World) -> None:
    _, b = await world.stable("a", "b")
    before = await b.sync()

    joined = await b.join()

    assert (joined.generation, joined.members) == (1, ())
    assert await b.sync() == before
    assert before.assignment == f"{b.member_id}@1".encode()


@pytest.mark.parametrize("offered", [(("x", b"changed"), ("y", b"")), (("y", b""), ("x", b""))])
async def test_scenario_37_a_changed_subscription_rebalances(
    world: World, offered: tuple[tuple[str, bytes], ...]
) -> None:
    a, b = await world.stable("a", "b", protocols=(("x", b""), ("y", b"")))
    b.protocols = offered

    rejoin = await b.start_join()

    assert not rejoin.done()
    assert await a.heartbeat() == REBALANCE_IN_PROGRESS


async def test_scenario_38_the_leader_joining_again_rebalances(world: World) -> None:
    a, b = await world.stable("a", "b")

    rejoin = await a.start_join()

    assert not rejoin.done()
    assert await b.heartbeat() == REBALANCE_IN_PROGRESS


async def test_scenario_39_an_immediate_answer_changes_no_timeout(world: World) -> None:
    a, b = await world.stable("a", "b")
    await world.advance(5_000, beating=[a])

    await b.ask_join(session_timeout_ms=60_000)

    await world.advance(4_999, beating=[a])
    assert b.member_id in await world.members()
    await world.advance(1)
    assert b.member_id not in await world.members()


@pytest.mark.parametrize(
    ("offers", "chosen"),
    [
        ((("a", "b", "c"), ("b", "c", "a"), ("b", "c")), "b"),
        ((("range", "rr"), ("rr", "range"), ("rr",)), "rr"),
        ((("x", "y"), ("y", "x")), "x"),
        ((("y", "x"), ("x", "y")), "y"),
        ((("x", "y"), ("y", "x"), ("y", "x")), "y"),
    ],
)
async def test_scenario_40_members_vote(world: World, offers: tuple[tuple[str, ...], ...], chosen: str) -> None:
    peers = [world.peer(f"p{i}", protocols=protocols(*names)) for i, names in enumerate(offers)]
    joins = [await peer.start_join() for peer in peers]
    await world.advance(6_000)

    joined = [await answer(join) for join in joins]

    assert {one.protocol for one in joined} == {chosen}
    assert {member.metadata for member in joined[0].members} == {b"metadata of " + chosen.encode()}


async def test_scenario_41_a_rolling_change_of_protocol(world: World) -> None:
    a, b = await world.stable("a", "b")
    for peer, offered, chosen in (
        (a, protocols("coop", "range"), "range"),
        (b, protocols("coop", "range"), "coop"),
        (a, protocols("coop"), "coop"),
    ):
        peer.protocols = offered
        other = b if peer is a else a
        rejoin = await peer.start_join()
        again = await other.start_join()
        assert (await answer(rejoin)).protocol == (await answer(again)).protocol == chosen
        await world.sync_all(a, b)


async def test_scenario_42_the_last_common_protocol_is_dropped(world: World) -> None:
    a, b = await world.stable("a", "b", protocols=(("x", b""), ("y", b"")))
    rejoin = await a.parked(a.ask_join(protocols=(("x", b""),)))

    assert await refused(b.ask_join(protocols=(("y", b""),)), InconsistentGroupProtocol) == b.member_id
    assert not rejoin.done()
