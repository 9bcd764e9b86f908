"""What an organisation may have: topics and partitions, records, and connections to all brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tidegate.errors import PolicyViolation
from tidegate.log.partitions import create_partition, delete_partition
from tidegate.quotas.entities import Entity, Quota
from tidegate.quotas.org_limits import OrgLimits
from tidegate.quotas.table import Quotas
from tidegate.store.memory_pressure import MemoryPressure
from tidegate.store.store import Store
from tidegate.topics.catalog import Catalog, PartitionStorage

ACME, EVERY_ORG = Entity.of({"org": "acme"}), Entity.of({"org": None})


@pytest.fixture
async def catalog(store: Store) -> AsyncIterator[Catalog]:
    opened = Catalog(store, store.settings, PartitionStorage(create_partition, delete_partition))
    await opened.start()
    yield opened
    await opened.close()


@pytest.fixture
async def quotas(store: Store) -> AsyncIterator[Quotas]:
    opened = Quotas(store, store.settings, lambda: None)
    await opened.start()
    yield opened
    await opened.close()


async def limit(quotas: Quotas, entity: Entity, quota: Quota, value: float | None) -> None:
    await quotas.change("default", [(entity, quota, value)], "User:admin")


async def test_topics_above_the_limit_are_refused(catalog: Catalog, quotas: Quotas) -> None:
    await catalog.create("acme", "first", 1)
    await limit(quotas, EVERY_ORG, Quota.TOPICS, 2)
    await catalog.create("acme", "second", 1)
    for org in ("umbrella", "acme-2", "acm"):  # names of others do not count
        await catalog.create(org, "first", 1)

    with pytest.raises(PolicyViolation, match="topics_max"):
        await catalog.create("acme", "third", 1)
    await catalog.delete("acme", "first")
    await catalog.create("acme", "third", 1)

    await limit(quotas, ACME, Quota.TOPICS, 3)  # its own value goes before the default
    await catalog.create("acme", "fourth", 1)
    assert len(catalog.topics("acme")) == 3


async def test_partitions_above_the_limit_are_refused(catalog: Catalog, quotas: Quotas) -> None:
    await limit(quotas, ACME, Quota.PARTITIONS, 10)
    await catalog.create("acme", "t", 4)
    await catalog.create("acme", "u", 4)

    with pytest.raises(PolicyViolation, match="partitions_max"):
        await catalog.add_partitions("acme", "t", 7)
    with pytest.raises(PolicyViolation):
        await catalog.create("acme", "v", 3)
    assert (await catalog.add_partitions("acme", "t", 6)).partition_count == 6
    assert (await catalog.create("umbrella", "t", 40)).partition_count == 40


async def test_racing_creations_stay_within_the_limit(catalog: Catalog, quotas: Quotas) -> None:
    await limit(quotas, ACME, Quota.TOPICS, 3)

    made = await asyncio.gather(*(catalog.create("acme", f"t{n}", 1) for n in range(12)), return_exceptions=True)

    assert len(catalog.topics("acme")) == 3
    assert sum(isinstance(one, PolicyViolation) for one in made) == 9


def org_limits(store: Store, quotas: Quotas, process: str, **options: Any) -> OrgLimits:
    pressure = options.get("pressure") or MemoryPressure(store, 0.9)
    return OrgLimits(
        store, quotas, pressure, process, options.get("connections", lambda: []), options.get("topics", lambda: [])
    )


async def test_connections_are_counted_over_all_brokers(store: Store, quotas: Quotas) -> None:
    await limit(quotas, ACME, Quota.CONNECTIONS, 5)
    first = org_limits(store, quotas, "first", connections=lambda: ["acme", "acme", "umbrella"])
    second = org_limits(store, quotas, "second")
    await first.report_connections()
    await second.report_connections()

    assert [second.admits("acme") for _ in range(4)] == [True, True, True, False]
    assert all(second.admits("umbrella") for _ in range(10))
    await second.report_connections()  # those it admitted are not connected any more
    assert second.admits("acme")

    await limit(quotas, ACME, Quota.CONNECTIONS, None)
    assert all(second.admits("acme") for _ in range(10))


async def test_connections_of_a_broker_that_died_are_forgotten(
    store: Store, quotas: Quotas, monkeypatch: pytest.MonkeyPatch
) -> None:
    await limit(quotas, ACME, Quota.CONNECTIONS, 1)
    monkeypatch.setattr("tidegate.quotas.org_limits.REPORTED_MS", 1)
    dead, other = org_limits(store, quotas, "dead", connections=lambda: ["acme"]), org_limits(store, quotas, "other")
    await dead.report_connections()
    async with asyncio.timeout(30):
        while True:
            await other.report_connections()
            if other.admits("acme"):
                break

    assert await store.command("HKEYS", store.cluster_keys.org_connections) == [b"other"]


async def test_nothing_is_reported_without_limits(store: Store, quotas: Quotas) -> None:
    limits = org_limits(store, quotas, "first", connections=lambda: ["acme"])
    await limits.start()
    try:
        await asyncio.sleep(0)
        assert limits.admits("acme")
        assert not await store.command("EXISTS", store.cluster_keys.org_connections)
        await limit(quotas, ACME, Quota.CONNECTIONS, 1)
        limits.on_quotas_changed()
        async with asyncio.timeout(30):
            while not await store.command("EXISTS", store.cluster_keys.org_connections):
                await asyncio.sleep(0.01)
        assert not limits.admits("acme")
    finally:
        await limits.close()


async def test_org_with_records_above_its_limit_is_found(store: Store, catalog: Catalog, quotas: Quotas) -> None:
    pressure = MemoryPressure(store, 0.9)
    limits = org_limits(store, quotas, "first", topics=catalog.all_topics, pressure=pressure)
    await limit(quotas, EVERY_ORG, Quota.LOG_BYTES, 1_000)
    for org, sizes in (("acme", (600, 400)), ("umbrella", (600, 399))):
        topic = await catalog.create(org, "t", 2)
        for index, size in enumerate(sizes):
            keys = store.log_keys(org, "t", index, topic.topic_hex)
            await store.command("HSET", keys.meta, "bytes", size)
    await limits.measure_logs()
    await pressure.measure()

    assert (pressure.full_orgs, pressure.is_high) == ({"acme"}, True)
    await limit(quotas, EVERY_ORG, Quota.LOG_BYTES, None)
    await limits.measure_logs()
    await pressure.measure()
    assert (pressure.full_orgs, pressure.is_high) == (frozenset(), False)
