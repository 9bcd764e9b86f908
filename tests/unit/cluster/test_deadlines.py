"""The loop over all shards' overdue work, with a store that is a stub."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.cluster import deadlines
from tidegate.cluster.deadlines import Deadlines


async def test_deadline_shard_that_does_not_answer_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "_POLL_MAX_MS", 20)
    monkeypatch.setattr(deadlines, "_POLL_MIN_MS", 5)
    observations = {"silent": 0, "there": 0}
    often = asyncio.Event()

    async def run(_: Any, keys: list[str], *args: Any) -> list[int]:
        observations[keys[0]] += 1
        if keys == ["silent"]:
            await asyncio.Event().wait()
        if observations["there"] == 5:
            often.set()
        return [-1]

    store: Any = SimpleNamespace(
        settings=SimpleNamespace(coordinator_shards=2),
        shard_keys=lambda shard: SimpleNamespace(deadlines=["silent", "there"][shard]),
        run=run,
    )

    async def on_due(_: Any) -> None:
        """Nothing is."""

    loop = Deadlines(store, lambda shard: True, on_due)
    await loop.start()
    async with asyncio.timeout(30):
        await often.wait()
    await loop.close()

    assert observations["silent"] == 1
