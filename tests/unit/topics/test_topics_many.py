"""Many topics at once: their configs are computed with pauses between them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from tests.support.rounds import Rounds, counted_rounds
from tidegate.settings import Settings
from tidegate.store.store import Store
from tidegate.topics import configs
from tidegate.topics.catalog import Catalog, PartitionStorage, Topic

AT_ONCE = 100
COUNT = 350


def record(number: int, partitions: int = 1) -> bytes:
    values = {"id": UUID(int=number + 1).hex, "partitions": partitions, "wanted": partitions, "format": "batch"}
    return json.dumps(values | {"state": "ready", "config": 1}).encode()


class Stored:
    """A catalog of many topics, whose store the test replaces."""

    def __init__(self, on_removed: Callable[[Topic], None]) -> None:
        self.settings = Settings()
        store = Store(self.settings)
        self.version = 0
        self.topics = {b"default/t%d" % number: record(number) for number in range(COUNT)}
        self._all = store.cluster_keys.topics
        store.command = self._command  # type: ignore[assignment]
        step: Any = self._command
        self.catalog = Catalog(store, self.settings, PartitionStorage(step, step), on_removed=on_removed)

        async def restore(*_: Any) -> bool:
            return False

        steps: Any = self.catalog.steps
        steps.restore = restore

    async def _command(self, verb: str, key: str, *_: Any) -> Any:
        await asyncio.sleep(0)
        if verb == "HGET":
            return self.version
        return dict(self.topics) if key == self._all else {b"retention.ms": b"7"}

    async def refresh(self) -> None:
        self.version += 1
        await self.catalog.refresh()


def ignore(_: Topic) -> None:
    """Of the removed topics."""


def count_configs(monkeypatch: pytest.MonkeyPatch, rounds: Rounds) -> None:
    effective = configs.effective

    def counted(*args: Any) -> Any:
        rounds.note()
        return effective(*args)

    monkeypatch.setattr(configs, "effective", counted)


async def test_new_topics_are_added_with_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Stored(ignore)

    with counted_rounds() as rounds:
        count_configs(monkeypatch, rounds)
        await stored.refresh()

    assert rounds.total == COUNT
    assert rounds.most <= AT_ONCE
    assert len(stored.catalog.topics("default")) == COUNT
    assert stored.catalog.version == 1


async def test_new_defaults_are_applied_with_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Stored(ignore)
    await stored.refresh()

    with counted_rounds() as rounds:
        count_configs(monkeypatch, rounds)
        stored.catalog.apply_defaults()
        while stored.catalog.version == 1:
            await asyncio.sleep(0)

    assert rounds.total == COUNT
    assert rounds.most <= AT_ONCE


async def test_topic_that_grows_while_new_defaults_are_applied_keeps_its_partitions() -> None:
    stored = Stored(ignore)
    await stored.refresh()
    last = COUNT - 1
    stored.topics[b"default/t%d" % last] = record(last, partitions=3)

    stored.catalog.apply_defaults()
    await stored.refresh()
    for _ in range(COUNT):
        await asyncio.sleep(0)

    topic = stored.catalog.get("default", f"t{last}")
    assert topic is not None and topic.partition_count == 3
    assert stored.catalog.by_id("default", topic.topic_id) is topic


async def test_removed_topics_are_reported_with_pauses() -> None:
    with counted_rounds() as rounds:
        stored = Stored(rounds.note)
        await stored.refresh()
        stored.topics.clear()
        await stored.refresh()

    assert rounds.total == COUNT
    assert rounds.most <= AT_ONCE
    assert stored.catalog.all_topics() == []
