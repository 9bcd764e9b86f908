"""What a broker logs of groups: one line a state, from one broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.groups import World, answer
from tidegate.diagnosis.state_log import StateLog

LINES = {"rebalance_started", "generation_opened", "group_stable", "group_empty"}


@pytest.fixture
async def lines(world: World) -> AsyncIterator[list[Any]]:
    """What two brokers log, one of them named for all shards."""
    logs = [StateLog(broker.store, lambda shard, named=place == 0: named) for place, broker in enumerate(world.brokers)]
    with capture_logs() as captured:
        for one in logs:
            await one.start()
        yield captured
        for one in logs:
            await one.close()


async def reported(lines: list[Any], count: int) -> list[tuple[Any, ...]]:
    """The lines about groups, when there are so many: each before the group continues."""
    deadline = asyncio.get_running_loop().time() + 5
    while len(found := [line for line in lines if line["event"] in LINES]) < count:
        if asyncio.get_running_loop().time() > deadline:
            break
        await asyncio.sleep(0.01)
    return [(line["event"], line["generation"], *([line["reason"]] if "reason" in line else [])) for line in found]


async def test_groups_life_is_a_line_a_state(world: World, lines: list[Any]) -> None:
    a, b = await world.stable("a", "b")
    await reported(lines, 2)
    await world.advance(10_000, beating=[a])
    assert b.member_id not in await world.members()
    await reported(lines, 3)
    await answer(await a.start_join())
    await reported(lines, 4)
    await world.sync_all(a)
    await reported(lines, 5)
    await answer(await a.parked(a.ask_join(protocols=(("range", b"changed"),), reason="new topics")))
    await reported(lines, 6)
    await a.leave()

    assert await reported(lines, 7) == [
        ("generation_opened", 1, "member joined"),
        ("group_stable", 1, "member joined"),
        ("rebalance_started", 1, "session timed out"),
        ("generation_opened", 2, "session timed out"),
        ("group_stable", 2, "session timed out"),
        ("generation_opened", 3, "subscription changed: new topics"),
        ("group_empty", 4, "member left"),
    ]
