"""Topics of the admin HTTP: however many partitions, few tasks exist at a time, and their results are in order."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tidegate.errors import KafkaError
from tidegate.groups.directory import ListedGroup
from tidegate.http import topic_views
from tidegate.settings import Settings
from tidegate.topics.configs import effective
from tidegate.topics.model import Topic

TASKS_MAX = 100


class Store:
    """Every partition has as many bytes as its index; counts the tasks that exist at a read."""

    def __init__(self) -> None:
        self.tasks_most = 0

    def log_keys(self, org: str, name: str, index: int, topic_hex: str) -> Any:
        return SimpleNamespace(meta=index)

    def stored_group_keys(self, org: str, group_id: str) -> Any:
        return SimpleNamespace(group=group_id, offsets=group_id)

    async def read(self, command: str, key: Any, *fields: str) -> Any:
        self.tasks_most = max(self.tasks_most, len(asyncio.all_tasks()))
        await asyncio.sleep(0)
        if fields == ("bytes", "batches"):
            return [str(key).encode(), b"1"]
        return b'["t-0"]' if fields == ("subscribed",) else [None] * len(fields)


def context_of(store: Store, topics: int, partitions: int) -> Any:
    """A broker's context with topics of so many partitions, none of which can be read."""
    config = effective(Settings(), {})
    listed = [
        Topic("default", f"t-{number}", UUID(int=number), partitions, "batch", "ready", {}, config)
        for number in range(topics)
    ]

    async def nothing() -> None:
        """The catalog is up to date."""

    async def find(org: str, name: str) -> Topic:
        return next(one for one in listed if one.name == name)

    async def end_offset() -> None:
        store.tasks_most = max(store.tasks_most, len(asyncio.all_tasks()))
        await asyncio.sleep(0)
        raise KafkaError

    catalog = SimpleNamespace(refresh=nothing, topics=lambda org: listed, find=find)
    logs = SimpleNamespace(partition=lambda topic, index: SimpleNamespace(end_offset=end_offset, stray=None))
    lease = SimpleNamespace(preferred=list)
    return SimpleNamespace(store=store, catalog=catalog, logs=logs, broker_lease=lease, settings=Settings())


async def test_topics_of_many_partitions_are_read_by_few_tasks() -> None:
    store = Store()

    rows = await topic_views.topics(context_of(store, 5, 1_000), "default")

    assert [(row["topic"], row["bytes"], row["batches"]) for row in rows] == [
        (f"t-{number}", sum(range(1_000)), 1_000) for number in range(5)
    ]
    assert store.tasks_most < TASKS_MAX


async def test_topic_of_many_partitions_and_groups_is_read_by_few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    store, groups = Store(), [ListedGroup(f"g-{number:03}", "consumer", "Stable", "consumer") for number in range(300)]

    async def list_groups(*_: Any) -> list[ListedGroup]:
        return groups

    monkeypatch.setattr(topic_views.directory, "list_groups", list_groups)

    found = await topic_views.topic(context_of(store, 1, 2_000), "default", "t-0", first=500)

    assert [one["partition"] for one in found["partitions"]] == [*range(500, 1_500)]
    assert [one["bytes"] for one in found["partitions"]] == [*range(500, 1_500)]
    assert found["bytes"] == sum(range(2_000))
    assert [one["group"] for one in found["groups"]] == [f"g-{number:03}" for number in range(200)]
    assert found["groups_not_asked"] == 100
    assert store.tasks_most < TASKS_MAX
