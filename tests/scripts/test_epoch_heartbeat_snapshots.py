"""Heartbeats of KIP-848 and share groups answered from snapshots, over real scripts and messages of two brokers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.clock import SteppedClock
from tests.support.consumers import SESSION_MS, ConsumerWorld, Peer
from tests.support.groups import ANSWER_S
from tests.support.shares import ShareWorld
from tidegate.groups import configs
from tidegate.groups.consumer.heartbeats import ConsumerHeartbeats
from tidegate.groups.consumer.model import HeartbeatRequest
from tidegate.groups.model import MemberRef
from tidegate.settings import Settings
from tidegate.store.outcome import Faulty


@pytest.fixture
async def world(settings: Settings, clock: SteppedClock) -> AsyncIterator[ConsumerWorld]:
    """Three brokers that answer from snapshots."""
    opened = ConsumerWorld(settings, clock)
    await opened.start()
    for broker in opened.brokers:
        await broker.consumers.plain.snapshots.start()
    yield opened
    for broker in opened.brokers:
        broker.consumers.plain.snapshots.close()
    await opened.close()


async def heartbeat(peer: Peer, broker: int = 0, **fields: Any) -> tuple[Any, bool]:
    """The answer of one plain heartbeat at a broker, and whether a snapshot gave it."""
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    asked = HeartbeatRequest(peer.member_id, peer.epoch, peer.instance_id, client_id=peer.name, client_host="/h")
    consumers: ConsumerHeartbeats = peer.world.brokers[broker].consumers
    snapshot = consumers.answer(peer.world.keys, asked, answered.set_result)
    return await asyncio.wait_for(answered, ANSWER_S), snapshot is not None


async def from_snapshot(peer: Peer, broker: int = 0) -> None:
    """Heartbeat until a snapshot answers."""
    async with asyncio.timeout(ANSWER_S):
        while not (await heartbeat(peer, broker))[1]:
            await asyncio.sleep(0.01)


async def decided(peer: Peer, broker: int = 0) -> Any:
    """Heartbeat until no snapshot answers, as after a message."""
    async with asyncio.timeout(ANSWER_S):
        while (answer := await heartbeat(peer, broker))[1]:
            await asyncio.sleep(0.005)
    return answer[0]


async def test_member_that_joins_at_another_broker_ends_the_snapshot(world: ConsumerWorld) -> None:
    (a,) = await world.joined(world.peer("a", "t4"))
    await from_snapshot(a)

    await world.peer("b", "t4").join()

    answer = await decided(a)
    assert (answer.member_epoch, world.topics.text(answer.assignment)) == (a.epoch, "t4:0,1")


async def test_static_leave_during_a_rebalance_ends_the_snapshot(world: ConsumerWorld) -> None:
    a, _ = await world.joined(world.peer("a", "t4", instance_id="i"), world.peer("b", "t4"))
    await world.peer("c", "t4").join()
    await a.own()  # is asked to revoke or has its target already; the group is not stable
    await a.own()
    assert (await world.state())[0] == "Reconciling"
    await from_snapshot(a)

    assert await a.leave(-2) == (-2, None)
    a.epoch = (await world.group()).epoch

    assert (await decided(a)).code.name == "fenced_member_epoch"


async def test_new_topic_partitions_end_the_snapshot(world: ConsumerWorld) -> None:
    (a,) = await world.joined(world.peer("a", "t1"))
    await from_snapshot(a)

    world.topics.put("t1", 2)

    answer, is_repeated = await heartbeat(a)
    assert not is_repeated
    assert world.topics.text(answer.assignment) == "t1:0,1"


async def test_changed_config_ends_the_snapshot(world: ConsumerWorld) -> None:
    (a,) = await world.joined(world.peer("a", "t1"))
    await from_snapshot(a)
    assert (await heartbeat(a))[0].heartbeat_interval_ms == 5_000

    await configs.alter(world.brokers[1].store, world.keys, {"consumer.heartbeat.interval.ms": "700"}, [])

    assert (await decided(a)).heartbeat_interval_ms == 700


async def test_renewal_extends_the_session(world: ConsumerWorld) -> None:
    (a,) = await world.joined(world.peer("a", "t1"))
    await from_snapshot(a)
    world.brokers[0].consumers.plain.renewals.flush()
    await world.clock.advance(5_000)

    assert (await heartbeat(a))[1]
    world.brokers[0].consumers.plain.renewals.flush()

    await world.store.command("PING")
    deadline = await world.store.command("ZSCORE", world.keys.consumer_sessions, a.member_id)
    assert int(deadline) == world.clock.now_ms + SESSION_MS


async def test_renewal_in_a_group_that_is_no_longer_at_rest_extends_the_session(world: ConsumerWorld) -> None:
    (a,) = await world.joined(world.peer("a", "t4"))
    await from_snapshot(a)
    heartbeats = world.brokers[0].consumers.plain
    heartbeats.renewals.flush()
    await world.clock.advance(5_000)
    assert (await heartbeat(a))[1]

    await world.peer("b", "t4").join()
    heartbeats.renewals.flush()

    await world.store.command("PING")
    deadline = await world.store.command("ZSCORE", world.keys.consumer_sessions, a.member_id)
    assert int(deadline) == world.clock.now_ms + SESSION_MS
    assert world.topics.text((await decided(a)).assignment) == "t4:0,1"  # the renewal took no news from the member


async def test_renewal_after_the_session_ended_restores_no_member(world: ConsumerWorld) -> None:
    (a,) = await world.joined(world.peer("a", "t1"))
    await from_snapshot(a)
    world.brokers[0].consumers.plain.renewals.flush()
    assert (await heartbeat(a))[1]

    await world.clock.advance(SESSION_MS)  # before the renewal
    world.brokers[0].consumers.plain.renewals.flush()

    assert (await decided(a)).code.name == "unknown_member_id"


async def test_short_session_is_confirmed_by_the_script(world: ConsumerWorld) -> None:
    await configs.alter(
        world.store, world.keys, {"consumer.session.timeout.ms": "1000", "consumer.heartbeat.interval.ms": "100"}, []
    )
    (a,) = await world.joined(world.peer("a", "t1"))
    await from_snapshot(a)

    (group,) = world.brokers[0].consumers.plain.snapshots._groups.values()
    assert group.confirmed_for_s == pytest.approx(2 / 3)


async def test_share_member_is_answered_from_a_snapshot_until_its_target_changes(shares: ShareWorld) -> None:
    snapshots = shares.brokers[0].context.consumers.plain.snapshots
    await snapshots.start()
    a, b = shares.member("a", "t4"), shares.member("b", "t4", broker=1)
    await shares.joined(a)

    async def answered() -> tuple[Any, bool]:
        a.connection.client.repeat = None
        return await a.heartbeat(), a.connection.client.repeat is not None

    async with asyncio.timeout(ANSWER_S):
        while not (found := await answered())[1]:
            await asyncio.sleep(0.01)
    assert found == ((2, None), True)

    await b.join()

    async with asyncio.timeout(ANSWER_S):
        while (found := await answered())[1]:
            await asyncio.sleep(0.005)
    assert found[0] == (3, {"t4": [0, 1]})
    snapshots.close()


async def test_share_session_of_the_configs_is_that_of_renewals(shares: ShareWorld) -> None:
    a, store = shares.member("a"), shares.brokers[0].store
    await configs.alter(store, shares.keys, {"share.session.timeout.ms": "9000"}, [])
    await shares.joined(a)
    assert await store.command("ZSCORE", shares.keys.consumer_sessions, "member-a") == shares.clock.now_ms + 9_000

    await configs.alter(store, shares.keys, {"share.session.timeout.ms": "60000"}, [])
    assert await a.heartbeat() == (2, None)

    assert await store.command("ZSCORE", shares.keys.consumer_sessions, "member-a") == shares.clock.now_ms + 60_000


async def test_group_with_a_key_of_another_type_fails_alone(world: ConsumerWorld) -> None:
    (a,) = await world.joined(world.peer("a", "t1"))
    heartbeats = world.brokers[0].consumers.plain
    every = (world.store.group_keys("default", f"foreign{number}") for number in itertools.count())
    foreign = next(keys for keys in every if keys.shard_keys.shard == world.keys.shard_keys.shard)
    await world.store.command("SET", foreign.consumers, "somebody else's")

    for _ in range(2):  # together, then with the faulty group left out
        answers: dict[str, asyncio.Future[Any]] = {
            name: asyncio.get_running_loop().create_future() for name in ("foreign", "a")
        }
        heartbeats.snapshots.discard_all()
        heartbeats.answer(foreign, MemberRef("m", 1, None), answers["foreign"].set_result)
        heartbeats.answer(world.keys, MemberRef(a.member_id, a.epoch, None), answers["a"].set_result)
        async with asyncio.timeout(ANSWER_S):
            assert isinstance(await answers["foreign"], Faulty)
            assert await answers["a"] == 0  # the broker's interval
