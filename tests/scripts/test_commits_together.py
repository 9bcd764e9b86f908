"""Commits of many groups in one script: each group is judged by itself."""

from __future__ import annotations

import asyncio

import pytest

from tests.scripts.test_classic_together import count_scripts
from tests.support.groups import ANSWER_S, World
from tidegate.groups.commits import Commit
from tidegate.groups.offsets import COMMIT_OFFSETS, Offsets, entry_json
from tidegate.store.keys import GroupKeys
from tidegate.store.store import Store

NONE, ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, GROUP_ID_NOT_FOUND = 0, 22, 25, 69


def commit_of(offset: int = 7, generation: int = -1, member_id: str = "", field: str = "t:0") -> Commit:
    """A commit of one partition."""
    return Commit(generation, member_id, None, [field, entry_json(offset, -1, "", "")])


async def commit(offsets: Offsets, *commits: tuple[GroupKeys, Commit]) -> list[int]:
    """The codes of commits that one tick takes."""
    codes = [asyncio.get_running_loop().create_future() for _ in commits]
    for (keys, one), code in zip(commits, codes, strict=True):
        offsets.commit(keys, one, code.set_result)
    return await asyncio.wait_for(asyncio.gather(*codes), ANSWER_S)


def groups_of(world: World, count: int) -> list[GroupKeys]:
    """Groups that do not exist."""
    return [world.store.group_keys("default", f"g{number}") for number in range(count)]


async def stored_offset(store: Store, keys: GroupKeys, field: str = "t:0") -> int | None:
    value = await store.command("HGET", keys.offsets, field)
    return None if value is None else int(value.split(b",")[0].removeprefix(b'{"offset":'))


async def test_commits_of_all_shards_take_one_script(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (member,) = await world.stable("one")
    others = groups_of(world, 20)
    assert len({keys.shard_keys.shard for keys in others}) > 1
    offsets, shas = Offsets(world.store), count_scripts(world, monkeypatch)

    codes = await commit(
        offsets,
        *((keys, commit_of(generation=3 if number % 2 else -1)) for number, keys in enumerate(others)),
        (member.keys, commit_of(5, member.generation, member.member_id)),
    )

    assert codes == [NONE, GROUP_ID_NOT_FOUND] * 10 + [NONE]
    assert shas == [COMMIT_OFFSETS.sha]
    assert [await stored_offset(world.store, keys) for keys in others] == [7, None] * 10
    assert await stored_offset(world.store, member.keys) == 5
    for keys in others[::2]:
        assert await world.store.command("HGET", keys.shard_keys.groups, keys.ref) == b"classic Empty "


async def test_commits_of_a_shard_take_one_script_in_redis_cluster(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(world.store), "is_sharded", True)
    groups, shas = groups_of(world, 20), count_scripts(world, monkeypatch)

    codes = await commit(Offsets(world.store), *((keys, commit_of()) for keys in groups))

    assert codes == [NONE] * 20
    assert len(shas) == len({keys.shard_keys.shard for keys in groups})


async def test_commits_above_the_limit_of_groups_take_another_script(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups, shas = groups_of(world, 101), count_scripts(world, monkeypatch)

    codes = await commit(Offsets(world.store), *((keys, commit_of()) for keys in groups))

    assert codes == [NONE] * 101
    assert len(shas) == 2
