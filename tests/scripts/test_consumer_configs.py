"""Scenarios 38 and 39 of the specification's consumer groups: the times of a group by its configs."""

from __future__ import annotations

from tests.support.consumers import NO_NEWS, SESSION_MS, ConsumerWorld
from tidegate.groups import configs
from tidegate.groups.configs import ASSIGNMENT_INTERVAL, HEARTBEAT_INTERVAL, SESSION_TIMEOUT
from tidegate.groups.consumer.model import HeartbeatAnswer, HeartbeatRequest
from tidegate.groups.expiry import grant_session_grace


async def configure(consumers: ConsumerWorld, **values: int) -> None:
    """Set the group's session, interval and assignment_interval."""
    names = {"session": SESSION_TIMEOUT, "interval": HEARTBEAT_INTERVAL, "assignment_interval": ASSIGNMENT_INTERVAL}
    stored = {names[name]: str(value) for name, value in values.items()}
    await configs.alter(consumers.store, consumers.keys, stored, [])


async def interval_of(consumers: ConsumerWorld, member_id: str, epoch: int) -> int:
    """The interval that a heartbeat is answered with."""
    answer = await consumers.ask(HeartbeatRequest(member_id, epoch))
    assert isinstance(answer, HeartbeatAnswer), answer
    return answer.heartbeat_interval_ms


async def test_scenario_38_a_shorter_session(consumers: ConsumerWorld) -> None:
    a, b = await consumers.joined(consumers.peer("a", "t4"), consumers.peer("b", "t4"))
    await configure(consumers, session=2_000, interval=500)

    await consumers.advance(4_000, [b])  # a member heartbeats as it was asked to, every 5 s
    assert {*(await consumers.group()).members} == {a.member_id, b.member_id}
    await a.heartbeat()
    await consumers.advance(2_900, [b])
    assert {*(await consumers.group()).members} == {a.member_id, b.member_id}

    await consumers.advance(200, [b])
    assert {*(await consumers.group()).members} == {b.member_id}


async def test_shorter_session_leaves_the_grace_after_a_silent_broker(consumers: ConsumerWorld) -> None:
    a, b = await consumers.joined(consumers.peer("a", "t4"), consumers.peer("b", "t4"))
    await grant_session_grace(consumers.store, consumers.keys.shard_keys.shard)
    await configure(consumers, session=6_000)

    await consumers.advance(2 * SESSION_MS - 1_000, [a])
    assert set((await consumers.group()).members) == {a.member_id, b.member_id}
    await consumers.advance(2_000, [a])
    assert set((await consumers.group()).members) == {a.member_id}


async def test_longer_session(consumers: ConsumerWorld) -> None:
    a, b = await consumers.joined(consumers.peer("a", "t4"), consumers.peer("b", "t4"))
    await configure(consumers, session=60_000)

    await a.heartbeat()
    await consumers.advance(44_000, [])
    assert {*(await consumers.group()).members} == {a.member_id, b.member_id}
    await consumers.advance(2_000, [])
    assert {*(await consumers.group()).members} == {a.member_id}


async def test_new_member_has_the_sessions_of_the_configs(consumers: ConsumerWorld) -> None:
    await configure(consumers, session=2_000, interval=500)
    _, b = await consumers.joined(consumers.peer("a", "t4"), consumers.peer("b", "t4"))

    await consumers.advance(1_900, [b])
    assert len((await consumers.group()).members) == 2
    await consumers.advance(200, [b])
    assert {*(await consumers.group()).members} == {b.member_id}
    assert await interval_of(consumers, b.member_id, b.epoch) == 500


async def test_scenario_39_the_interval_at_the_next_heartbeat(consumers: ConsumerWorld) -> None:
    (a,) = await consumers.joined(consumers.peer("a", "t4"))
    assert await interval_of(consumers, a.member_id, a.epoch) == 5_000

    await configure(consumers, interval=700)
    assert await interval_of(consumers, a.member_id, a.epoch) == 700

    await configs.alter(consumers.store, consumers.keys, {}, [HEARTBEAT_INTERVAL])
    assert await interval_of(consumers, a.member_id, a.epoch) == 5_000


async def test_changed_config_is_not_lost_by_a_decision_under_way(consumers: ConsumerWorld) -> None:
    (a,) = await consumers.joined(consumers.peer("a", "t4"))  # each broker has the group cached
    await configure(consumers, session=60_000, interval=700)

    for name in ("b", "c", "d"):
        await consumers.peer(name, "t4").join()

    group = await consumers.group()
    assert (group.session_timeout_ms, group.heartbeat_interval_ms) == (60_000, 700)
    assert await interval_of(consumers, a.member_id, group.members[a.member_id].epoch) == 700


async def test_assignment_interval_delays_the_next_target(consumers: ConsumerWorld) -> None:
    await configure(consumers, assignment_interval=10_000)
    a, b, c = (consumers.peer(name, "t4") for name in "abc")

    assert await a.join() == (2, "t4:0,1,2,3")  # the first target is computed at once
    assert await b.join() == (2, "")
    assert await c.join() == (2, "")
    assert await consumers.state() == ("Assigning", 4, 2)
    assert await a.own() == (2, NO_NEWS)

    await consumers.advance(10_000)
    assert await a.own() == (2, "t4:0,1")
    assert await consumers.state() == ("Reconciling", 4, 4)
    await consumers.reconcile(a, b, c)
