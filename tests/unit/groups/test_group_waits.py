"""Groups with waiting requests, after a reconnection: every shard's channel reports that messages may be lost."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.rounds import counted_rounds
from tidegate.groups.waiting import GroupWaits
from tidegate.settings import Settings
from tidegate.store.store import Store

COUNT = 40


async def test_lost_messages_of_every_shard_wake_each_group_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(Settings())
    waits = GroupWaits(store, store.settings)
    for number in range(COUNT):
        waits.submit(store.group_keys("default", f"g{number}"))

    with counted_rounds() as rounds:
        monkeypatch.setattr(GroupWaits, "_wake", rounds.note)
        for _ in range(store.settings.coordinator_shards):
            waits._on_group_change(None)
        await asyncio.sleep(0)
        assert rounds.total == COUNT
        waits._on_group_change(None)
        await asyncio.sleep(0)
        assert rounds.total == 2 * COUNT
