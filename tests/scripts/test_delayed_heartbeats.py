"""Heartbeats whose answers are kept back, over real scripts and wake-ups: what ends a hold, and what it says then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.groups import ANSWER_S, Broker, Peer, World
from tidegate.groups.delayed_heartbeats import (
    DelayedHeartbeat,
    DelayedHeartbeats,
    Released,
    supports_delayed_heartbeats,
)
from tidegate.groups.model import MemberRef
from tidegate.telemetry.metrics import metrics

NONE, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, FENCED_INSTANCE_ID = 0, 25, 27, 82
HOLD_MS = 60_000
"""Longer than any test: a hold that ends in a test was ended by something."""


class Holding:
    """A member's connection: its heartbeats, trusted with an interval of a hundred seconds, and the codes it got."""

    def __init__(self, delayed_heartbeats: DelayedHeartbeats, peer: Peer) -> None:
        self.delayed_heartbeat, self.peer, self.delayed_heartbeats = (
            DelayedHeartbeat(delayed_heartbeats),
            peer,
            delayed_heartbeats,
        )
        self.codes: list[int] = []
        self.trust(100.0)

    def trust(self, interval_s: float) -> None:
        self.delayed_heartbeat.keys, self.delayed_heartbeat.member_ref = self.peer.keys, self.member_ref
        interval_estimator = self.delayed_heartbeat.interval_estimator
        interval_estimator.session_s = 1_000.0
        for heartbeat in range(6):
            interval_estimator.arrived(heartbeat * interval_s)
            interval_estimator.answered(heartbeat * interval_s + interval_estimator.delay_s())
        interval_estimator.interrupted()

    @property
    def member_ref(self) -> MemberRef:
        return MemberRef(self.peer.member_id, self.peer.generation, self.peer.instance_id)

    async def heartbeat(self) -> None:
        """Send a heartbeat; returns when its script has run and its answer is given or kept back."""
        self.delayed_heartbeat.heartbeat(self.peer.keys, self.member_ref, self.codes.append)
        async with asyncio.timeout(ANSWER_S):
            while self.delayed_heartbeat._asked:
                await asyncio.sleep(0.001)

    async def reported(self, code: int, count: int = 1) -> None:
        async with asyncio.timeout(ANSWER_S):
            while len(self.codes) < count:
                await asyncio.sleep(0.001)
        assert self.codes[-1] == code


@pytest.fixture
async def delayed_heartbeats(world: World) -> AsyncIterator[list[DelayedHeartbeats]]:
    """The holds of both brokers."""

    def of(broker: Broker) -> DelayedHeartbeats:
        settings = world.settings.model_copy(update={"heartbeat_delay_max_ms": HOLD_MS})
        return DelayedHeartbeats(broker.store, settings, broker.heartbeats)

    opened = [of(broker) for broker in world.brokers]
    for each in opened:
        await each.start()
    yield opened
    for each in opened:
        await each.close()


async def holding(world: World, delayed_heartbeats: list[DelayedHeartbeats], *peers: Peer) -> list[Holding]:
    """Each peer's heartbeat, held at its own broker."""
    held = [Holding(delayed_heartbeats[world.brokers.index(peer.broker)], peer) for peer in peers]
    for each in held:
        await each.heartbeat()
        assert each.codes == []
    return held


def ended(reason: Released) -> int:
    return metrics.hold(reason.value).count


async def test_joining_member_releases_delayed_heartbeats_at_every_broker(
    world: World, delayed_heartbeats: list[DelayedHeartbeats]
) -> None:
    peers = await world.stable("a", "b", "c")
    held, before = await holding(world, delayed_heartbeats, *peers), ended(Released.REBALANCE)
    await world.peer("d").start_join()
    for each in held:
        await each.reported(REBALANCE_IN_PROGRESS)
    assert [each.held for each in delayed_heartbeats] == [0, 0]
    assert ended(Released.REBALANCE) == before + 3


async def test_leaving_member_releases_the_others_and_its_own_is_unknown_member(
    world: World, delayed_heartbeats: list[DelayedHeartbeats]
) -> None:
    a, b = await world.stable("a", "b")
    of_a, of_b = await holding(world, delayed_heartbeats, a, b)
    await b.leave()
    await of_a.reported(REBALANCE_IN_PROGRESS)
    await of_b.reported(UNKNOWN_MEMBER_ID)


async def test_expired_member_releases_the_delayed_heartbeats_of_the_others(
    world: World, delayed_heartbeats: list[DelayedHeartbeats]
) -> None:
    a, _ = await world.stable("a", "b")
    await world.advance(6_000, beating=[a])
    (of_a,) = await holding(world, delayed_heartbeats, a)
    await world.advance(5_000)
    await of_a.reported(REBALANCE_IN_PROGRESS)
    assert await world.members() == {a.member_id}


async def test_session_runs_from_the_heartbeat_not_from_its_answer(
    world: World, delayed_heartbeats: list[DelayedHeartbeats]
) -> None:
    (a,) = await world.stable("a")
    await world.advance(9_000)
    (of_a,) = await holding(world, delayed_heartbeats, a)
    await world.advance(9_999)
    assert await world.members() == {a.member_id}
    of_a.delayed_heartbeat.release(Released.REQUEST)
    await of_a.reported(NONE)
    await world.advance(1)
    assert await world.members() == set()


async def test_static_restart_fences_the_delayed_heartbeat_of_the_old_id(
    world: World, delayed_heartbeats: list[DelayedHeartbeats]
) -> None:
    a, old = await world.stable_of(world.peer("a"), world.peer("b", instance_id="i"))
    of_a, of_old = await holding(world, delayed_heartbeats, a, old)
    await world.peer("b2", instance_id="i").join()
    await of_old.reported(FENCED_INSTANCE_ID)
    assert of_a.codes == []


async def test_requests_without_changes_release_no_delayed_heartbeat(
    world: World, delayed_heartbeats: list[DelayedHeartbeats]
) -> None:
    a, b = await world.stable("a", "b")
    held = await holding(world, delayed_heartbeats, a, b)
    await b.join()  # a follower that changed nothing is answered at once
    await b.heartbeat()
    await asyncio.sleep(0.05)
    assert [each.codes for each in held] == [[], []]


async def test_wake_up_between_the_script_and_its_answer_is_not_lost(
    world: World, delayed_heartbeats: list[DelayedHeartbeats]
) -> None:
    (a,) = await world.stable("a")
    of_a = Holding(delayed_heartbeats[0], a)
    of_a.delayed_heartbeat.heartbeat(a.keys, of_a.member_ref, of_a.codes.append)
    of_a.delayed_heartbeat.wake()
    await asyncio.sleep(0.05)
    assert of_a.codes == []
    assert of_a.delayed_heartbeat._missed is False  # asked again, and NONE still


async def test_lost_subscription_repeats_every_delayed_heartbeat(
    world: World, delayed_heartbeats: list[DelayedHeartbeats]
) -> None:
    (a,) = await world.stable("a")
    (of_a,) = await holding(world, delayed_heartbeats, a)
    world.store.pubsub.forget(a.keys.shard_keys.wake, delayed_heartbeats[0]._on_group_change)  # deaf
    await world.peer("b").start_join()
    await asyncio.sleep(0.05)
    assert of_a.codes == []
    delayed_heartbeats[0]._on_group_change(None)
    await of_a.reported(REBALANCE_IN_PROGRESS)


async def test_delayed_heartbeat_ends_at_its_deadline(
    world: World, delayed_heartbeats: list[DelayedHeartbeats]
) -> None:
    (a,) = await world.stable("a")
    of_a, before = Holding(delayed_heartbeats[0], a), ended(Released.ENDED)
    of_a.trust(0.5)
    started = asyncio.get_running_loop().time()
    await of_a.heartbeat()
    await of_a.reported(NONE)
    assert asyncio.get_running_loop().time() - started >= 0.3
    assert ended(Released.ENDED) == before + 1
    assert delayed_heartbeats[0].held == 0


async def test_request_before_the_code_is_there_has_the_heartbeat_answered_with_it(
    world: World, delayed_heartbeats: list[DelayedHeartbeats]
) -> None:
    (a,) = await world.stable("a")
    of_a = Holding(delayed_heartbeats[0], a)
    of_a.delayed_heartbeat.heartbeat(a.keys, of_a.member_ref, of_a.codes.append)
    of_a.delayed_heartbeat.release(Released.REQUEST)
    await of_a.reported(NONE)


async def test_two_heartbeats_at_a_time_are_both_answered(
    world: World, delayed_heartbeats: list[DelayedHeartbeats]
) -> None:
    (a,) = await world.stable("a")
    of_a = Holding(delayed_heartbeats[0], a)
    of_a.delayed_heartbeat.heartbeat(a.keys, of_a.member_ref, of_a.codes.append)
    of_a.delayed_heartbeat.release(Released.REQUEST)  # as the connection does for each request
    of_a.delayed_heartbeat.heartbeat(a.keys, of_a.member_ref, of_a.codes.append)
    await of_a.reported(NONE, count=2)


async def test_member_that_closed_during_a_delay_is_not_delayed_again(
    world: World, delayed_heartbeats: list[DelayedHeartbeats]
) -> None:
    (a,) = await world.stable("a")
    (of_a,) = await holding(world, delayed_heartbeats, a)
    of_a.delayed_heartbeat.release(Released.CLOSED)
    again, other = DelayedHeartbeat(delayed_heartbeats[0]), DelayedHeartbeat(delayed_heartbeats[0])
    for delayed_heartbeat, member_id in ((again, a.member_id), (other, "new")):
        delayed_heartbeat.heartbeat(a.keys, MemberRef(member_id, a.generation), of_a.codes.append)
    await of_a.reported(UNKNOWN_MEMBER_ID, count=3)
    await world.store.command("PING")
    assert (again._known, again.interval_estimator.session_s) == (True, None)  # never read, so never held


async def test_close_answers_delayed_heartbeats(world: World, delayed_heartbeats: list[DelayedHeartbeats]) -> None:
    a, b = await world.stable("a", "b")
    of_a, of_b = await holding(world, delayed_heartbeats, a, b)
    delayed_heartbeats[0].release_all()
    await of_a.reported(NONE)
    assert of_b.codes == []


@pytest.mark.one_server
async def test_delay_metadata_is_read_once_and_only_plain_consumers_are_delayed(
    world: World, delayed_heartbeats: list[DelayedHeartbeats]
) -> None:
    streams = (("stream", b""),)
    plain, static = await world.stable_of(world.peer("a"), world.peer("b", instance_id="i"))
    assert await _session_s(delayed_heartbeats[0], plain) == 10.0
    assert await _session_s(delayed_heartbeats[0], static) is None
    world.group_id = "streams"
    (stream,) = await world.stable("s", protocols=streams)
    assert await _session_s(delayed_heartbeats[0], stream) is None
    world.group_id = "connect"
    (worker,) = await world.stable("w", protocol_type="connect")
    assert await _session_s(delayed_heartbeats[0], worker) is None


async def _session_s(delayed_heartbeats: DelayedHeartbeats, peer: Peer) -> float | None:
    delayed_heartbeat = DelayedHeartbeat(delayed_heartbeats)
    delayed_heartbeat.keys, delayed_heartbeat.member_ref = peer.keys, MemberRef(peer.member_id, peer.generation)
    delayed_heartbeats.read(delayed_heartbeat)
    await delayed_heartbeats._store.command("PING")
    return delayed_heartbeat.interval_estimator.session_s


@pytest.mark.parametrize(
    ("software", "client_id", "supported"),
    [
        ("apache-kafka-java", "x", True),
        ("librdkafka", "rdkafka", True),
        ("confluent-kafka-python", "rdkafka", True),
        ("kafka-python", "x", True),
        ("unknown", "aiokafka-0.14.0", True),
        ("unknown", "orders", False),
        ("sarama", "sarama", False),
        ("sarama", "aiokafka-0.14.0", False),
        ("kafkajs", "kafkajs", False),
        ("kgo", "kgo", False),
    ],
)
def test_delay_trial_eligible_members(software: str, client_id: str, supported: bool) -> None:
    assert supports_delayed_heartbeats(software, client_id) is supported


async def test_rejoin_with_a_shorter_session_shortens_the_delay(
    world: World, delayed_heartbeats: list[DelayedHeartbeats]
) -> None:
    (a,) = await world.stable("a")
    (of_a,) = await holding(world, delayed_heartbeats, a)
    of_a.delayed_heartbeat.release(Released.REQUEST)
    of_a.delayed_heartbeat.rejoins(101.5)
    assert of_a.delayed_heartbeat.interval_estimator.delay_s() == pytest.approx(1.0)

    of_a.delayed_heartbeat.interval_estimator.session_s = None  # static, of Streams, or not yet known: not held
    of_a.delayed_heartbeat.rejoins(101.5)
    assert of_a.delayed_heartbeat.interval_estimator.delay_s() == 0
