"""Deploys without rebalances: what a member had that left waits for its successor (`tidegate.rollout.grace.ms`)."""

from __future__ import annotations

import pytest

from tests.support.consumers import NO_NEWS, SESSION_MS, ConsumerWorld, Peer
from tests.support.groups import SCENARIO_MODES
from tidegate.diagnosis.explain import explain
from tidegate.diagnosis.group_snapshot import MetadataDecoders, read_snapshot
from tidegate.errors import InvalidConfig
from tidegate.groups import configs
from tidegate.groups.configs import ROLLOUT_GRACE, SESSION_TIMEOUT

UNKNOWN = "UNKNOWN_MEMBER_ID"
GRACE_MS = 60_000
"""Longer than a session."""
every_mode = pytest.mark.parametrize("consumers", SCENARIO_MODES, indirect=True, ids=str)


def process(consumers: ConsumerWorld, name: str, client_id: str = "web", host: str = "/127.0.0.1") -> Peer:
    """A member to be, with the client id of its deployment."""
    return consumers.peer(name, "t4", client_id=client_id, client_host=host)


async def deployed(consumers: ConsumerWorld, *client_ids: str, grace_ms: int = GRACE_MS) -> list[Peer]:
    """Stable members of `t4`; members `0`, `1`, …"""
    await configs.alter(consumers.store, consumers.keys, {ROLLOUT_GRACE: str(grace_ms)}, [])
    members = [process(consumers, str(number), client_id) for number, client_id in enumerate(client_ids)]
    await consumers.joined(*members)
    return members


@every_mode
async def test_rollout_successor_gets_what_the_leaver_had(consumers: ConsumerWorld) -> None:
    a, b = await deployed(consumers, "web", "web")
    had, epoch = consumers.topics.text(a.assigned), a.epoch

    assert await a.leave() == (-1, NO_NEWS)
    assert await a.heartbeat(epoch=epoch) == await a.leave() == UNKNOWN
    await consumers.advance(GRACE_MS - 5_000, [b])
    assert await b.own() == (epoch, NO_NEWS)
    assert await process(consumers, "c").join() == (epoch, had)

    assert await consumers.state() == ("Stable", epoch, epoch)
    assert await b.own() == (epoch, NO_NEWS)


@every_mode
async def test_rollout_others_get_it_after_the_grace(consumers: ConsumerWorld) -> None:
    a, b = await deployed(consumers, "web", "web")
    epoch = a.epoch
    await a.leave()

    await consumers.advance(GRACE_MS - 1_000, [b])
    assert await b.own() == (epoch, NO_NEWS)
    await consumers.advance(1_100, [b])

    assert consumers.topics.text(b.assigned) == "t4:0,1,2,3"
    assert await consumers.state() == ("Stable", epoch + 1, epoch + 1)


@every_mode
async def test_rollout_grace_shorter_than_the_session(consumers: ConsumerWorld) -> None:
    a, b = await deployed(consumers, "web", "web", grace_ms=3_000)
    await a.leave()

    await consumers.advance(3_100, [b])

    assert consumers.topics.text(b.assigned) == "t4:0,1,2,3"


@every_mode
async def test_rollout_grace_outlasts_a_shorter_session_timeout(consumers: ConsumerWorld) -> None:
    a, b = await deployed(consumers, "web", "web")
    had, epoch = consumers.topics.text(a.assigned), a.epoch
    await a.leave()
    await configs.alter(consumers.store, consumers.keys, {SESSION_TIMEOUT: "6000"}, [])

    await consumers.advance(GRACE_MS - 1_000, [b])

    assert await process(consumers, "c").join() == (epoch, had)


@every_mode
async def test_rollout_another_client_id_is_no_successor(consumers: ConsumerWorld) -> None:
    a, b = await deployed(consumers, "web", "web")
    had = a.assigned
    await a.leave()
    other = process(consumers, "other", "batch")
    await other.join()
    for _ in range(4):
        await consumers.advance(5_000, [b, other])
        await b.own()
        await other.own()
        assert not had & (b.assigned | other.assigned)

    c = process(consumers, "c")
    await c.join()
    await consumers.reconcile(b, other, c)
    assert b.assigned | other.assigned | c.assigned == consumers.topics.parse("t4:0,1,2,3")


@every_mode
async def test_rollout_of_all_members(consumers: ConsumerWorld) -> None:
    members = await deployed(consumers, *["web"] * 4)
    before, epoch = {one.assigned for one in members}, members[0].epoch
    new: list[Peer] = []
    for number, old in enumerate(members):
        await old.leave()
        await consumers.advance(5_000, [*members[number + 1 :], *new])
        successor = process(consumers, f"new-{number}")
        assert await successor.join() == (epoch, consumers.topics.text(successor.assigned))
        new.append(successor)

    assert {one.assigned for one in new} == before
    assert await consumers.state() == ("Stable", epoch, epoch)


@every_mode
async def test_rollout_all_leave_at_once(consumers: ConsumerWorld) -> None:
    a, b = await deployed(consumers, "web", "web")
    had, epoch = {a.assigned, b.assigned}, a.epoch
    await a.leave()
    await b.leave()
    c, d = process(consumers, "c"), process(consumers, "d")
    await c.join()
    await d.join()
    assert {c.assigned, d.assigned} == had
    assert await consumers.state() == ("Stable", epoch, epoch)

    await c.leave()
    await d.leave()
    await consumers.advance(GRACE_MS + 100)
    assert (await consumers.state())[0] == "Empty"


@every_mode
async def test_rollout_successor_with_another_subscription(consumers: ConsumerWorld) -> None:
    a, b = await deployed(consumers, "web", "web")
    epoch = a.epoch
    await a.leave()
    c = process(consumers, "c")
    await c.join("t2", "t4")

    await consumers.reconcile(b, c)

    assert (await consumers.state())[1] == epoch + 1
    assert consumers.topics.parse("t2:0,1") <= c.assigned


@every_mode
async def test_rollout_successor_without_a_pattern_reads_its_own_topics_alone(consumers: ConsumerWorld) -> None:
    """A successor is another process: what it does not send is not what the one before it had."""
    a, b = await deployed(consumers, "web", "web")
    await a.heartbeat(regex="t[25]", rack_id="r1", assignor="range")
    await consumers.reconcile(a, b)
    await a.leave()
    c = process(consumers, "c")

    await c.join("t4")
    await consumers.reconcile(b, c)

    assert b.assigned | c.assigned == consumers.topics.parse("t4:0,1,2,3")
    member = (await consumers.group()).members[c.member_id]
    assert (member.regex, member.rack_id, member.assignor, member.topics) == ("", None, None, frozenset({"t4"}))


@every_mode
async def test_rollout_successor_with_a_pattern_reads_what_it_matches_alone(consumers: ConsumerWorld) -> None:
    a, b = await deployed(consumers, "web", "web")
    await a.leave()
    c = process(consumers, "c")

    await c.ask(0, rebalance_timeout_ms=60_000, regex="t2", owned=frozenset())
    await consumers.reconcile(b, c)

    assert consumers.topics.text(b.assigned) == "t4:0,1,2,3"
    assert consumers.topics.text(c.assigned) == "t2:0,1"


@every_mode
async def test_rollout_leaver_that_joins_again_is_its_own_successor(consumers: ConsumerWorld) -> None:
    a, b = await deployed(consumers, "web", "web")
    had, epoch = consumers.topics.text(a.assigned), a.epoch
    await a.leave()
    assert await a.join() == (epoch, had)

    await a.heartbeat(regex="t[25]")
    await consumers.reconcile(a, b)
    await a.leave()
    await a.join("t4")
    await consumers.reconcile(a, b)

    assert a.assigned | b.assigned == consumers.topics.parse("t4:0,1,2,3")


async def test_rollout_session_timeout_frees_partitions(consumers: ConsumerWorld) -> None:
    _, b = await deployed(consumers, "web", "web")

    await consumers.advance(SESSION_MS + 100, [b])

    assert consumers.topics.text(b.assigned) == "t4:0,1,2,3"


async def test_rollout_eviction_frees_partitions(consumers: ConsumerWorld) -> None:
    a, b = await deployed(consumers, "web", "web")
    await a.leave()

    assert await consumers.remove(a.member_id) == "NONE"
    await consumers.reconcile(b)

    assert consumers.topics.text(b.assigned) == "t4:0,1,2,3"


async def test_rollout_same_host_is_preferred(consumers: ConsumerWorld) -> None:
    a, b = await deployed(consumers, "web", "web")
    c = process(consumers, "2", host="/10.0.0.2")
    await c.join()
    await consumers.reconcile(a, b, c)
    had = consumers.topics.text(c.assigned)
    epoch = c.epoch
    for one in (a, b, c):
        await one.leave()

    assert await process(consumers, "d", host="/10.0.0.2").join() == (epoch, had)


async def test_rollout_explain_names_waiting_partitions(consumers: ConsumerWorld) -> None:
    a, _ = await deployed(consumers, "web", "web")
    await a.leave()
    decoders = MetadataDecoders(lambda _: None, lambda _: None)

    snapshot = await read_snapshot(consumers.store, consumers.keys, "1", decoders, consumers.clock.now_ms)
    found = {one.kind: one for one in explain(snapshot, [], [], frozenset({"t4"}))}

    (evidence,) = found["awaiting_successors"].evidence
    assert evidence.startswith(f"{a.member_id}: ") and "(in 1 min" in evidence
    assert "static_member_away" not in found


def test_rollout_time_below_zero_is_refused() -> None:
    with pytest.raises(InvalidConfig):
        configs.plan([(ROLLOUT_GRACE, False, "-1")])
