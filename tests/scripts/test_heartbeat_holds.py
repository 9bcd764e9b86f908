"""Heartbeats whose answers are kept back, over real scripts and wake-ups: what ends a hold, and what it says then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.groups import ANSWER_S, Broker, Peer, World
from tidegate.groups.holds import Holder, Holds, Released, bears_holds
from tidegate.groups.model import Membership
from tidegate.telemetry.metrics import metrics

NONE, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, FENCED_INSTANCE_ID = 0, 25, 27, 82
HOLD_MS = 60_000
"""Longer than any test: a hold that ends in a test was ended by something."""


class Holding:
    """A member's connection: its holder, trusted with an interval of a hundred seconds, and the codes it was told."""

    def __init__(self, holds: Holds, peer: Peer) -> None:
        self.holder, self.peer, self.holds = Holder(holds), peer, holds
        self.codes: list[int] = []
        self.trust(100.0)

    def trust(self, interval_s: float) -> None:
        self.holder.keys, self.holder.membership = self.peer.keys, self.membership
        pace = self.holder.pace
        pace.session_s = 1_000.0
        for beat in range(6):
            pace.arrived(beat * interval_s)
            pace.answered(beat * interval_s + pace.hold_s())
        pace.interrupted()

    @property
    def membership(self) -> Membership:
        return Membership(self.peer.member_id, self.peer.generation, self.peer.instance_id)

    async def beat(self) -> None:
        """Send a heartbeat; returns when its script has run and its answer is given or kept back."""
        self.holder.beat(self.peer.keys, self.membership, self.codes.append)
        async with asyncio.timeout(ANSWER_S):
            while self.holder._asked:
                await asyncio.sleep(0.001)

    async def told(self, code: int, count: int = 1) -> None:
        async with asyncio.timeout(ANSWER_S):
            while len(self.codes) < count:
                await asyncio.sleep(0.001)
        assert self.codes[-1] == code


@pytest.fixture
async def holds(world: World) -> AsyncIterator[list[Holds]]:
    """The holds of both brokers."""

    def of(broker: Broker) -> Holds:
        settings = world.settings.model_copy(update={"group_heartbeat_hold_max_ms": HOLD_MS})
        return Holds(broker.store, settings, broker.heartbeats)

    opened = [of(broker) for broker in world.brokers]
    for each in opened:
        await each.start()
    yield opened
    for each in opened:
        await each.close()


async def holding(world: World, holds: list[Holds], *peers: Peer) -> list[Holding]:
    """Each peer's heartbeat, held at its own broker."""
    held = [Holding(holds[world.brokers.index(peer.broker)], peer) for peer in peers]
    for each in held:
        await each.beat()
        assert each.codes == []
    return held


def ended(reason: Released) -> int:
    return metrics.hold(reason.value).count


async def test_a_joining_member_ends_every_hold_at_every_broker(world: World, holds: list[Holds]) -> None:
    peers = await world.stable("a", "b", "c")
    held, before = await holding(world, holds, *peers), ended(Released.REBALANCE)
    await world.peer("d").entering()
    for each in held:
        await each.told(REBALANCE_IN_PROGRESS)
    assert [each.held for each in holds] == [0, 0]
    assert ended(Released.REBALANCE) == before + 3


async def test_a_leaving_member_ends_holds_and_its_own_says_unknown(world: World, holds: list[Holds]) -> None:
    a, b = await world.stable("a", "b")
    of_a, of_b = await holding(world, holds, a, b)
    await b.leave()
    await of_a.told(REBALANCE_IN_PROGRESS)
    await of_b.told(UNKNOWN_MEMBER_ID)


async def test_an_expired_member_ends_the_holds_of_the_others(world: World, holds: list[Holds]) -> None:
    a, _ = await world.stable("a", "b")
    await world.advance(6_000, beating=[a])
    (of_a,) = await holding(world, holds, a)
    await world.advance(5_000)
    await of_a.told(REBALANCE_IN_PROGRESS)
    assert await world.members() == {a.member_id}


async def test_the_session_runs_from_the_heartbeat_not_from_its_answer(world: World, holds: list[Holds]) -> None:
    (a,) = await world.stable("a")
    await world.advance(9_000)
    (of_a,) = await holding(world, holds, a)
    await world.advance(9_999)
    assert await world.members() == {a.member_id}
    of_a.holder.release(Released.REQUEST)
    await of_a.told(NONE)
    await world.advance(1)
    assert await world.members() == set()


async def test_a_static_restart_tells_the_id_that_was_fenced(world: World, holds: list[Holds]) -> None:
    a, old = await world.stable_of(world.peer("a"), world.peer("b", instance_id="i"))
    of_a, of_old = await holding(world, holds, a, old)
    await world.peer("b2", instance_id="i").join()
    await of_old.told(FENCED_INSTANCE_ID)
    assert of_a.codes == []


async def test_what_changes_nothing_leaves_holds_alone(world: World, holds: list[Holds]) -> None:
    a, b = await world.stable("a", "b")
    held = await holding(world, holds, a, b)
    await b.join()  # a follower that changed nothing is answered at once
    await b.heartbeat()
    await asyncio.sleep(0.05)
    assert [each.codes for each in held] == [[], []]


async def test_a_wake_up_between_the_script_and_its_answer_is_not_lost(world: World, holds: list[Holds]) -> None:
    (a,) = await world.stable("a")
    of_a = Holding(holds[0], a)
    of_a.holder.beat(a.keys, of_a.membership, of_a.codes.append)
    of_a.holder.wake()
    await asyncio.sleep(0.05)
    assert of_a.codes == []
    assert of_a.holder._missed is False  # asked again, and NONE still


async def test_a_lost_subscription_has_every_held_heartbeat_asked_again(world: World, holds: list[Holds]) -> None:
    (a,) = await world.stable("a")
    (of_a,) = await holding(world, holds, a)
    world.store.wakeups.forget(a.keys.shard_keys.wake, holds[0]._on_wake)  # deaf
    await world.peer("b").entering()
    await asyncio.sleep(0.05)
    assert of_a.codes == []
    holds[0]._on_wake(None)
    await of_a.told(REBALANCE_IN_PROGRESS)


async def test_a_hold_ends_by_itself(world: World, holds: list[Holds]) -> None:
    (a,) = await world.stable("a")
    of_a, before = Holding(holds[0], a), ended(Released.ENDED)
    of_a.trust(0.5)
    started = asyncio.get_running_loop().time()
    await of_a.beat()
    await of_a.told(NONE)
    assert asyncio.get_running_loop().time() - started >= 0.3
    assert ended(Released.ENDED) == before + 1
    assert holds[0].held == 0


async def test_a_request_before_the_code_is_there_has_the_heartbeat_answered_with_it(
    world: World, holds: list[Holds]
) -> None:
    (a,) = await world.stable("a")
    of_a = Holding(holds[0], a)
    of_a.holder.beat(a.keys, of_a.membership, of_a.codes.append)
    of_a.holder.release(Released.REQUEST)
    await of_a.told(NONE)


async def test_two_heartbeats_at_a_time_are_both_answered(world: World, holds: list[Holds]) -> None:
    (a,) = await world.stable("a")
    of_a = Holding(holds[0], a)
    of_a.holder.beat(a.keys, of_a.membership, of_a.codes.append)
    of_a.holder.release(Released.REQUEST)  # as the connection does for each request
    of_a.holder.beat(a.keys, of_a.membership, of_a.codes.append)
    await of_a.told(NONE, count=2)


async def test_a_member_that_closed_its_connection_during_a_hold_is_not_held_again(
    world: World, holds: list[Holds]
) -> None:
    (a,) = await world.stable("a")
    (of_a,) = await holding(world, holds, a)
    of_a.holder.release(Released.CLOSED)
    again, other = Holder(holds[0]), Holder(holds[0])
    for holder, member_id in ((again, a.member_id), (other, "new")):
        holder.beat(a.keys, Membership(member_id, a.generation), of_a.codes.append)
    await of_a.told(UNKNOWN_MEMBER_ID, count=3)
    await world.store.command("PING")
    assert (again._known, again.pace.session_s) == (True, None)  # never read, so never held


async def test_closing_answers_what_is_held(world: World, holds: list[Holds]) -> None:
    a, b = await world.stable("a", "b")
    of_a, of_b = await holding(world, holds, a, b)
    holds[0].release_all()
    await of_a.told(NONE)
    assert of_b.codes == []


@pytest.mark.one_server
async def test_what_holds_want_is_read_once_and_only_plain_consumers_are_held(world: World, holds: list[Holds]) -> None:
    streams = (("stream", b""),)
    plain, static = await world.stable_of(world.peer("a"), world.peer("b", instance_id="i"))
    assert await _session_s(holds[0], plain) == 10.0
    assert await _session_s(holds[0], static) is None
    world.group_id = "streams"
    (stream,) = await world.stable("s", protocols=streams)
    assert await _session_s(holds[0], stream) is None
    world.group_id = "connect"
    (worker,) = await world.stable("w", protocol_type="connect")
    assert await _session_s(holds[0], worker) is None


async def _session_s(holds: Holds, peer: Peer) -> float | None:
    holder = Holder(holds)
    holder.keys, holder.membership = peer.keys, Membership(peer.member_id, peer.generation)
    holds.read(holder)
    await holds._store.command("PING")
    return holder.pace.session_s


@pytest.mark.parametrize(
    ("software", "client_id", "bears"),
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
def test_who_may_be_tried(software: str, client_id: str, bears: bool) -> None:
    assert bears_holds(software, client_id) is bears


async def test_a_member_that_rejoins_with_a_shorter_session_is_held_accordingly(
    world: World, holds: list[Holds]
) -> None:
    (a,) = await world.stable("a")
    (of_a,) = await holding(world, holds, a)
    of_a.holder.release(Released.REQUEST)
    of_a.holder.rejoins(101.5)
    assert of_a.holder.pace.hold_s() == pytest.approx(1.0)

    of_a.holder.pace.session_s = None  # static, of Streams, or not yet known: not held
    of_a.holder.rejoins(101.5)
    assert of_a.holder.pace.hold_s() == 0
