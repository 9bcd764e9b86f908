"""Heartbeats of many groups in one script: each group is judged by itself, also where another has bad keys."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from tests.scripts.test_classic_together import count_scripts
from tests.support.groups import ANSWER_S, Broker, World
from tidegate.errors import StoreUnavailable
from tidegate.groups.commits import Commit
from tidegate.groups.heartbeats import HEARTBEAT, Heartbeats
from tidegate.groups.model import MemberRef
from tidegate.groups.offsets import Offsets, entry_json
from tidegate.store.keys import GroupKeys

NONE, COORDINATOR_NOT_AVAILABLE, UNKNOWN_MEMBER_ID = 0, 15, 25


async def heartbeat(broker: Broker, *heartbeats: tuple[GroupKeys, MemberRef]) -> list[int]:
    """The codes of heartbeats that one tick takes."""
    codes = [asyncio.get_running_loop().create_future() for _ in heartbeats]
    for (keys, member_ref), code in zip(heartbeats, codes, strict=True):
        broker.heartbeats.add(keys, member_ref, code.set_result)
    return await asyncio.wait_for(asyncio.gather(*codes), ANSWER_S)


def of_groups(world: World, *group_ids: str) -> list[tuple[GroupKeys, MemberRef]]:
    """Heartbeats of members that their groups do not have."""
    return [(world.store.group_keys("default", group_id), MemberRef("nobody", 1, None)) for group_id in group_ids]


async def test_heartbeats_of_all_shards_take_one_script(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = await world.stable("one")
    others = of_groups(world, *(f"g{number}" for number in range(20)))
    assert len({keys.shard_keys.shard for keys, _ in others}) > 1
    shas = count_scripts(world, monkeypatch)

    codes = await heartbeat(world.brokers[0], *others, (one.keys, MemberRef(one.member_id, one.generation, None)))

    assert codes == [UNKNOWN_MEMBER_ID] * 20 + [NONE]
    assert shas == [HEARTBEAT.sha]


async def test_heartbeats_of_a_shard_take_one_script_in_redis_cluster(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    heartbeats = of_groups(world, *(f"g{number}" for number in range(20)))
    broker = world.brokers[0]
    monkeypatch.setattr(type(broker.store), "is_sharded", True)
    broker.heartbeats = Heartbeats(broker.store, world.settings)
    shas = count_scripts(world, monkeypatch)

    codes = await heartbeat(broker, *heartbeats)

    assert codes == [UNKNOWN_MEMBER_ID] * 20
    assert len(shas) == len({keys.shard_keys.shard for keys, _ in heartbeats})


async def test_heartbeats_above_the_limit_of_groups_take_another_script(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    shas = count_scripts(world, monkeypatch)

    codes = await heartbeat(world.brokers[0], *of_groups(world, *(f"g{number}" for number in range(101))))

    assert codes == [UNKNOWN_MEMBER_ID] * 101
    assert len(shas) == 2


async def test_heartbeats_of_a_group_with_a_key_of_another_type_fail_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = await world.stable("one")
    (foreign,) = of_groups(world, "foreign")
    await world.store.command("SET", foreign[0].members, "somebody else's")
    heartbeats = [*of_groups(world, "a"), foreign, (one.keys, MemberRef(one.member_id, one.generation, None))]
    shas = count_scripts(world, monkeypatch)

    first = await heartbeat(world.brokers[0], *heartbeats)
    scripts_of_first = len(shas)
    second = await heartbeat(world.brokers[0], *heartbeats)

    assert first == second == [UNKNOWN_MEMBER_ID, COORDINATOR_NOT_AVAILABLE, NONE]
    assert scripts_of_first == 4  # together, then each alone
    assert len(shas) - scripts_of_first == 2  # the faulty group is left out


async def test_heartbeats_while_redis_refuses_all_are_not_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    shas = count_scripts(world, monkeypatch)
    await world.store.command("CONFIG", "SET", "min-replicas-to-write", 3)
    try:
        codes = await heartbeat(world.brokers[0], *of_groups(world, "a", "b", "c"))
    finally:
        await world.store.command("CONFIG", "SET", "min-replicas-to-write", 0)

    assert codes == [COORDINATOR_NOT_AVAILABLE] * 3
    assert len(shas) == 1


async def test_commits_of_a_group_with_a_key_of_another_type_fail_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = world.brokers[0]
    offsets = Offsets(broker.store)
    shard = world.keys.shard_keys.shard
    every = (world.store.group_keys("default", f"g{number}") for number in itertools.count())
    foreign, sound = itertools.islice((keys for keys in every if keys.shard_keys.shard == shard), 2)
    await world.store.command("SET", foreign.offsets, "somebody else's")
    shas = count_scripts(world, monkeypatch)

    async def commit() -> list[int]:
        codes = [asyncio.get_running_loop().create_future() for _ in range(2)]
        for keys, code in zip((foreign, sound), codes, strict=True):
            simple = Commit(-1, "", None)
            simple.entries += ("t:0", entry_json(7, -1, "", ""))
            offsets.commit(keys, simple, code.set_result)
        return await asyncio.wait_for(asyncio.gather(*codes), ANSWER_S)

    (refused, code), scripts_of_first = await commit(), len(shas)
    (refused_again, code_again), scripts_of_second = await commit(), len(shas) - scripts_of_first

    assert refused == refused_again == StoreUnavailable.code.value
    assert code == code_again == NONE
    assert (scripts_of_first, scripts_of_second) == (3, 2)
