"""An administrator's move of offsets: the members go, and the offsets move, in one step."""

from __future__ import annotations

import pytest

from tests.scripts.test_offsets_fetch import fetch
from tests.scripts.test_offsets_of_members import NONE, T1, UNKNOWN_MEMBER, commit, handlers
from tests.support.groups import World, refused
from tests.support.handlers import Broker
from tidegate.errors import NonEmptyGroup, UnknownMemberId
from tidegate.groups import staged_offsets
from tidegate.groups.commits import Commit
from tidegate.groups.offset_reset import COMMITS_FENCED_MS, OffsetMove, reset_offsets
from tidegate.groups.offsets import entry_json

__all__ = ["handlers"]


async def reset(world: World, offset: int | None, fence: bool = False) -> int:
    """Move t1:0; how many members were removed."""
    moves = [OffsetMove("t1", T1.topic_hex, 0, offset, "by hand")]
    return await reset_offsets(
        world.store, world.keys, moves, fence=fence, broker="1", client_id="tool", client_host="/10.0.0.9"
    )


async def committed(handlers: list[Broker]) -> int:
    offset: int = (await fetch(handlers[0], {"t1": [0]}))[1]["t1:0"][0]
    return offset


async def test_reset_offsets_of_an_empty_group_moves_and_forgets(world: World, handlers: list[Broker]) -> None:
    (a,) = await world.stable("a")
    assert await commit(handlers, 10, peer=a) == NONE
    await a.leave()

    assert await reset(world, 3) == 0
    assert await committed(handlers) == 3
    assert await commit(handlers, 4) == NONE, "nobody was fenced"
    assert await reset(world, None) == 0
    assert await committed(handlers) == -1
    assert (await world.reported("offsets_reset"))[0]["detail"] == "t1:0 10 3"
    assert (await world.reported("offsets_reset"))[-1]["client_id"] == "tool"


async def test_reset_offsets_makes_a_group_that_does_not_exist(world: World, handlers: list[Broker]) -> None:
    assert await reset(world, 7, fence=True) == 0

    assert await committed(handlers) == 7
    assert await world.state() == ("Empty", 0)
    (a,) = await world.stable("a")
    assert await commit(handlers, 8, peer=a) == NONE


async def test_reset_offsets_of_members_is_refused_and_changes_nothing(world: World, handlers: list[Broker]) -> None:
    (a,) = await world.stable("a")
    assert await commit(handlers, 10, peer=a) == NONE

    with pytest.raises(NonEmptyGroup):
        await reset(world, 3)

    assert await committed(handlers) == 10
    assert await world.members() == {a.member_id}


async def test_reset_offsets_fence_removes_members_and_refuses_their_commits(
    world: World, handlers: list[Broker]
) -> None:
    a, b = await world.stable("a", "b")
    assert await commit(handlers, 10, peer=a) == NONE

    assert await reset(world, 3, fence=True) == 2

    assert (await world.state())[0] == "Empty" and not await world.members()
    assert await commit(handlers, 11, peer=a) == UNKNOWN_MEMBER
    assert await commit(handlers, 11) == UNKNOWN_MEMBER, "a removed member that forgot its id"
    staged = Commit(-1, "", None, ["t:0", entry_json(11, -1, "", "")])
    with pytest.raises(UnknownMemberId):  # a transaction of a client that sends no generation
        await staged_offsets.stage(world.store, world.keys, staged, 9, -1)
    assert await committed(handlers) == 3
    assert {event["member"] for event in await world.reported("member_removed")} == {a.member_id, b.member_id}

    await world.sync_all(*await world.stable("c"))
    await world.advance(COMMITS_FENCED_MS + 1)
    await world.advance(30_000)
    assert (await world.state())[0] == "Empty"
    assert await commit(handlers, 12) == NONE
    await staged_offsets.stage(world.store, world.keys, staged, 9, -1)


async def test_reset_offsets_fence_while_members_join(world: World, handlers: list[Broker]) -> None:
    (a,) = await world.stable("a")
    joining = await world.peer("b").start_join()

    assert await reset(world, 3, fence=True) == 2

    assert not await world.members() and await committed(handlers) == 3
    await refused(joining, UnknownMemberId)
    assert await commit(handlers, 11, peer=a) == UNKNOWN_MEMBER
