"""Keys that somebody removed by hand, one at a time: the group continues, and so do logs and topics.

The table over all keys, with real clients, is `tests/chaos/test_lost_keys.py`.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import structlog

from tests.scripts.test_topics_catalog import ORG, REAL
from tests.support.groups import Peer, World, answer
from tests.support.logs import TOPIC, append, broker, given_log, read_all
from tidegate.groups.expiry import expire_group, verify_index
from tidegate.groups.model import GroupState
from tidegate.log.compaction import compact
from tidegate.log.loading import LogLost
from tidegate.records.batch import Batch
from tidegate.records.build import NewRecord, build_batch
from tidegate.settings import Settings
from tidegate.store.store import Store
from tidegate.store.wrong_types import type_of
from tidegate.topics.catalog import Catalog

NONE, UNKNOWN_MEMBER_ID = 0, 25


async def rejoin(world: World, *peers: Peer) -> None:
    """As clients do after UNKNOWN_MEMBER_ID."""
    for peer in peers:
        peer.member_id, peer.generation = "", -1
    await meet(world, *peers)


async def meet(world: World, *peers: Peer) -> None:
    """All join until they have one generation, and sync."""
    joins = {peer: await peer.start_join() for peer in peers}
    for _ in range(20):
        await world.advance(1_000)
        waiting = [peer for peer, join in joins.items() if not join.done()]
        newest = max(peer.generation for peer in peers)
        behind = [peer for peer, join in joins.items() if join.done() and (waiting or peer.generation < newest)]
        if not waiting and not behind:
            break
        for peer in behind:
            joins[peer] = await peer.start_join()
    for join in joins.values():
        await answer(join)
    await world.sync_all(*peers)


@pytest.mark.parametrize("instance_id", [None, "static"])
async def test_group_members_lost_all_join_again(world: World, instance_id: str | None) -> None:
    one = world.peer("one", instance_id=instance_id)
    await world.stable_of(one, world.peer("two"))
    generation = one.generation
    await world.store.command("DEL", world.keys.members)

    assert await one.heartbeat() == UNKNOWN_MEMBER_ID
    assert await one.leave() == UNKNOWN_MEMBER_ID
    await rejoin(world, *world.peers)

    assert await world.state() == (GroupState.STABLE, one.generation)
    assert one.generation > generation
    assert len(await world.members()) == 2


async def test_group_members_lost_without_rejoins_empties_the_group(world: World) -> None:
    await world.stable("one")
    await world.store.command("DEL", world.keys.members)
    await world.advance(11_000)
    assert (await world.state())[0] == GroupState.EMPTY


@pytest.mark.parametrize("name", ["protocols", "subscriptions", "instances"])
async def test_group_member_data_lost_rebalance_restores(world: World, name: str) -> None:
    one, two = await world.stable_of(world.peer("one"), world.peer("two", instance_id="two"))
    await world.store.command("DEL", getattr(world.keys, name))

    late = world.peer("late")
    two.member_id = ""  # a static member returns by its instance id
    await meet(world, late, one, two)

    assert await world.state() == (GroupState.STABLE, one.generation)
    assert one.generation == two.generation == late.generation
    assert {await peer.heartbeat() for peer in (one, two, late)} == {NONE}
    await world.advance(9_000, beating=(one, two, late))
    assert {await peer.heartbeat() for peer in (one, two, late)} == {NONE}


async def test_group_assignments_lost_sync_starts_a_rebalance(world: World) -> None:
    one, two = await world.stable("one", "two")
    await world.store.command("DEL", world.keys.assignments)

    with pytest.raises(Exception, match=r"(?i)rebalance|^$"):
        await two.sync()
    await meet(world, one, two)
    assert (await two.sync()).assignment == f"{two.member_id}@{two.generation}".encode()
    assert "assignments_lost" in {event["cause"] for event in await world.reported("rebalance_started")}


async def test_group_leader_assigns_nothing_is_no_loss(world: World) -> None:
    (one,) = await world.stable("one")
    rejoined = await (await one.start_join())
    assert rejoined.generation == 2
    await one.sync({})
    assert (await one.sync()).assignment == b""
    assert await world.state() == (GroupState.STABLE, 2)


@pytest.mark.parametrize("instance_id", [None, "static"])
async def test_group_hash_lost_generation_continues(world: World, instance_id: str | None) -> None:
    one, two = await world.stable_of(world.peer("one", instance_id=instance_id), world.peer("two"))
    late = await one.start_join()
    await answer(await two.start_join())
    await answer(late)
    await world.sync_all(one, two)
    generation = one.generation
    await world.store.command("DEL", world.keys.group)

    assert await one.heartbeat() != NONE
    await rejoin(world, one, two)

    assert one.generation > generation
    assert len(await world.members()) == 2


async def test_group_sessions_lost_dead_member_expires(world: World) -> None:
    one, two = await world.stable("one", "two")
    await world.store.command("DEL", world.keys.sessions)
    await world.advance(25_000, beating=(one,))
    assert await one.heartbeat() != NONE  # a rebalance without the other
    assert await world.members() == {one.member_id} or (await world.state())[0] == GroupState.PREPARING
    assert await two.heartbeat() == UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("name", ["groups", "deadlines"])
async def test_shard_index_lost_is_restored(world: World, name: str) -> None:
    await world.stable("one")
    shard = world.keys.shard_keys
    await world.store.command("DEL", getattr(shard, name))

    assert await verify_index(world.store, shard.shard) == 1
    assert await verify_index(world.store, shard.shard) == 0
    assert await world.store.command("HKEYS", shard.groups) == [world.keys.ref.encode()]
    assert await world.store.command("ZSCORE", shard.deadlines, f"session|{world.keys.ref}")
    await expire_group(world.store, world.keys)


async def test_meta_lost_log_is_served_and_appended(store: Store, settings: Settings) -> None:
    async with broker(settings) as logs, broker(settings) as restarted:
        await given_log(store)
        log = logs.partition(TOPIC, 0)
        for count in (3, 4):
            await append(log, count=count)
        await store.command("DEL", log.keys.meta)

        with structlog.testing.capture_logs() as events:
            assert (await append(log)).base_offset == 7  # the cached state is right
            other = restarted.partition(TOPIC, 0)
            assert [item.base_offset for item in await read_all(other)] == [0, 3, 7]
            assert (await append(other)).base_offset == 8
            assert (await log.end_offset()).high_watermark == 9
        assert [event["event"] for event in events if event["event"] == "log_meta_rebuilt"] == ["log_meta_rebuilt"]
        assert (await log.epoch_end(0))[1] <= 9


async def test_producers_lost_log_is_trimmed_and_compacted(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings, entry_bytes_max=1) as logs:
        config = replace(TOPIC.config, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)
        log = logs.partition(replace(TOPIC, config=config), 0)
        for _ in range(9):
            await append(log, Batch.parse(build_batch([NewRecord(b"1", b"k", 1_000)])))
        assert await log.delete_records(2) == 2
        await store.command("DEL", log.keys.producers)
        assert await log.delete_records(4) == 4
        await store.command("DEL", log.keys.producers)
        assert await compact(log, 9) is not None
        assert [batch.base_offset for batch in await read_all(log)] == [7, 8]


async def test_meta_of_deleted_topic_is_not_rebuilt(store: Store, settings: Settings) -> None:
    async with broker(settings) as logs:
        await given_log(store)
        log = logs.partition(TOPIC, 0)
        await append(log)
        await store.command("DEL", log.keys.meta, log.keys.log)
        with pytest.raises(Exception, match=r"(?i)unknown|^$"):
            await append(log)


async def test_log_lost_is_refused_and_named(store: Store, settings: Settings) -> None:
    async with broker(settings) as logs:
        await given_log(store)
        log = logs.partition(TOPIC, 0)
        await append(log)
        await store.command("DEL", log.keys.log)
        with structlog.testing.capture_logs() as events:
            for _ in range(2):
                with pytest.raises(LogLost):
                    await asyncio.wait_for(append(log), 40)
            with pytest.raises(LogLost):
                await asyncio.wait_for(log.end_offset(), 40)
        assert [event["command"] for event in events if event["event"] == "log_lost"] == ["topic repair orders"]
        assert log in logs.stray_logs


async def test_catalogue_lost_is_stored_again(store: Store, settings: Settings) -> None:
    catalog = Catalog(store, settings, REAL)
    await catalog.start()
    try:
        names = ["orders", "orders.eu"]
        made = {name: await catalog.create(ORG, name, 2, {"retention.ms": "5000"}) for name in names}
        deleted = await catalog.create(ORG, "deleted")
        await store.command("DEL", store.cluster_keys.topics, store.cluster_keys.topic_names)
        await store.command("HSET", store.log_keys(ORG, "deleted", 0, deleted.topic_hex).meta, "state", "deleted")
        await catalog.create(ORG, "another")  # the version changes

        other = Catalog(store, settings, REAL)
        await other.refresh()
        assert [topic.name for topic in other.topics(ORG)] == ["another", *names]
        assert {name: other.get(ORG, name) for name in names} == made
        assert await store.command("HLEN", store.cluster_keys.topic_names) == 1
    finally:
        await catalog.close()


async def test_catalogue_flushed_versions_do_not_meet(store: Store, settings: Settings) -> None:
    catalog = Catalog(store, settings, REAL)
    await catalog.start()
    try:
        await catalog.create(ORG, "before")
        await store.command("FLUSHALL")
        other = Catalog(store, settings, REAL)
        await other.create(ORG, "after")
        await catalog.refresh()
        assert [topic.name for topic in catalog.topics(ORG)] == ["after"]
    finally:
        await catalog.close()


def test_type_of_matches_the_layout() -> None:
    from tidegate.cli.client.redis_keys import KINDS

    for kind in KINDS:
        name = "tidegate:" + kind.form.replace("<topic id>", "ab" * 16).replace("<n>", "7").replace("<number>", "3")
        assert type_of(name) == kind.type, kind.name
