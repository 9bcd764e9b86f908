"""Classic groups over several brokers: one dies, a wake-up is lost, a request is repeated, nobody sweeps."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.scripts.test_classic_rejoining import completing
from tests.scripts.test_classic_together import run, run_joins, run_syncs
from tests.support.groups import World, answer, refused
from tests.support.steps import refresh_waits, renew_waits, sweep_expiry
from tidegate.errors import RebalanceInProgress, StoreUnavailable, UnknownMemberId
from tidegate.groups import classic
from tidegate.groups.classic import LEAVE_GROUP
from tidegate.groups.expiry import EXPIRE_GROUP, expire_group
from tidegate.groups.model import MemberRef, SyncRequest
from tidegate.groups.waiting import JOIN_GROUP

NONE, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS = 0, 25, 27


async def dump(world: World) -> dict[str, Any]:
    """All that is stored of the group."""
    keys = world.keys
    return {
        name: await world.store.command("HGETALL", getattr(keys, name))
        for name in ("group", "members", "subscriptions", "assignments", "protocols", "instances", "pending")
    }


# -- a broker dies


async def test_scenario_98_a_parked_join_survives_its_broker(world: World) -> None:
    a, b = await world.stable("a", "b")
    join = await world.peer("c").start_join()
    b.broker = world.brokers[1]
    parked = await b.start_join()
    parked.cancel()
    await asyncio.gather(parked, return_exceptions=True)
    b.broker = world.brokers[0]

    again = await b.start_join()
    assert not again.done()
    assert (await a.join()).generation == 2

    assert (await answer(again)).generation == 2 == (await answer(join)).generation


async def test_scenario_98_a_dead_broker_and_a_dead_client(world: World) -> None:
    a, b = await world.stable("a", "b", rebalance_timeout_ms=300_000)
    join = await world.peer("c").start_join()
    parked = await b.start_join()
    parked.cancel()
    await asyncio.gather(parked, return_exceptions=True)

    await world.advance(19_999, beating=[a])
    assert b.member_id in await world.members()
    await world.advance(1)
    assert b.member_id not in await world.members()
    assert (await a.join()).generation == 2 == (await answer(join)).generation


async def test_member_of_a_dead_broker_stays_while_it_heartbeats(world: World) -> None:
    a, b = await world.stable("a", "b", rebalance_timeout_ms=300_000)
    await world.peer("c").start_join()
    parked = await b.start_join()
    parked.cancel()
    await asyncio.gather(parked, return_exceptions=True)

    await world.advance(60_000, beating=[a, b])

    assert b.member_id in await world.members()


async def test_parked_sync_survives_its_broker(world: World) -> None:
    a, b = await completing(world, "a", "b")
    waiting = await b.syncing()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    await world.advance(10_000, beating=[a])
    assert b.member_id in await world.members()
    await a.sync({b.member_id: b"for b"})

    assert (await b.sync()).assignment == b"for b"


async def test_broker_that_was_paused_enters_its_parked_joins_again(world: World) -> None:
    a, b = await world.stable("a", "b", rebalance_timeout_ms=300_000)
    join = await world.peer("c").start_join()
    parked = await b.start_join()

    world.sweeping = False
    await world.advance(12_000, beating=[a])
    await expire_group(world.store, world.keys)
    assert "lease_lost" in await world.events()
    world.sweeping = True
    await world.observe()

    async with asyncio.timeout(30):
        while (await world.field("joined_count")) != "2":
            await asyncio.sleep(0.01)
    assert (await a.join()).generation == 2 == (await answer(parked)).generation == (await answer(join)).generation


async def test_scenario_98_every_retry_gets_the_same_generation(world: World) -> None:
    a, b = await completing(world, "a", "b")

    again = [await a.join(), await b.join(), await a.join(), await b.join()]

    assert {joined.generation for joined in again} == {1}
    assert {joined.leader for joined in again} == {a.member_id}


async def dies(*parked: asyncio.Task[Any]) -> None:
    """The broker that parked these requests is gone, and with it their answers."""
    for one in parked:
        one.cancel()
    await asyncio.gather(*parked, return_exceptions=True)


async def test_scenario_98_lost_notification_of_the_ended_phase(world: World) -> None:
    a, b = await world.stable("a", "b")
    c = world.peer("c")
    parked = [await c.start_join(), await b.start_join()]
    await dies(*parked)
    [answered], _ = await run_joins(world, a.request())
    assert answered[2] == b"parked"
    assert await world.state() == ("CompletingRebalance", 2)

    joined = [await peer.join() for peer in (b, c, a)]

    assert {(one.generation, one.leader) for one in joined} == {(2, a.member_id)}
    assert [len(one.members) for one in joined] == [0, 0, 3]
    assert (await world.events()).count("barrier_joined") == 2


async def test_scenario_98_lost_notification_of_the_stored_assignment(world: World) -> None:
    a, b = await completing(world, "a", "b")
    await dies(await b.syncing())
    plan = [(a.member_id, b"for a"), (b.member_id, b"for b")]
    request = SyncRequest(MemberRef(a.member_id, 1), "consumer", "range", plan)
    [answered], _ = await run_syncs(world, request)
    assert answered[1] == b"now"

    assert (await b.sync()).assignment == b"for b"
    assert (await a.sync({a.member_id: b"other", b.member_id: b"other"})).assignment == b"for a"
    assert await world.state() == ("Stable", 1)


async def test_lost_wake_up_costs_a_poll(world: World) -> None:
    a, b = await completing(world, "a", "b")
    b.broker = world.brokers[1]
    b.broker.waits._on_group_change = lambda payload: None  # type: ignore[method-assign]
    await b.broker.waits.close()
    await asyncio.sleep(0.05)
    waiting = await b.syncing()

    await a.sync({b.member_id: b"for b"})

    assert (await answer(waiting)).assignment == b"for b"


async def test_wake_up_between_entering_and_waiting_is_not_lost(world: World) -> None:
    a, b = await completing(world, "a", "b")
    for broker in world.brokers:
        broker.waits._poll_ms = 60_000

    replies = await asyncio.wait_for(asyncio.gather(b.sync(), a.sync({b.member_id: b"for b"})), 30)

    assert replies[0].assignment == b"for b"


async def test_waits_leave_nothing_behind(world: World) -> None:
    _, b = await completing(world, "a", "b")
    waiting = await b.syncing()
    assert b.broker.waits.waiting == 1

    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    assert b.broker.waits.waiting == 0
    assert not b.broker.waits.entries


async def test_many_join_through_two_brokers_at_once(world: World) -> None:
    peers = [world.peer(f"p{i}") for i in range(40)]
    joins = [asyncio.ensure_future(peer.join()) for peer in peers]
    async with asyncio.timeout(30):
        while sum(broker.waits.waiting for broker in world.brokers) < len(peers):
            await asyncio.sleep(0.01)

    await world.advance(6_000)

    joined = await asyncio.gather(*joins)
    assert {one.generation for one in joined} == {1}
    assert len({one.leader for one in joined}) == 1
    assert [len(one.members) for one in joined if one.members] == [40]


# -- the same request twice


async def test_same_first_join_twice(world: World) -> None:
    request = world.peer("a").request()

    [first], _ = await run_joins(world, request)
    [second], _ = await run_joins(world, request)

    assert first == second == [79, request.candidate_id.encode()]
    assert await world.store.command("HLEN", world.keys.pending) == 1


@pytest.mark.parametrize("traits", [{"version": 3}, {"instance_id": "s1"}])
async def test_same_parked_join_twice(world: World, traits: dict[str, Any]) -> None:
    request = world.peer("a", **traits).request()

    [first], _ = await run_joins(world, request)
    stored = await dump(world)
    [second], _ = await run_joins(world, request)

    assert first == second
    assert first[2] == b"parked"
    assert await dump(world) == stored


async def test_same_rejoin_twice(world: World) -> None:
    a, _ = await world.stable("a", "b")
    request = a.request()

    [first], _ = await run_joins(world, request)
    stored = await dump(world)
    [second], _ = await run_joins(world, request)

    assert first == second
    assert await dump(world) == stored


@pytest.mark.parametrize("version", [8, 9])
async def test_same_static_restart_twice(world: World, version: int) -> None:
    s1, _ = await world.stable_of(world.peer("s1", instance_id="s1", version=version), world.peer("b"))
    request = s1.request(member_id="")

    [first], _ = await run_joins(world, request)
    stored = await dump(world)
    [second], _ = await run_joins(world, request)

    assert first == second
    assert first[2] == b"now"
    assert await dump(world) == stored


async def test_same_parked_sync_twice(world: World) -> None:
    _, b = await completing(world, "a", "b")
    request = SyncRequest(MemberRef(b.member_id, 1), "consumer", "range")

    [first], _ = await run_syncs(world, request)
    stored = await dump(world)
    [second], _ = await run_syncs(world, request)

    assert first == second
    assert first[1] == b"parked"
    assert (await dump(world))["members"] == stored["members"]
    assert await world.field("awaiting_sync") == "1"


async def test_same_leaders_sync_twice(world: World) -> None:
    a, b = await completing(world, "a", "b")
    request = SyncRequest(MemberRef(a.member_id, 1), "consumer", "range", [(b.member_id, b"b"), (a.member_id, b"a")])

    [first], _ = await run_syncs(world, request)
    stored = await dump(world)
    [second], _ = await run_syncs(world, request)

    assert first == second == [0, b"now", b"a", b"consumer", b"range"]
    assert (await dump(world))["assignments"] == stored["assignments"]


async def test_same_leave_twice(world: World) -> None:
    a, _ = await world.stable("a", "b")

    assert await run(world, LEAVE_GROUP, "", "", 0, a.member_id, "", "") == [0, NONE]
    stored = await dump(world)
    assert await run(world, LEAVE_GROUP, "", "", 0, a.member_id, "", "") == [0, UNKNOWN_MEMBER_ID]
    assert await dump(world) == stored


async def test_expire_twice_changes_nothing(world: World) -> None:
    await world.stable("a", "b")
    world.sweeping = False
    await world.advance(10_000)
    assert (await run(world, EXPIRE_GROUP))[0] == 0
    stored = await dump(world)

    assert (await run(world, EXPIRE_GROUP))[0] == 0

    assert await dump(world) == stored
    assert await world.state() == ("Empty", 2)


# -- nobody sweeps


async def test_overdue_deadlines_are_applied_in_order_by_the_next_request(world: World) -> None:
    a, b = await world.stable("a", "b")
    world.sweeping = False
    await world.advance(4_000)
    await b.heartbeat()

    await world.advance(60_000)

    assert await b.heartbeat() == UNKNOWN_MEMBER_ID
    assert await world.state() == ("Empty", 2)
    started = [event for event in await world.events() if event in ("member_expired", "emptied")]
    assert started == ["member_expired", "member_expired", "emptied"]
    await refused(a.ask_join(), UnknownMemberId)


async def test_sweep_expires_groups_without_requests(world: World) -> None:
    await world.stable("a", "b")
    world.sweeping = False
    await world.advance(10_000)

    await sweep_expiry(world.brokers[1].expiry)

    assert await world.state() == ("Empty", 2)
    assert await world.store.command("ZCARD", world.keys.shard_keys.deadlines) == 0


async def test_scenario_100_two_sweepers_race_a_heartbeat(world: World) -> None:
    a, b = await world.stable("a", "b")
    world.sweeping = False
    await world.advance(9_999)
    await a.heartbeat()
    await world.clock.advance(1)

    _, _, code = await asyncio.gather(
        sweep_expiry(world.brokers[0].expiry), sweep_expiry(world.brokers[1].expiry), a.heartbeat()
    )

    assert code in (NONE, REBALANCE_IN_PROGRESS)
    assert await world.members() == {a.member_id}
    assert (await world.events()).count("member_expired") == 1
    assert b.member_id not in await world.members()


async def sweep_from_two(world: World) -> None:
    """Two sweepers at the same moment, and once more."""
    for _ in range(2):
        await asyncio.gather(*(sweep_expiry(broker.expiry) for broker in world.brokers[:2]))


async def test_scenario_100_two_sweepers_end_one_join_phase(world: World) -> None:
    a, _ = await world.stable("a", "b", session_timeout_ms=60_000)
    joins = [await world.peer("c").start_join(), await a.start_join()]
    world.sweeping = False
    for _ in range(2):
        await world.clock.advance(9_999)
        await asyncio.gather(*(renew_waits(broker.waits) for broker in world.brokers))
    await world.clock.advance(2)

    await sweep_from_two(world)

    await world.observe()
    assert {(await answer(join)).generation for join in joins} == {2}
    events = await world.events()
    assert events.count("barrier_joined") == 2
    assert events.count("member_expired") == 1


async def test_scenario_100_two_sweepers_end_one_wait_for_syncs(world: World) -> None:
    a, b = await completing(world, "a", "b")
    await a.sync({})
    world.sweeping = False
    for _ in range(2):
        await world.clock.advance(9_999)
        await a.heartbeat(), await b.heartbeat()
    await world.clock.advance(2)

    await sweep_from_two(world)

    assert await world.state() == ("PreparingRebalance", 1)
    assert await world.members() == {a.member_id}
    assert (await world.events()).count("rebalance_started") == 2


async def test_generation_continues_after_a_group_empties(world: World) -> None:
    [a] = await world.stable("a")
    identity = await world.field("id")
    await a.leave()
    a.member_id = ""
    join = await a.start_join()
    await world.advance(3_000)

    assert (await answer(join)).generation == 3
    assert await world.field("id") == identity
    assert identity.startswith("cgp_")


async def test_describe_shows_the_group_to_operators(world: World) -> None:
    a, _ = await world.stable("a", "b")
    classic.note_subscribed(world.store, world.keys, 1, ["t2", "t1"])
    classic.note_subscribed(world.store, world.keys, 0, ["old"])

    record = json.loads(await world.store.command("HGET", world.keys.members, a.member_id))
    assert record["client_id"] == "a" and record["client_host"] == "/127.0.0.1"
    assert record["protocols"] == ["range"]
    assert (await world.field("subscribed"), await world.field("subscribed_generation")) == ('["t1","t2"]', "1")
    assert await world.store.command("HGET", world.keys.shard_keys.groups, world.keys.ref) == b"classic Stable consumer"
    assert await world.events() == [
        "created",
        "member_joined",
        "rebalance_started",
        "member_joined",
        "barrier_joined",
        "assignment_stored",
        "stable",
    ]


async def test_strange_client_cannot_spoil_a_record(world: World) -> None:
    strange = 'x","session_timeout_ms":1,"join_round":9,"protocols":["z"]/\\\u20ac\n'
    a = world.peer(strange, protocols=(('r"]}', b"1"), ("y", b"2")))
    b = world.peer("b", protocols=(("y", b"3"), ('r"]}', b"4")))
    joins = [await a.start_join(), await b.start_join()]
    await world.advance(6_000)

    assert [(await answer(join)).protocol for join in joins] == ['r"]}', 'r"]}']
    record = json.loads(await world.store.command("HGET", world.keys.members, a.member_id))
    assert record["client_id"] == strange
    assert await a.heartbeat() == NONE


async def test_sync_late_follower_gets_the_assignment_of_its_generation(world: World) -> None:
    a, b = await world.stable("a", "b")
    for broker in world.brokers:
        broker.waits._poll_ms = 60_000
        broker.waits._on_group_change(None)
    slow = world.brokers[1]
    b.broker, a.broker = slow, world.brokers[0]
    rejoin = await b.parked(b.ask_join(protocols=(("range", b"changed"),)))
    await slow.waits.close()  # b's broker is notified and does nothing
    [waiter] = slow.waiters()
    await a.join()
    await a.parked(a.ask_join(protocols=(("range", b"changed"),)))
    assert await world.state() == ("PreparingRebalance", 2)

    await refresh_waits(slow.waits)

    joined = await answer(rejoin)
    assert (joined.generation, joined.leader) == (2, a.member_id)
    assert waiter.answer.done()
    await refused(b.sync(generation=2), RebalanceInProgress)


async def test_broken_connection_to_redis_costs_no_parked_request_its_place(world: World) -> None:
    a, b = await completing(world, "a", "b")
    b.broker = world.brokers[1]
    waiting = await b.syncing()

    await world.brokers[0].store.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await world.brokers[0].store.command("CLIENT", "KILL", "TYPE", "pubsub")
    for broker in world.brokers:
        await broker.store.metadata_node.control.wait_up(30)

    assert (await a.sync({b.member_id: b"for b"})).assignment == b""
    assert (await answer(waiting)).assignment == b"for b"


@pytest.mark.one_server
async def test_join_with_a_lost_answer_is_requested_again(world: World) -> None:
    a = world.peer("a", version=3)
    link = a.broker.store.metadata_node.control
    sent = link.send
    lost: list[Any] = []

    def lose_the_first_join(args: Any, on_reply: Any, timeout_ms: int | None = None) -> None:
        if args[1] in (JOIN_GROUP.sha, JOIN_GROUP.function) and not lost:
            lost.append(args)
            sent(args, lambda _: on_reply(StoreUnavailable("the answer was lost")), timeout_ms)
        else:
            sent(args, on_reply, timeout_ms)

    link.send = lose_the_first_join  # type: ignore[method-assign]
    join = await a.start_join()
    await world.advance(3_000)

    joined = await answer(join)
    assert lost
    assert len(joined.members) == 1
    assert await world.members() == {joined.member_id}
