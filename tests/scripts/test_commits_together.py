"""Commits of many groups in one script: each group is judged by itself."""

from __future__ import annotations

import asyncio

import pytest

from tests.scripts.test_classic_together import count_scripts
from tests.support.groups import ANSWER_S, World
from tidegate.groups.commits import Commit, commit_arguments
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


async def commands_run(store: Store) -> dict[str, int]:
    """How often the server ran each command, those of scripts included."""
    lines = (await store.command("INFO", "commandstats")).decode().splitlines()
    named = (line.removeprefix("cmdstat_").split(":calls=") for line in lines if ":calls=" in line)
    return {name: int(figures.split(",")[0]) for name, figures in named}


async def test_commits_of_a_member_read_and_write_once(world: World) -> None:
    (member,) = await world.stable("one")
    offsets = Offsets(world.store)
    commits = [commit_of(number, member.generation, member.member_id, f"t:{number % 3}") for number in range(16)]
    before = await commands_run(world.store)

    codes = await commit(offsets, *((member.keys, one) for one in commits))

    after = await commands_run(world.store)
    assert codes == [NONE] * 16
    assert after["zadd"] - before["zadd"] == 1
    assert after["hset"] - before["hset"] == 2  # of the offsets, and that the group has some
    assert [await stored_offset(world.store, member.keys, f"t:{index}") for index in range(3)] == [15, 13, 14]


async def test_commits_of_several_members_extend_the_session_of_each(world: World) -> None:
    first, second = await world.stable("one", "two")
    await world.clock.advance(1_000)
    names = (first, second, first)

    codes = await commit(
        Offsets(world.store),
        *((first.keys, commit_of(offset, one.generation, one.member_id)) for offset, one in enumerate(names)),
        (first.keys, commit_of(9, first.generation + 1, second.member_id)),
        (first.keys, commit_of(9, first.generation, "nobody")),
    )

    assert codes == [NONE, NONE, NONE, ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID]
    assert await stored_offset(world.store, first.keys) == 2
    ends = {int(await world.store.command("ZSCORE", first.keys.sessions, one.member_id)) for one in (first, second)}
    assert ends == {world.clock.now_ms + 10_000}


async def test_commit_sent_again_behind_a_higher_one_of_its_script_is_stored(world: World) -> None:
    """The client sent them in this order: the first one does not count as a newer one."""
    keys, now_ms = world.store.group_keys("default", "g"), world.clock.now_ms
    commits = [(commit_of(offset), print) for offset in (9, 5)]
    key_names, args = commit_arguments([(keys, commits)], 0, "1", (0, -now_ms + 100))

    assert await world.store.run(COMMIT_OFFSETS, key_names, *args) == [NONE, NONE]
    assert await stored_offset(world.store, keys) == 5


async def test_commits_of_more_values_than_one_command_takes_are_stored_whole(world: World) -> None:
    keys = world.store.group_keys("default", "g")
    commits = [commit_of(index, field=f"t:{index}") for index in range(1_500)]

    assert await commit(Offsets(world.store), *((keys, one) for one in commits)) == [NONE] * 1_500
    assert await world.store.command("HLEN", keys.offsets) == 1_500
    assert await stored_offset(world.store, keys, "t:1499") == 1_499


async def test_commits_after_the_offsets_were_lost_record_it_once(world: World) -> None:
    (member,) = await world.stable("one")
    offsets = Offsets(world.store)
    await commit(offsets, (member.keys, commit_of(1, member.generation, member.member_id)))
    await world.store.command("DEL", member.keys.offsets)
    again = [commit_of(2, member.generation, member.member_id, f"t:{index}") for index in (0, 1, 1)]

    assert await commit(offsets, *((member.keys, one) for one in again)) == [NONE] * 3

    events = await world.store.command("XRANGE", member.keys.shard_keys.events, "-", "+")
    kinds = [dict(zip(fields[::2], fields[1::2], strict=True))[b"kind"] for _, fields in events]
    assert kinds.count(b"offsets_lost") == 1
