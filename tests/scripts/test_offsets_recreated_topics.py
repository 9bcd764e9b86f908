"""Offsets of a topic that was deleted and made again, through a broker that was not notified yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from tests.kit.wire import request
from tests.support.handlers import Broker
from tidegate.groups.retention import forget_topic
from tidegate.log.partitions import create_partition, delete_partition
from tidegate.settings import Settings
from tidegate.store.store import Store
from tidegate.telemetry.metrics import metrics
from tidegate.topics.catalog import Catalog, PartitionStorage
from tidegate.topics.model import Topic

NONE, UNKNOWN_PARTITION, LOADING, UNKNOWN_ID = 0, 3, 14, 100
COMMIT, FETCH = 8, 9


async def started(store: Store) -> Broker:
    """A broker with a catalogue of its own; it learns of changes only by a refresh."""

    async def forget(org: str, name: str, topic_id: UUID, partition_count: int) -> None:
        await forget_topic(store, org, name, partition_count, topic_id.hex)

    catalog = Catalog(store, store.settings, PartitionStorage(create_partition, delete_partition), forget)
    await catalog.start()
    await catalog._loops.close()
    store.pubsub.forget(store.cluster_keys.topic_changes, catalog._follower._on_message)
    return Broker(store, catalog)  # type: ignore[arg-type]


@pytest.fixture
async def here(store: Store) -> AsyncIterator[Broker]:
    """The broker that is notified late."""
    broker = await started(store)
    yield broker
    await broker.catalog.close()


@pytest.fixture
async def there(here: Broker, settings: Settings) -> AsyncIterator[Broker]:
    """The one that changes topics."""
    store = Store(settings)
    await store.start()
    broker = await started(store)
    yield broker
    await broker.catalog.close()
    await store.close()


async def made(broker: Broker, name: str = "t") -> Topic:
    topic: Topic = await broker.catalog.create("default", name, 2)  # type: ignore[attr-defined]
    return topic


async def made_again(broker: Broker, old: Topic) -> Topic:
    await broker.catalog.delete("default", old.name)  # type: ignore[attr-defined]
    new = await made(broker, old.name)
    assert new.topic_id != old.topic_id
    return new


def label(topic: Topic, version: int) -> dict[str, Any]:
    return {"topic_id": topic.topic_id} if version >= 10 else {"name": topic.name}


def commit_request(version: int, offset: int, *topics: Topic) -> Any:
    partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    wanted = [{**label(topic, version), "partitions": [partition]} for topic in topics]
    return request(COMMIT, version, group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=wanted)


async def commit(broker: Broker, version: int, offset: int, *topics: Topic) -> list[int]:
    """The code of partition 0 of each topic."""
    response = await broker.ask(commit_request(version, offset, *topics))
    return [one.partitions[0].error_code.value for one in response.topics]


async def fetch(broker: Broker, version: int, *topics: Topic) -> list[tuple[int, int]]:
    """Offset and code of partition 0 of each topic."""
    wanted = [{**label(topic, version), "partition_indexes": (0,)} for topic in topics]
    (group,) = (await broker.ask(request(FETCH, version, groups=[{"group_id": "g", "topics": wanted}]))).groups
    found = [one.partitions[0] for one in group.topics]
    return [(one.committed_offset, one.error_code.value) for one in found]


async def test_commit_that_is_never_readable_is_not_acknowledged(here: Broker, there: Broker) -> None:
    old, other = await made(here), await made(here, "other")
    await there.catalog.refresh()
    assert await commit(here, 9, 5, old, other) == [NONE, NONE]
    new = await made_again(there, old)

    assert await commit(here, 9, 6, old, other) == [LOADING, NONE]

    assert await commit(here, 9, 7, new, other) == [NONE, NONE]
    assert await fetch(there, 9, new, other) == [(7, NONE), (7, NONE)]


async def test_commit_deleted_topic_is_unknown(here: Broker, there: Broker) -> None:
    old = await made(here)
    await there.catalog.refresh()
    await there.catalog.delete("default", old.name)  # type: ignore[attr-defined]

    assert await commit(here, 9, 6, old) == [UNKNOWN_PARTITION]
    assert await commit(here, 9, 6, old) == [UNKNOWN_PARTITION]


async def test_commit_change_of_other_topics_costs_a_refresh_and_no_error(here: Broker, there: Broker) -> None:
    topic = await made(here)
    await made(there, "another")
    known = here.catalog.version

    assert await commit(here, 9, 6, topic) == [NONE]
    assert here.catalog.version > known
    assert await fetch(there, 9, topic) == [(6, NONE)]


async def test_id_means_one_topic_only(here: Broker, there: Broker) -> None:
    old = await made(here)
    await there.catalog.refresh()
    assert await commit(here, 10, 5, old) == [NONE]
    new = await made_again(there, old)

    assert await commit(here, 10, 6, old) == [UNKNOWN_ID]
    assert await commit(here, 10, 6, old) == [UNKNOWN_ID]
    assert await fetch(here, 10, old, new) == [(-1, UNKNOWN_ID), (-1, NONE)]
    assert await commit(here, 10, 7, new) == [NONE]
    assert await fetch(there, 10, old, new) == [(-1, UNKNOWN_ID), (7, NONE)]


async def test_commit_topic_id_unknown_to_this_broker_is_refreshed(here: Broker, there: Broker) -> None:
    topic = await made(there)

    assert await fetch(here, 10, topic) == [(-1, NONE)]
    later = await made(there, "later")
    assert await commit(here, 10, 5, later) == [NONE]
    assert await fetch(there, 10, later) == [(5, NONE)]


async def test_commits_while_the_topic_is_made_again_and_again(here: Broker, there: Broker) -> None:
    topic = await made(there)
    offset = 0
    for _ in range(8):
        changing = asyncio.ensure_future(made_again(there, topic))
        while not changing.done():
            offset += 1
            await commit(here, 9, offset, topic)
        topic = await changing
        offset += 1
        while await commit(here, 9, offset, topic) != [NONE]:
            offset += 1

        assert await fetch(there, 9, topic) == [(offset, NONE)]


async def test_commit_refusals_are_counted(here: Broker) -> None:
    topic = await made(here)
    nowhere = Topic("default", "nowhere", UUID(int=9), 1, "batch", "ready", {}, topic.config)
    counted = metrics.apis[COMMIT].errors
    before = counted.get(UNKNOWN_PARTITION, 0)

    assert await commit(here, 9, 1, nowhere) == [UNKNOWN_PARTITION]
    assert await commit(here, 9, 1, topic, nowhere) == [NONE, UNKNOWN_PARTITION]

    assert counted[UNKNOWN_PARTITION] == before + 2
