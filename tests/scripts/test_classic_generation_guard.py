"""Redis comes back without its last writes (scenario 99, rule R12)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence

import pytest

from tests.scripts.test_classic_rejoining import completing
from tests.support.clock import KEY as CLOCK
from tests.support.consumers import ConsumerWorld
from tests.support.groups import Peer, World, answer
from tidegate.errors import StoreUnavailable
from tidegate.groups import generation_guard as guard
from tidegate.groups.commits import Commit
from tidegate.groups.generation_guard import SKIP, bump_all_generations
from tidegate.groups.group_changes import unsubscribe_group_changes
from tidegate.groups.model import GroupState, Joined
from tidegate.groups.offset_reset import OffsetMove, reset_offsets
from tidegate.groups.offsets import Offsets, entry_json, offset_field
from tidegate.groups.staged_offsets import stage
from tidegate.groups.waiters import GroupStatus
from tidegate.store.link import Arg
from tidegate.store.outcome import Refused, Unknown
from tidegate.store.scripts import Script
from tidegate.store.store import OnScript, Store

NONE, ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS = 0, 22, 25, 27

pytestmark = pytest.mark.one_server
"""What a server lost is put away and brought back as a whole."""

Dump = dict[bytes, bytes]


async def saved(store: Store) -> Dump:
    """Everything that is stored, as a replica would have it now."""
    return {key: await store.command("DUMP", key) for key in await store.command("KEYS", "*")}


async def fail_over(world: World | ConsumerWorld, kept: Dump) -> None:
    """The server now has no more than what was saved, and every broker connects again."""
    clock = await world.store.command("GET", CLOCK)
    await world.store.command("FLUSHDB")
    for key, value in kept.items():
        await world.store.command("RESTORE", key, 0, value)
    await world.store.command("SET", CLOCK, clock)
    connections = [broker.store.metadata_node.control.failover_epoch for broker in world.brokers]
    await world.store.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no")
    async with asyncio.timeout(30):
        for broker, before in zip(world.brokers, connections, strict=True):
            while (
                not broker.store.metadata_node.control.connected
                or broker.store.metadata_node.control.failover_epoch == before
            ):
                await asyncio.sleep(0.005)


async def meet(world: World, *peers: Peer) -> set[int]:
    """All rejoin, as clients do after REBALANCE_IN_PROGRESS or ILLEGAL_GENERATION; the generations they get."""
    joins: list[Awaitable[Joined]] = [await peer.start_join() for peer in peers]
    await world.advance(6_000)
    return {(await asyncio.wait_for(join, 30)).generation for join in joins}


async def test_scenario_99_all_meet_in_one_higher_generation(world: World) -> None:
    a, b = await world.stable("a", "b")
    kept = await saved(world.store)
    await world.advance(10_000, beating=[a])
    await answer(await a.start_join())
    await world.sync_all(a)
    assert await world.state() == ("Stable", 2)

    await fail_over(world, kept)

    assert await b.heartbeat() == REBALANCE_IN_PROGRESS, "b has partitions that are a's by now"
    assert await a.heartbeat() == ILLEGAL_GENERATION
    assert await world.members() == {a.member_id, b.member_id}
    assert await meet(world, a, b) == {3}
    await world.sync_all(a, b)
    assert [await a.heartbeat(), await b.heartbeat()] == [NONE, NONE]


async def test_scenario_99_joined_in_the_lost_generation_starts_over(world: World) -> None:
    a, b = await world.stable("a", "b")
    kept = await saved(world.store)
    c = world.peer("c")
    joins = [await c.start_join(), await a.start_join(), await b.start_join()]
    await asyncio.gather(*(answer(join) for join in joins))
    await world.sync_all(a, b, c)

    await fail_over(world, kept)

    assert await c.heartbeat() == UNKNOWN_MEMBER_ID
    assert [await a.heartbeat(), await b.heartbeat()] == [ILLEGAL_GENERATION, ILLEGAL_GENERATION]
    c.member_id = ""
    assert await meet(world, c, a, b) == {3}


async def test_scenario_99_a_lost_assignment_is_not_made_twice(world: World) -> None:
    a, b = await completing(world, "a", "b")
    kept = await saved(world.store)
    await world.sync_all(a, b)

    await fail_over(world, kept)

    assert [await a.heartbeat(), await b.heartbeat()] == [REBALANCE_IN_PROGRESS, REBALANCE_IN_PROGRESS]
    assert await meet(world, a, b) == {2}


async def test_scenario_99_a_phase_under_way_ends_higher(world: World) -> None:
    a, b = await world.stable("a", "b")
    rejoin = await a.start_join()
    kept = await saved(world.store)
    await answer(await b.start_join())
    assert (await answer(rejoin)).generation == 2

    await fail_over(world, kept)

    assert await world.state() == ("PreparingRebalance", 1)
    assert await b.heartbeat() == ILLEGAL_GENERATION
    assert await meet(world, a, b) == {3}


async def test_scenario_99_empty_group_continues_higher(world: World) -> None:
    [a] = await world.stable("a")
    await a.leave()
    kept = await saved(world.store)
    a.member_id = ""
    assert await meet(world, a) == {3}

    await fail_over(world, kept)

    assert await a.heartbeat() == UNKNOWN_MEMBER_ID
    a.member_id = ""
    assert await meet(world, a) == {4}


async def test_sessions_begin_anew_in_a_group_that_is_raised(world: World) -> None:
    a, b = await world.stable("a", "b")
    kept = await saved(world.store)
    rejoins = [await a.start_join(), await b.start_join()]
    await asyncio.gather(*(answer(rejoin) for rejoin in rejoins))
    await world.clock.advance(30_000)

    await fail_over(world, kept)

    assert [await a.heartbeat(), await b.heartbeat()] == [ILLEGAL_GENERATION, ILLEGAL_GENERATION]
    assert await world.members() == {a.member_id, b.member_id}


async def test_generation_without_a_message_is_known_to_brokers_that_answered(world: World) -> None:
    a, b = await world.stable("a", "b")
    for broker in world.brokers:
        unsubscribe_group_changes(broker.store, broker.generation_guard._on_group_change)
    kept = await saved(world.store)
    rejoins = [await a.start_join(), await b.start_join()]
    await asyncio.gather(*(answer(rejoin) for rejoin in rejoins))

    await fail_over(world, kept)

    assert [await a.heartbeat(), await b.heartbeat()] == [ILLEGAL_GENERATION, ILLEGAL_GENERATION]
    assert await meet(world, a, b) == {3}


def test_late_note_of_an_earlier_generation_changes_nothing(world: World) -> None:
    generation_guard, ref = world.brokers[0].generation_guard, world.keys.ref.encode()
    for state, generation in ((GroupState.STABLE, 5), (GroupState.COMPLETING, 5), (GroupState.STABLE, 4)):
        generation_guard.apply_status(world.keys, GroupStatus(state, generation, 1, 1, "", "", "", generation, -1))
        assert generation_guard._known[ref] == (5, True, 1)
    generation_guard._on_group_change(ref + b":1:CompletingRebalance:1")
    assert generation_guard._known[ref] == (1, False, 1), "the group was deleted and made again"


async def test_notes_are_repeated_only_where_the_failover_epoch_changed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.stable("a")
    generation_guard, reported = world.brokers[0].generation_guard, []
    monkeypatch.setattr(generation_guard, "announce", lambda: reported.append(generation_guard.failover_epoch))
    for failover_epoch in (7, 7, 8, 8):
        generation_guard.on_failover_handled(failover_epoch)

    assert reported == [7, 8]
    assert await world.brokers[0].store.command("HGET", world.store.cluster_keys.info, "groups_incarnation") == b"8"


async def test_while_redis_refuses_to_write_one_group_asks_for_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.stable("a")
    broker = world.brokers[0]
    for ref in (world.keys.ref, *(f"default/other-{n}" for n in range(20))):
        broker.generation_guard._on_group_change(f"{ref}:5:Stable:1".encode())
    asked: list[str] = []

    def refuse(script: Script, keys: Sequence[str], args: Sequence[Arg], on_reply: OnScript) -> None:
        asked.append(keys[0])
        asyncio.get_running_loop().call_soon(on_reply, Refused("READONLY"))

    with monkeypatch.context() as patched:
        patched.setattr(broker.store, "send_script", refuse)
        broker.generation_guard.announce()
        await asyncio.sleep(0.5)
        assert set(asked) == set(asked[:21])
        assert 21 < len(asked) < 21 + 10

    async with asyncio.timeout(30):
        while await world.field("generation_floor") != "5":
            await asyncio.sleep(0.01)
    assert not broker.generation_guard._refused


async def test_no_lost_write_changes_nothing(world: World) -> None:
    a, b = await world.stable("a", "b")
    await fail_over(world, await saved(world.store))

    assert await world.state() == ("Stable", 1)
    assert [await a.heartbeat(), await b.heartbeat()] == [NONE, NONE]
    assert (await world.events()).count("rebalance_started") == 1


async def test_group_that_was_deleted_and_made_again_is_another(world: World) -> None:
    for _ in range(2):
        [a] = await world.stable("a")
        await a.leave()
    assert await world.state() == ("Empty", 4)
    await world.store.command("FLUSHDB")
    await world.clock.set()
    [a] = await world.stable("a")
    assert await world.state() == ("Stable", 1)

    await fail_over(world, await saved(world.store))

    assert await world.state() == ("Stable", 1)
    assert await a.heartbeat() == NONE


@pytest.mark.parametrize("dealt_with", [None, 7, 6])
async def test_all_brokers_new_bumps_every_group_once(world: World, dealt_with: int | None) -> None:
    a, b = await world.stable("a", "b")
    info = world.store.cluster_keys.info
    if dealt_with is not None:
        await world.store.command("HSET", info, "groups_incarnation", dealt_with)

    raised = [await bump_all_generations(broker.store, 7) for broker in world.brokers]

    assert raised == ([1, 0] if dealt_with == 6 else [0, 0])
    assert await world.store.command("HGET", info, "groups_incarnation") == b"7"
    if dealt_with == 6:
        assert await meet(world, a, b) == {SKIP + 2}
    assert await a.heartbeat() == NONE


async def given_lost_writes(world: World) -> None:
    """The next broker that starts finds a failover epoch, 7, whose losses nobody handled."""
    await world.store.command("HSET", world.store.cluster_keys.info, "groups_incarnation", 6)


async def put_away(store: Store, key: str) -> bytes:
    """Give a key another type; returns what it held."""
    held = await store.command("DUMP", key)
    await store.command("SET", key, "foreign")
    return bytes(held)


async def test_all_brokers_new_faulty_group_stops_no_start(world: World) -> None:
    a, b = await world.stable("a", "b")
    broken = world.store.group_keys("default", "broken")
    await world.store.command("HSET", broken.shard_keys.groups, broken.ref, "classic Stable consumer")
    await world.store.command("HSET", broken.shard_keys.groups, b"\xff", "foreign")
    await world.store.command("SET", broken.group, "foreign")
    await given_lost_writes(world)

    await world.brokers[0].generation_guard.skip_lost_generations(7)

    assert await meet(world, a, b) == {SKIP + 2}
    assert await world.store.command("HGET", world.store.cluster_keys.info, "groups_incarnation") == b"7"


async def test_all_brokers_new_faulty_group_opens_no_lost_generation(world: World) -> None:
    """Its floor is stored at once, and is not raised again when the rest is repeated."""
    a, b = await world.stable("a", "b")
    await given_lost_writes(world)
    held = await put_away(world.store, world.keys.sessions)

    for _ in range(2):
        assert await bump_all_generations(world.store, 7) == 0
        await given_lost_writes(world)
    floor = await world.store.command("HGET", world.keys.group, "generation_floor")
    await world.store.command("RESTORE", world.keys.sessions, 0, held, "REPLACE")
    raised = [await bump_all_generations(world.store, 7), await bump_all_generations(world.store, 7)]

    assert (floor, raised) == (str(SKIP + 1).encode(), [1, 0])
    assert [await a.heartbeat(), await b.heartbeat()] == [REBALANCE_IN_PROGRESS, REBALANCE_IN_PROGRESS]
    assert await meet(world, a, b) == {SKIP + 2}


async def test_all_brokers_new_faulty_group_is_bumped_once_repaired(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "_FAULTY_AGAIN_S", 0.01)
    a, b = await world.stable("a", "b")
    await given_lost_writes(world)
    held = await put_away(world.store, world.keys.sessions)
    read = guard._groups_of

    async def read_slowly(store: Store, shard: int) -> list[str]:
        await asyncio.sleep(0.02)
        return await read(store, shard)

    monkeypatch.setattr(guard, "_groups_of", read_slowly)  # the start takes longer than the time between attempts
    await world.brokers[0].generation_guard.skip_lost_generations(7)

    await world.store.command("RESTORE", world.keys.sessions, 0, held, "REPLACE")

    async with asyncio.timeout(30):
        while await a.heartbeat() == NONE:
            await asyncio.sleep(0.01)
    assert await meet(world, a, b) == {SKIP + 2}
    assert not world.brokers[0].generation_guard._faulty


async def test_all_brokers_new_faulty_group_is_bumped_also_after_an_outage(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.stable("a")
    await given_lost_writes(world)
    held, generation_guard = await put_away(world.store, world.keys.sessions), world.brokers[0].generation_guard
    await generation_guard.skip_lost_generations(7)

    def lost(script: Script, keys: Sequence[str], args: Sequence[Arg], on_reply: OnScript) -> None:
        on_reply(Unknown("the connection ended"))

    with monkeypatch.context() as patched:
        patched.setattr(world.brokers[0].store, "send_script", lost)
        patched.setattr(world.brokers[0].store.metadata_node.control, "connected", False)
        generation_guard._try_one_faulty()
    await world.store.command("RESTORE", world.keys.sessions, 0, held, "REPLACE")
    generation_guard._try_one_faulty()

    async with asyncio.timeout(30):
        while (await world.state())[0] != "PreparingRebalance":
            await asyncio.sleep(0.01)


async def test_all_brokers_new_faulty_index_of_a_shard_is_named(world: World) -> None:
    """The groups that it named are unknown, so nobody can protect their generations: no broker starts."""
    await given_lost_writes(world)
    index = world.keys.shard_keys.groups
    await world.store.command("SET", index, "foreign")

    with pytest.raises(StoreUnavailable, match=re.escape(index)):
        await world.brokers[0].generation_guard.skip_lost_generations(7)


async def test_group_lost_whole_continues_higher(world: World) -> None:
    kept = await saved(world.store)
    a, b = await world.stable("a", "b")
    lost = (await world.state())[1]

    await fail_over(world, kept)

    assert await a.heartbeat() == UNKNOWN_MEMBER_ID
    a.member_id = b.member_id = ""
    assert await meet(world, a, b) == {lost + 1}
    assert await world.store.command("PTTL", world.keys.group) == -1


async def commit_alone(world: World, entry: list[str]) -> None:
    code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    Offsets(world.store).commit(world.keys, Commit(-1, "", None, entry), code.set_result)
    assert await asyncio.wait_for(code, 30) == NONE


async def move_offset(world: World, entry: list[str]) -> None:
    moves = [OffsetMove("t1", "0" * 32, 0, 7, "by hand")]
    await reset_offsets(
        world.store, world.keys, moves, fence=True, broker="1", client_id="tool", client_host="/10.0.0.9"
    )


async def stage_offset(world: World, entry: list[str]) -> None:
    await stage(world.store, world.keys, Commit(-1, "", None, entry), 4_000, -1)


@pytest.mark.parametrize("create", [commit_alone, move_offset, stage_offset])
async def test_group_lost_whole_continues_higher_where_offsets_create_it(
    world: World, create: Callable[[World, list[str]], Awaitable[None]]
) -> None:
    kept = await saved(world.store)
    [a] = await world.stable("a")

    await fail_over(world, kept)
    assert 0 < await world.store.command("PTTL", world.keys.group) <= 1_800_000
    assert not await world.store.command("HEXISTS", world.keys.group, "state")
    await create(world, [offset_field("t1", 0), entry_json(7, -1, "0" * 32, "")])

    assert await world.store.command("PTTL", world.keys.group) == -1
    assert await world.state() == ("Empty", 0)
    a.member_id = ""
    assert await meet(world, a) == {2}
