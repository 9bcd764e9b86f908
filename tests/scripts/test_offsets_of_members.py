"""Commits and administration of groups that really join and sync, each request to another broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.scripts.test_classic_rejoining import completing
from tests.scripts.test_offsets_commit import codes, commit_request
from tests.scripts.test_offsets_delete import delete
from tests.scripts.test_offsets_fetch import fetch
from tests.support.groups import Peer, World, answer, refused
from tests.support.handlers import Broker, FakeCatalog, topic
from tidegate.errors import GroupIdNotFound, NonEmptyGroup, UnknownMemberId
from tidegate.groups import classic, directory
from tidegate.groups.retention import sweep

NONE, ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCE, FENCED, SUBSCRIBED = 0, 22, 25, 27, 82, 86
WEEK_MS = 7 * 24 * 3_600_000
T1, T2 = topic("t1", number=1), topic("t2", number=2)


@pytest.fixture
async def handlers(world: World) -> list[Broker]:
    return [Broker(broker.store, FakeCatalog(T1, T2), number) for number, broker in enumerate(world.brokers)]


async def commit(handlers: list[Broker], offset: int = 5, peer: Peer | None = None, **request: Any) -> int:
    """One commit of t1:0; the brokers take turns. Its code."""
    if peer is not None:
        request = {"generation": peer.generation, "member_id": peer.member_id, **request}
    handlers.reverse()
    return codes(await handlers[0].ask(commit_request(9, topics={"t1": {0: (offset, "")}}, **request)))["t1:0"]


async def test_scenario_7_a_pending_member_commits_only_without_an_id(world: World, handlers: list[Broker]) -> None:
    peer = world.peer("a")
    await peer.claim_id()
    assert await commit(handlers, peer=peer, generation=0) == UNKNOWN_MEMBER
    assert await commit(handlers, peer=peer, generation=-1) == NONE


async def test_scenario_85_commits_in_every_state_of_a_group_with_members(world: World, handlers: list[Broker]) -> None:
    a, b = await world.stable("a", "b")
    assert await commit(handlers) == UNKNOWN_MEMBER
    assert await commit(handlers, peer=a, generation=a.generation - 1) == ILLEGAL_GENERATION
    assert await commit(handlers, 10, peer=b) == NONE

    c = await world.peer("c").start_join()
    assert (await world.state())[0] == "PreparingRebalance"
    assert await commit(handlers, 11, peer=a) == NONE
    rejoined = await a.start_join()
    assert await commit(handlers, 12, peer=a) == NONE
    assert await commit(handlers, peer=a, generation=a.generation + 1) == ILLEGAL_GENERATION

    await asyncio.gather(answer(await b.start_join()), answer(rejoined), answer(c))
    assert (await world.state())[0] == "CompletingRebalance"
    assert await commit(handlers, peer=a) == REBALANCE
    assert await commit(handlers, peer=a, generation=a.generation - 1) == ILLEGAL_GENERATION
    await world.sync_all(*world.peers)
    assert (await fetch(handlers[0], {"t1": [0]}))[1]["t1:0"][0] == 12
    assert await commit(handlers, 13, peer=b) == NONE


async def test_scenario_87_the_commit_of_a_removed_member_leaves_the_value(
    world: World, handlers: list[Broker]
) -> None:
    a, b = await world.stable("a", "b")
    assert await commit(handlers, 10, peer=b) == NONE
    await world.advance(11_000, beating=[a])
    assert await world.members() == {a.member_id}
    assert await commit(handlers, 3, peer=b) == UNKNOWN_MEMBER

    await answer(await a.start_join())
    await world.sync_all(a)
    old, new = await asyncio.gather(commit(handlers, 4, peer=b), commit(handlers, 20, peer=a))
    assert (old, new) == (UNKNOWN_MEMBER, NONE)
    assert (await fetch(handlers[0], {"t1": [0]}))[1]["t1:0"][0] == 20


async def test_scenario_59_commits_alone_keep_a_member_in_a_stable_group(world: World, handlers: list[Broker]) -> None:
    a, b = await world.stable("a", "b")
    for _ in range(4):
        await world.advance(5_000, beating=[a])
        assert await commit(handlers, peer=b) == NONE
    assert await world.members() == {a.member_id, b.member_id}
    assert (await world.state())[0] == "Stable"


async def test_scenario_59_commits_while_completing_renew_no_session(world: World, handlers: list[Broker]) -> None:
    a, b = await completing(world, "a", "b")
    await world.advance(5_000, beating=[a])
    assert await commit(handlers, peer=b) == REBALANCE
    await world.advance(4_999, beating=[a])
    assert await world.members() == {a.member_id, b.member_id}
    await world.advance(1)
    assert await world.members() == {a.member_id}


async def test_scenario_69_the_old_process_commits_nothing(world: World, handlers: list[Broker]) -> None:
    _, s2 = await world.stable_of(world.peer("s1", instance_id="s1"), world.peer("s2", instance_id="s2"))
    old_id, new_id = s2.member_id, (await s2.ask_join(member_id="")).member_id
    assert await commit(handlers, generation=1, member_id=old_id, instance_id="s2") == FENCED
    assert await commit(handlers, generation=1, member_id=old_id) == UNKNOWN_MEMBER
    assert await commit(handlers, generation=1, member_id=new_id, instance_id="s2") == NONE


async def test_scenario_70_offsets_are_still_judged_by_the_old_subscription(
    world: World, handlers: list[Broker]
) -> None:
    _, s2 = await world.stable_of(world.peer("s1", instance_id="s1"), world.peer("s2", instance_id="s2"))
    classic.note_subscribed(world.store, world.keys, 1, ["t1"])
    s2.member_id, s2.protocols = "", (("range", b"now t2 too"),)
    await s2.join()
    assert await delete(handlers[0], {"t1": [0], "t2": [0]}) == {"t1:0": SUBSCRIBED, "t2:0": NONE}
    described = await directory.describe(world.store, world.keys, "1")
    assert {member.metadata for member in described.members} == {b"metadata", b"now t2 too"}


async def test_simple_group_that_is_joined_keeps_its_identity_and_its_offsets(
    world: World, handlers: list[Broker]
) -> None:
    assert await commit(handlers, 7) == NONE
    identity = await world.field("id")
    (a,) = await world.stable("a")
    assert await world.state() == ("Stable", 1)
    assert await world.field("id") == identity
    assert (await fetch(handlers[0], {"t1": [0]}))[1]["t1:0"][0] == 7
    assert await commit(handlers, 8, peer=a) == NONE


async def test_scenario_94_offsets_expire_a_week_after_the_last_member_left(
    world: World, handlers: list[Broker]
) -> None:
    (a,) = await world.stable("a")
    assert await commit(handlers, peer=a) == NONE
    await world.clock.advance(5_000)
    assert await a.leave() == NONE
    assert await world.state() == ("Empty", 2)

    await world.clock.advance(WEEK_MS - 1)
    await sweep(world.store, range(50), "1")
    assert (await fetch(handlers[0], {"t1": [0]}))[1]["t1:0"][0] == 5
    await world.clock.advance(1)
    await sweep(world.store, range(50), "1")
    assert (await fetch(handlers[0], {"t1": [0]}))[1]["t1:0"][0] == -1
    assert await world.store.command("EXISTS", world.keys.group) == 0


async def test_scenario_96_deletion_against_a_join_has_one_order(world: World) -> None:
    """A pending id's owner joins through one broker while the group is deleted through another."""
    for number in range(12):
        world.group_id = f"orders-{number}"
        peer = world.peer("a")
        await peer.claim_id()
        joining = asyncio.ensure_future(peer.start_join())
        try:
            await directory.delete_group(world.brokers[number % 2].store, world.keys, "1")
            deleted = True
        except NonEmptyGroup:
            deleted = False
        join = await joining
        if deleted:
            await refused(answer(join), UnknownMemberId)
            assert await world.store.command("EXISTS", world.keys.group, world.keys.members) == 0
        else:
            assert await world.members() == {peer.member_id}


async def test_scenario_96_after_a_deletion_the_group_starts_again(world: World) -> None:
    (a,) = await world.stable("a")
    identity = await world.field("id")
    with pytest.raises(NonEmptyGroup):
        await directory.delete_group(world.store, world.keys, "1")
    await a.leave()
    await directory.delete_group(world.store, world.keys, "1")
    with pytest.raises(GroupIdNotFound):
        await directory.describe(world.store, world.keys, "1")
    await refused(a.ask_join(), UnknownMemberId)

    (b,) = await world.stable_of(world.peer("b"))
    assert b.generation == 1
    assert await world.field("id") not in ("", identity)


async def test_scenario_97_a_group_is_described_in_every_state(world: World) -> None:
    a, b = world.peer("a"), world.peer("b", instance_id="i")
    await world.stable_of(a, b)

    async def described() -> Any:
        return await directory.describe(world.brokers[1].store, world.keys, "2")

    group = await described()
    assert (group.state, group.protocol_type, group.protocol) == ("Stable", "consumer", "range")
    assert {(one.member_id, one.instance_id, one.client_id, one.metadata, one.assignment) for one in group.members} == {
        (a.member_id, None, "a", b"metadata", f"{a.member_id}@1".encode()),
        (b.member_id, "i", "b", b"metadata", f"{b.member_id}@1".encode()),
    }

    pending = world.peer("p")
    await pending.claim_id()
    assert len((await described()).members) == 2

    rejoined = await a.start_join()
    group = await described()
    assert (group.state, group.protocol) == ("PreparingRebalance", "")
    assert {(one.metadata, one.assignment) for one in group.members} == {
        (b"", f"{peer.member_id}@1".encode()) for peer in (a, b)
    }

    assert await pending.leave() == NONE
    await asyncio.gather(answer(await b.start_join()), answer(rejoined))
    group = await described()
    assert (group.state, group.protocol) == ("CompletingRebalance", "")
    assert {one.metadata for one in group.members} == {b""}

    await asyncio.gather(a.leave(), b.leave())
    group = await described()
    assert (group.state, group.protocol_type, group.protocol, group.members) == ("Empty", "consumer", "", ())
