"""Heartbeats answered from snapshots over real scripts, messages and connections of two brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tests.support.groups import ANSWER_S, Broker, Peer, World
from tidegate.groups.model import MemberRef

NONE, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, FENCED_INSTANCE_ID = 0, 25, 27, 82


@pytest.fixture
async def brokers(world: World) -> AsyncIterator[list[Broker]]:
    """Both brokers of the world, which answer from snapshots."""
    for broker in world.brokers:
        await broker.heartbeats.start()
    yield world.brokers
    for broker in world.brokers:
        await broker.heartbeats.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(ANSWER_S):
        while not condition():
            await asyncio.sleep(0.005)


async def heartbeat(peer: Peer) -> tuple[int, bool]:
    """The code of one heartbeat, and whether a snapshot gave it."""
    code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    member_ref = MemberRef(peer.member_id, peer.generation, peer.instance_id)
    snapshot = peer.broker.heartbeats.answer(peer.keys, member_ref, code.set_result)
    return await asyncio.wait_for(code, ANSWER_S), snapshot is not None


async def at_rest(peer: Peer) -> None:
    """Heartbeat until a snapshot answers."""
    async with asyncio.timeout(ANSWER_S):
        while await heartbeat(peer) != (NONE, True):
            await asyncio.sleep(0.01)


async def code_of_script(peer: Peer) -> int:
    """Heartbeat until the script answers, as after a message."""
    async with asyncio.timeout(ANSWER_S):
        while (answer := await heartbeat(peer))[1]:
            await asyncio.sleep(0.005)
    return answer[0]


async def test_change_at_another_broker_reaches_the_member(world: World, brokers: list[Broker]) -> None:
    one, two = await world.stable("one", "two")
    assert one.broker is not two.broker
    await at_rest(one)

    assert await two.leave() == NONE

    assert await code_of_script(one) == REBALANCE_IN_PROGRESS


async def test_static_member_replaced_at_another_broker_is_fenced(world: World, brokers: list[Broker]) -> None:
    (old,) = await world.stable("static", instance_id="static")
    await at_rest(old)
    new = world.peer("new", instance_id="static")
    assert new.broker is not old.broker

    await new.ask_join()

    assert await code_of_script(old) == FENCED_INSTANCE_ID


async def test_renewal_after_the_session_expired_restores_no_member(world: World, brokers: list[Broker]) -> None:
    (one,) = await world.stable("one")
    await at_rest(one)
    heartbeats = one.broker.heartbeats
    await until(lambda: not heartbeats.renewals.waiting)
    await heartbeat(one)

    await world.clock.advance(one.session_timeout_ms)  # before the renewal
    heartbeats.renewals.flush()

    assert await code_of_script(one) == UNKNOWN_MEMBER_ID
    assert await world.members() == set()


async def test_renewal_extends_the_session(world: World, brokers: list[Broker]) -> None:
    (one,) = await world.stable("one")
    await at_rest(one)
    await until(lambda: not one.broker.heartbeats.renewals.waiting)
    await world.clock.advance(5_000)

    assert await heartbeat(one) == (NONE, True)
    await one.broker.heartbeats.close()

    deadline = await world.store.command("ZSCORE", world.keys.sessions, one.member_id)
    assert int(deadline) == world.clock.now_ms + one.session_timeout_ms


@pytest.mark.parametrize("lane", ["push", "control"])
async def test_connection_to_redis_lost_the_script_answers_until_proven_again(
    world: World, brokers: list[Broker], lane: str
) -> None:
    (one,) = await world.stable("one")
    await at_rest(one)
    store = one.broker.store
    link = store.push if lane == "push" else store.metadata_node.control
    snapshots = one.broker.heartbeats.snapshots

    link.reconnect("cut by the test")
    assert snapshots._groups == {}
    assert snapshots.find(one.keys, MemberRef(one.member_id, one.generation)) is None
    await link.wait_up(ANSWER_S)

    await at_rest(one)
