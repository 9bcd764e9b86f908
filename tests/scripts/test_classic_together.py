"""Joins and syncs that one script takes together: each is judged by itself, in the order in which they came."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.scripts.test_classic_rejoining import completing, protocols
from tests.support.groups import World, answer
from tidegate.groups import classic
from tidegate.groups.expire_and_retry import group_script_args, group_script_keys
from tidegate.groups.model import JoinRequest, MemberRef, SyncRequest
from tidegate.groups.waiters import GroupStatus
from tidegate.groups.waiting import JOIN_GROUP, SYNC_GROUP

NONE, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL, UNKNOWN_MEMBER_ID, FENCED = 0, 22, 23, 25, 82

Answers = tuple[list[list[Any]], GroupStatus | None]
"""The answer to each, and the script that follows them."""


async def run(world: World, script: Any, *args: Any) -> list[Any]:
    """A group script's whole reply."""
    return await send(world, script, [*group_script_args(world.store, world.keys, "1"), *args])


async def send(world: World, script: Any, args: list[Any]) -> list[Any]:
    reported: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    world.store.send_script(script, group_script_keys(world.keys), args, reported.set_result)
    reply = await reported
    assert isinstance(reply, list), reply
    return reply


async def run_joins(world: World, *requests: JoinRequest) -> Answers:
    """Joins that one script takes."""
    args = [classic._join_args(world.store, world.keys, request) for request in requests]
    reply = await send(world, JOIN_GROUP, world.brokers[0].waits.joins.script_args(world.keys, args))
    return reply[2], GroupStatus.from_end_of(reply)


async def run_syncs(world: World, *requests: SyncRequest) -> Answers:
    """Syncs that one script takes; the assignments of the first go with it."""
    args = [classic._sync_args(request) for request in requests]
    assignments = classic._assignments(requests[0])
    reply = await send(world, SYNC_GROUP, world.brokers[0].waits.syncs.script_args(world.keys, args, assignments))
    return reply[2], GroupStatus.from_end_of(reply)


def count_scripts(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The SHAs of scripts, and names of functions, that the first broker runs from now on."""
    link, shas = world.brokers[0].store.metadata_node.control, []
    sent = link.send

    def counted(args: Any, on_reply: Any, timeout_ms: int | None = None) -> None:
        if args[0] in ("EVALSHA", "FCALL"):
            shas.append(args[1])
        sent(args, on_reply, timeout_ms)

    monkeypatch.setattr(link, "send", counted)
    return shas


async def test_joins_begin_and_end_a_phase_together(world: World) -> None:
    a, b, c = await world.stable("a", "b", "c")
    stranger = a.request(member_id="nobody")
    other = b.request(protocols=protocols("none that others have"))
    again = a.request()

    answers, observe = await run_joins(world, a.request(), b.request(), stranger, other, c.request(), again)

    ids = [peer.member_id.encode() for peer in (a, b, c)]
    assert answers == [
        [NONE, ids[0], b"parked", 1, 2],
        [NONE, ids[1], b"parked", 1, 2],
        [UNKNOWN_MEMBER_ID, b"nobody"],
        [INCONSISTENT_GROUP_PROTOCOL, ids[1]],
        [NONE, ids[2], b"parked", 1, 2],
        [NONE, ids[0], b"now", 2, ids[0], b"consumer", b"range", 1, 0],
    ]
    assert observe is not None
    assert (observe.state, observe.generation) == ("CompletingRebalance", 2)
    assert (await world.events()).count("barrier_joined") == 2
    assert await world.field("joined_count") == "3"


async def test_join_behind_the_end_of_a_phase_begins_the_next(world: World) -> None:
    a, b = await world.stable("a", "b")
    changed = b.request(protocols=(("range", b"other metadata"),))

    answers, observe = await run_joins(world, a.request(), b.request(), changed)

    assert [one[2:] for one in answers] == [[b"parked", 1, 2], [b"parked", 1, 2], [b"parked", 2, 3]]
    assert observe is not None
    assert (observe.state, observe.generation, observe.round) == ("PreparingRebalance", 2, 3)
    assert await world.field("joined_count") == "1"


async def test_syncs_are_judged_each_by_itself(world: World) -> None:
    a, b, c = await completing(world, "a", "b", "c")
    requests = [
        SyncRequest(MemberRef(b.member_id, 1), "consumer", "range"),
        SyncRequest(MemberRef(b.member_id, 2), "consumer", "range"),
        SyncRequest(MemberRef("nobody", 1), "consumer", "range"),
        SyncRequest(MemberRef(c.member_id, 1), "consumer", "roundrobin"),
        SyncRequest(MemberRef(c.member_id, 1, "not its own"), "consumer", "range"),
        SyncRequest(MemberRef(c.member_id, 1), None, None),
    ]

    answers, observe = await run_syncs(world, *requests)

    codes = [ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, INCONSISTENT_GROUP_PROTOCOL, UNKNOWN_MEMBER_ID]
    assert answers == [[NONE, b"parked"], *([code] for code in codes), [NONE, b"parked"]]
    assert observe is None
    assert await world.field("awaiting_sync") == "1"
    assert (await a.sync({c.member_id: b"for c"})).assignment == b""
    assert await world.state() == ("Stable", 1)


async def test_leader_between_followers(world: World) -> None:
    a, b, c = await completing(world, "a", "b", "c")
    requests = [SyncRequest(MemberRef(peer.member_id, 1), "consumer", "range") for peer in (b, a, c)]

    answers, observe = await run_syncs(world, *requests)

    now = [NONE, b"now", b"", b"consumer", b"range"]
    assert answers == [[NONE, b"parked"], now, now]
    assert observe is not None
    assert (observe.state, observe.assigned_generation) == ("Stable", 1)
    assert await world.field("awaiting_sync") == "0"
    assert (await world.events()).count("stable") == 1


@pytest.mark.one_server
async def test_tick_takes_one_script(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    peers = await world.stable("a", "b", "c")
    for peer in peers:
        peer.broker = world.brokers[0]
    shas = count_scripts(world, monkeypatch)

    joined = await asyncio.gather(*(peer.join() for peer in peers))

    assert {(one.generation, one.leader) for one in joined} == {(2, peers[0].member_id)}
    assert shas.count(JOIN_GROUP.function) == 1
    assert len(shas) == 1, "one script after the joins answered all"

    plan = {peer.member_id: peer.name.encode() for peer in peers}
    followers = [asyncio.ensure_future(peer.sync()) for peer in peers[1:]]
    leader = asyncio.ensure_future(peers[0].sync(plan))
    synced = [await answer(one) for one in (leader, *followers)]

    assert [one.assignment for one in synced] == [b"a", b"b", b"c"]
    assert shas.count(SYNC_GROUP.function) == 2, "the leader's goes alone"
