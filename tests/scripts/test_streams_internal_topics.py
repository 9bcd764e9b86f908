"""Internal topics of streams groups: how many are created for one topology, at what pace, at whose cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.scripts.test_streams_wire import Streams, active, statuses, subtopology, topic, topology_of
from tests.support.consumer_wire import wire_of
from tests.support.valkey import ValkeyServer
from tidegate.groups.streams import internal_topics
from tidegate.topics.catalog import PARTITIONS_MAX, Catalog

ALTER_QUOTAS = 49
PARTITIONS = 4  # of t4


@pytest.fixture
async def streams(valkey: ValkeyServer) -> AsyncIterator[Streams]:
    async with wire_of(valkey) as wire:
        yield Streams(wire)


def changelogs(count: int) -> Any:
    """A topology that reads t4 and has so many changelog topics, of as many partitions as t4."""
    return topology_of(subtopology(state_changelog_topics=tuple(topic(f"app-{n:05}-changelog") for n in range(count))))


def made(streams: Streams) -> set[str]:
    return {one.name for one in streams.wire.app.broker.catalog.topics("default")} - {"t1", "t4"}


async def test_topology_of_more_partitions_than_one_request_creates_gets_none(streams: Streams) -> None:
    """As in Kafka, where one CreateTopics is sent for all of them and is refused."""
    count = PARTITIONS_MAX // PARTITIONS + 1

    joined = await streams.join("a", changelogs(count))

    assert (statuses(joined), active(joined), made(streams)) == ([3], [], set())
    detail = joined.status[0].status_detail
    assert f"{count * PARTITIONS} partitions" in detail
    assert len(detail) < 500
    assert (await streams.describe()).group_state == "NotReady"


async def test_negative_partition_counts_do_not_raise_the_limit(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(internal_topics, "PARTITIONS_MAX", 2 * PARTITIONS)
    topics = tuple(topic(f"app-{n}-changelog") for n in range(3))
    negative = (topic("app-repartition", partitions=-5),)
    read = subtopology(state_changelog_topics=topics, repartition_source_topics=negative)

    joined = await streams.join("a", topology_of(read))

    assert (statuses(joined), active(joined), made(streams)) == ([3], [], set())


async def test_internal_topics_are_created_some_at_a_time(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    running = most = 0
    create = Catalog.create

    async def counted(*args: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await create(*args)
        finally:
            running -= 1

    monkeypatch.setattr(Catalog, "create", counted)
    joined = await streams.join("a", changelogs(50))

    assert (statuses(joined), active(joined), len(made(streams))) == ([], [0, 1, 2, 3], 50)
    assert most <= 16


async def limit_mutations(streams: Streams, rate: float) -> None:
    entity = [{"entity_type": "user", "entity_name": "ANONYMOUS"}]
    ops = [{"key": "controller_mutation_rate", "value": rate, "remove": False}]
    await streams.wire.ask(ALTER_QUOTAS, 1, entries=[{"entity": entity, "ops": ops}], validate_only=False)


async def test_internal_topics_spend_the_clients_quota(streams: Streams) -> None:
    """As CreateTopics does: what is accepted may overdraw, and what follows is refused until the debt is paid."""
    await limit_mutations(streams, 0.1)

    joined = await streams.join("a", changelogs(200))

    assert (statuses(joined), active(joined)) == ([3], [])
    assert "quota of controller mutations" in joined.status[0].status_detail
    assert len(joined.status[0].status_detail) < 1_000
    assert len(made(streams)) == 1
    assert statuses(await streams.heartbeat("a", joined.member_epoch)) == [3]
    assert len(made(streams)) == 1


async def test_heartbeats_ask_little_for_a_quota_that_is_used_up(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    await limit_mutations(streams, 0.1)
    joined = await streams.join("a", changelogs(200))
    leases = streams.wire.app.broker.context.quotas
    assert leases is not None
    asked = 0
    mutate = leases.mutate

    async def counted(*args: Any, **options: Any) -> float:
        nonlocal asked
        asked += 1
        return await mutate(*args, **options)

    monkeypatch.setattr(leases, "mutate", counted)
    await streams.heartbeat("a", joined.member_epoch)

    assert 1 <= asked <= 16


REFUSED = topic("app-a-changelog", cleanup_policy="nonsense")


async def test_refused_internal_topic_leaves_the_quota_to_the_next(streams: Streams) -> None:
    """As CreateTopics does, which checks a topic before it spends."""
    await limit_mutations(streams, 0.1)
    good = topic("app-b-changelog")

    joined = await streams.join("a", topology_of(subtopology(state_changelog_topics=(REFUSED, good))))

    assert (statuses(joined), active(joined), made(streams)) == ([3], [], {"app-b-changelog"})
    assert "cleanup.policy" in joined.status[0].status_detail
    assert "quota" not in joined.status[0].status_detail


@pytest.mark.parametrize(
    ("limits", "topics"),
    [
        ({}, {"state_changelog_topics": (REFUSED,)}),
        ({"topics_max": 2}, {"state_changelog_topics": (topic("app-changelog"),)}),
        ({"partitions_max": 8}, {"state_changelog_topics": (topic("app-changelog"),)}),
        ({}, {"repartition_source_topics": (topic("app-repartition", partitions=-5),)}),
    ],
)
async def test_refused_internal_topics_spend_no_quota(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, limits: dict[str, float], topics: Any
) -> None:
    """A negative number of partitions would pay debts."""
    ops = [{"key": key, "value": value, "remove": False} for key, value in limits.items()]
    entity = [{"entity_type": "org", "entity_name": "default"}]
    await streams.wire.ask(ALTER_QUOTAS, 1, entries=[{"entity": entity, "ops": ops}], validate_only=False)
    await limit_mutations(streams, 0.1)
    leases = streams.wire.app.broker.context.quotas
    assert leases is not None
    spent: list[int] = []
    mutate = leases.mutate

    async def noted(*args: Any, **options: Any) -> float:
        spent.append(args[3])
        return await mutate(*args, **options)

    monkeypatch.setattr(leases, "mutate", noted)
    joined = await streams.join("a", topology_of(subtopology(**topics)))

    assert (statuses(joined), active(joined), made(streams)) == ([3], [], set())
    assert statuses(await streams.heartbeat("a", joined.member_epoch)) == [3]
    assert spent == []


async def test_quota_that_is_paid_creates_the_rest(streams: Streams) -> None:
    await limit_mutations(streams, 0.1)
    joined = await streams.join("a", changelogs(3))
    assert statuses(joined) == [3]

    await limit_mutations(streams, 1_000.0)
    answer = joined
    async with asyncio.timeout(40):
        while statuses(answer := await streams.heartbeat("a", answer.member_epoch)):
            await asyncio.sleep(0.05)

    assert (active(answer), len(made(streams))) == ([0, 1, 2, 3], 3)
