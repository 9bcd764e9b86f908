"""The events of a group: what happened, to whom, why, through whom, after how long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.clock import SteppedClock
from tests.support.groups import Peer, World, answer, refused
from tidegate.diagnosis.group_events import read_events, read_shard
from tidegate.errors import FencedInstanceId
from tidegate.groups import classic, offsets
from tidegate.groups.commits import Commit
from tidegate.groups.model import Leaving, MemberRef, SyncRequest
from tidegate.groups.offsets import Offsets, entry_json, offset_field
from tidegate.settings import Settings

FIELDS = [
    "time",
    "group",
    "generation",
    "kind",
    "cause",
    "member",
    "instance_id",
    "client_id",
    "host",
    "reason",
    "detail",
    "members",
    "broker",
    "duration_ms",
]


@pytest.fixture
async def world(settings: Settings, clock: SteppedClock) -> AsyncIterator[World]:
    opened = World(settings, clock)
    await opened.start()
    yield opened
    await opened.close()


async def last(world: World, kind: str) -> dict[str, str]:
    return (await world.reported(kind))[-1]


async def rejoined(world: World, *peers: Peer) -> None:
    await asyncio.gather(*[answer(join) for join in [await peer.start_join() for peer in peers]])
    await world.sync_all(*peers)


async def reset(world: World, who: str, **values: int) -> None:
    """A commit without a generation, as tools send it."""
    entries = [
        text
        for partition, offset in values.items()
        for text in (offset_field("t", int(partition[1:])), entry_json(offset, -1, "ab", ""))
    ]
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    commits = Offsets(world.store, lambda: "2")
    commits.commit(world.keys, Commit(-1, "", None, entries, -1, who, "10.0.0.9"), done.set_result)
    assert await done == 0


async def test_every_event_has_every_field_in_one_order(world: World) -> None:
    a, b = await world.stable("a", "b")
    await a.leave()
    await b.leave()
    await reset(world, "tool", p0=5)

    reported = await world.reported()
    assert [list(event) for event in reported] == [FIELDS] * len(reported)
    assert {"created", "member_left", "emptied", "offsets_reset"} <= {event["kind"] for event in reported}


async def test_round_with_a_leader_that_syncs_last_is_recorded_in_order(world: World) -> None:
    a, b = [world.peer("a"), world.peer("b")]
    joins = [await a.start_join(), await b.start_join()]
    await world.advance(world.settings.group_initial_rebalance_delay_ms * 2)
    await asyncio.gather(*(answer(join) for join in joins))
    follower = await b.parked(b.sync())
    await world.advance(2_000, beating=[a])
    await a.sync({a.member_id: b"1", b.member_id: b"2"})
    await answer(follower)

    assert (await world.events())[-3:] == ["barrier_joined", "assignment_stored", "stable"]
    assert (await last(world, "assignment_stored"))["duration_ms"] == "2000"
    assert (await last(world, "barrier_joined"))["detail"] == "range"


async def test_assignments_name_the_partitions_of_each_member(world: World) -> None:
    a = world.peer("a")
    join = await a.start_join()
    await world.advance(world.settings.group_initial_rebalance_delay_ms * 2)
    await answer(join)
    plan = [(a.member_id, b"1")]
    member_ref = MemberRef(a.member_id, a.generation)
    await classic.sync(a.broker.waits, world.keys, SyncRequest(member_ref, "consumer", "range", plan, "t=abcd"))

    assert (await last(world, "assignment_stored"))["detail"] == "t=abcd"


async def test_member_that_joins_names_itself_and_its_reason(world: World) -> None:
    await world.stable("a", "b")
    c = world.peer("c", version=3)
    await c.parked(c.ask_join(reason="scaling out"))
    event = await last(world, "rebalance_started")

    assert (event["cause"], event["client_id"], event["host"]) == ("member_joined", "c", "/127.0.0.1")
    assert event["reason"] == "scaling out" == (await last(world, "member_joined"))["reason"]
    assert (event["members"], event["broker"]) == ("2", "1")
    assert (await last(world, "member_joined"))["members"] == "2"
    assert await world.field("reason") == "member joined: scaling out"


async def test_leaving_member_gives_its_reason(world: World) -> None:
    a, _ = await world.stable("a", "b")
    await world.advance(3_000, beating=world.peers)
    await classic.leave(
        world.store, world.keys, [Leaving(a.member_id, None, "closing")], client_id="a", client_host="/127.0.0.1"
    )

    left, started = await last(world, "member_left"), await last(world, "rebalance_started")
    assert (left["reason"], left["detail"], left["members"]) == ("closing", "", "1")
    assert int(left["duration_ms"]) > 3_000, "how long it was a member"
    assert (started["cause"], started["member"], started["reason"]) == ("member_left", a.member_id, "closing")
    assert await world.field("reason") == "member left: closing"


async def test_member_that_an_administrator_removes_did_not_leave(world: World) -> None:
    await world.stable("a", "b", instance_id=None)
    a = world.peers[0]
    await classic.leave(
        world.store, world.keys, [Leaving(a.member_id, None, "bad host")], client_id="admin", client_host="/10.0.0.9"
    )

    removed = await last(world, "member_removed")
    assert (removed["member"], removed["reason"], removed["detail"]) == (a.member_id, "bad host", "/10.0.0.9 admin")
    assert (await last(world, "rebalance_started"))["cause"] == "member_removed"


async def test_session_that_ends(world: World) -> None:
    a, b = await world.stable("a", "b")
    await world.advance(11_000, beating=[b])

    expired = await last(world, "member_expired")
    assert (expired["cause"], expired["member"]) == ("session_timed_out", a.member_id)
    assert (await last(world, "rebalance_started"))["cause"] == "session_timed_out"


async def test_member_that_does_not_rejoin_in_time(world: World) -> None:
    a, b = await world.stable("a", "b", rebalance_timeout_ms=5_000)
    join = await world.peer("c", rebalance_timeout_ms=5_000).start_join()
    rejoin = await b.start_join()
    await world.advance(6_000, beating=[a])
    await asyncio.gather(answer(join), answer(rejoin))

    expired = await last(world, "member_expired")
    assert (expired["cause"], expired["member"]) == ("did_not_rejoin", a.member_id)


async def test_members_that_do_not_sync_in_time(world: World) -> None:
    a, b = [world.peer("a", rebalance_timeout_ms=5_000), world.peer("b", rebalance_timeout_ms=5_000)]
    joins = [await a.start_join(), await b.start_join()]
    await world.advance(world.settings.group_initial_rebalance_delay_ms * 2)
    await asyncio.gather(*(answer(join) for join in joins))
    await b.parked(b.sync())
    await world.advance(6_000, beating=[a])

    expired = await last(world, "member_expired")
    assert (expired["cause"], expired["member"]) == ("did_not_sync", a.member_id)
    started = await last(world, "rebalance_started")
    assert (started["cause"], started["member"]) == ("did_not_sync", a.member_id)


async def test_rejoining_member_records_its_changes(world: World) -> None:
    a, b = await world.stable("a", "b")
    await b.parked(b.join_with(protocols=(("range", b"other topics"),)))
    changed = await last(world, "rebalance_started")
    assert (changed["cause"], changed["member"]) == ("subscription_changed", b.member_id)
    await asyncio.gather(answer(await a.start_join()), *(answer(task) for task in b.tasks[-1:]))
    await world.sync_all(a, b)

    await a.parked(a.ask_join(reason="cached metadata has changed"))
    again = await last(world, "rebalance_started")
    assert (again["cause"], again["reason"]) == ("leader_rejoined", "cached metadata has changed")
    assert await world.field("reason") == "leader rejoined: cached metadata has changed"


async def test_static_member_that_is_replaced_and_the_one_that_it_fences(world: World) -> None:
    await world.stable("a", "b", instance_id=None)
    s = world.peer("s", instance_id="i-1")
    join = await s.start_join()
    await rejoined(world, *world.peers[:2])
    await answer(join)
    old_id = s.member_id
    await world.peer("s2", instance_id="i-1").parked(world.peers[-1].join())

    replaced = await last(world, "member_replaced")
    assert (replaced["instance_id"], replaced["client_id"]) == ("i-1", "s2")
    assert replaced["detail"] == f"/127.0.0.1 {old_id}"

    await refused(s.ask_join(), FencedInstanceId)
    fenced = await last(world, "member_fenced")
    assert (fenced["member"], fenced["instance_id"], fenced["client_id"]) == (old_id, "i-1", "s")


async def test_reset_names_operator_and_offsets(world: World) -> None:
    a, _ = await world.stable("a", "b")
    for peer in world.peers:
        await peer.leave()
    await reset(world, "tool", p0=120, p1=7)
    await reset(world, "tool", p0=100, p1=7)

    first, second = await world.reported("offsets_reset")
    assert (first["client_id"], first["host"], first["broker"]) == ("tool", "/10.0.0.9", "2")
    assert (first["detail"], second["detail"]) == ("t:0 - 120 t:1 - 7", "t:0 120 100")
    assert (await world.field("reset_by"), a.generation) == ("/10.0.0.9 tool", 1)


async def test_consumer_without_a_membership_is_one_reset_a_minute(world: World) -> None:
    a, b = await world.stable("a", "b")
    await a.leave()
    await b.leave()
    for offset in range(10, 20):
        await reset(world, "simple", p0=offset)
        await world.clock.advance(10_000)

    assert [event["detail"] for event in await world.reported("offsets_reset")] == ["t:0 - 10", "t:0 15 16"]


async def test_commits_of_groups_that_never_had_members_are_no_resets(world: World) -> None:
    await reset(world, "simple", p0=5)
    await reset(world, "simple", p0=3)

    assert await world.events() == []


async def test_deleted_offsets_are_named(world: World) -> None:
    a, b = await world.stable("a", "b")
    await a.leave()
    await b.leave()
    await reset(world, "tool", p0=5, p1=6)
    await offsets.delete(world.store, world.keys, "2", {"t": [1, 9]})

    assert (await last(world, "offsets_deleted"))["detail"] == "t:1"


async def test_client_names_are_truncated(world: World) -> None:
    long, cut = "x" * 32_000, "x" * 255
    (peer,) = await world.stable(long, instance_id=long)
    joined = await last(world, "member_joined")
    assert (joined["client_id"], joined["instance_id"]) == (cut, cut)
    assert await world.store.command("HEXISTS", world.keys.instances, long)

    await classic.leave(
        world.store, world.keys, [Leaving(peer.member_id, long, "")], client_id=long, client_host="/10.0.0.9"
    )
    await reset(world, long, p0=5)
    assert (await last(world, "member_removed"))["detail"] == f"/10.0.0.9 {cut}"
    assert (await last(world, "offsets_reset"))["client_id"] == cut


async def test_groups_events_are_read_among_those_of_its_shard(world: World) -> None:
    await world.stable("a")
    shard, own = world.keys.shard_keys, await world.events()
    other = next(
        keys
        for n in range(10_000)
        if (keys := world.store.group_keys(world.keys.org, f"other-{n}")).shard_keys.events == shard.events
    )
    [event] = await world.store.command("XRANGE", shard.events, "-", "+", "COUNT", 1)
    await world.store.command(
        "XADD", shard.events, "*", *[other.ref if v == world.keys.ref.encode() else v for v in event[1]]
    )

    assert [one.kind for one in await read_events(world.store, world.keys)] == own
    assert [one.kind for one in await read_events(world.store, other)] == ["created"]
    assert len(await read_shard(world.store, shard.events)) == len(own) + 1
