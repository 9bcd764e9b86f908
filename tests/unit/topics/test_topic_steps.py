"""The steps of topics that are created and deleted at the same time: how many partitions are under way together."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from tidegate.settings import Settings
from tidegate.store.store import Store
from tidegate.topics.model import Record, TopicState
from tidegate.topics.steps import PARTITIONS_AT_ONCE, PartitionStorage, TopicSteps

TOPICS, PARTITIONS = 20, 250


class Counted:
    """Steps whose partitions take a few rounds of the event loop; `most` is how many were under way together."""

    def __init__(self) -> None:
        self.done = self.running = self.most = 0
        store = Store(Settings())
        store.run = self._run  # type: ignore[assignment]
        step: Any = self._step
        self.steps = TopicSteps(store, PartitionStorage(step, step), None)

    async def _run(self, *_: Any) -> None:
        """Of the scripts that finish a topic."""

    async def _step(self, *_: Any) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        for _ in range(3):
            await asyncio.sleep(0)
        self.running -= 1
        self.done += 1


@pytest.mark.parametrize("state", [TopicState.CREATING, TopicState.DELETING])
async def test_partitions_of_all_topics_share_one_limit(state: TopicState) -> None:
    counted = Counted()
    records = [Record(UUID(int=number), 0, PARTITIONS, "batch", state, 1) for number in range(1, TOPICS + 1)]

    await asyncio.gather(*(counted.steps.finish("org", f"t{at}", one) for at, one in enumerate(records)))

    assert counted.done == TOPICS * PARTITIONS
    assert counted.most <= PARTITIONS_AT_ONCE
