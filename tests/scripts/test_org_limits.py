"""What an organisation may have: topics and partitions, groups, records, and connections to all brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tidegate.errors import PolicyViolation
from tidegate.groups.directory import delete_group, list_groups
from tidegate.groups.offset_reset import OffsetMove, reset_offsets
from tidegate.log.partitions import create_partition, delete_partition
from tidegate.quotas.entities import Entity, Quota
from tidegate.quotas.group_limits import GroupLimits
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


async def test_org_above_its_limit_is_found_beside_a_faulty_partition(
    store: Store, catalog: Catalog, quotas: Quotas
) -> None:
    pressure = MemoryPressure(store, 0.9)
    limits = org_limits(store, quotas, "first", topics=catalog.all_topics, pressure=pressure)
    await limit(quotas, EVERY_ORG, Quota.LOG_BYTES, 1_000)
    for org in ("acme", "umbrella"):
        topic = await catalog.create(org, "t", 1)
        meta = store.log_keys(org, "t", 0, topic.topic_hex).meta
        await store.command("DEL", meta)
        await store.command(*(("SET", meta, "foreign") if org == "acme" else ("HSET", meta, "bytes", 1_000)))
    await limits.measure_logs()

    assert pressure.full_orgs == {"umbrella"}


async def test_groups_are_admitted_beside_a_faulty_index(store: Store, groups: GroupLimits, quotas: Quotas) -> None:
    await limit(quotas, EVERY_ORG, Quota.GROUPS, 2)
    shard = store.group_keys("acme", "a").shard_keys.shard
    await store.command("SET", store.shard_keys((shard + 1) % 50).groups, "foreign")

    await commit(store, groups, "a")


async def test_records_of_format_record_count_for_the_limit_of_bytes(
    store: Store, catalog: Catalog, quotas: Quotas
) -> None:
    pressure = MemoryPressure(store, 0.9)
    limits = org_limits(store, quotas, "first", topics=catalog.all_topics, pressure=pressure)
    await limit(quotas, EVERY_ORG, Quota.LOG_BYTES, 50_000)
    topic = await catalog.create("acme", "r", 2, {"tidegate.format": "record"})
    for index in range(2):
        log = store.log_keys("acme", "r", index, topic.topic_hex, topic.format).log
        await store.command("XADD", log, "*", "value", "v" * 20_000)
    await limits.measure_logs()
    assert pressure.full_orgs == frozenset()

    await store.command("XADD", log, "*", "value", "v" * 20_000)
    await limits.measure_logs()
    assert pressure.full_orgs == {"acme"}


@pytest.fixture
def groups(store: Store, quotas: Quotas) -> GroupLimits:
    return GroupLimits(store, quotas)


async def commit(store: Store, groups: GroupLimits, group_id: str, org: str = "acme") -> None:
    """Admit a group, then create it by a commit of one offset."""
    keys = store.group_keys(org, group_id)
    await groups.admit(keys)
    await reset_offsets(store, keys, [OffsetMove("t", "0" * 32, 0, 7)], fence=False)


async def test_groups_above_the_limit_are_refused(store: Store, groups: GroupLimits, quotas: Quotas) -> None:
    await commit(store, groups, "before")
    await limit(quotas, EVERY_ORG, Quota.GROUPS, 2)
    await commit(store, groups, "before")
    await commit(store, groups, "second")
    for org in ("umbrella", "acme-2", "acm"):  # those of others do not count
        await commit(store, groups, "first", org)

    with pytest.raises(PolicyViolation, match="groups_max"):
        await commit(store, groups, "third")
    await commit(store, groups, "second")  # it exists
    await limit(quotas, ACME, Quota.GROUPS, 3)  # its own value goes before the default
    await commit(store, groups, "third")
    with pytest.raises(PolicyViolation):
        await commit(store, groups, "fourth")
    await limit(quotas, ACME, Quota.GROUPS, None)
    await limit(quotas, EVERY_ORG, Quota.GROUPS, None)
    await commit(store, groups, "fourth")
    assert len(await list_groups(store, "acme", range(50))) == 4


async def test_racing_groups_stay_within_the_limit(store: Store, quotas: Quotas) -> None:
    await limit(quotas, ACME, Quota.GROUPS, 5)
    brokers = [GroupLimits(store, quotas) for _ in range(3)]

    made = await asyncio.gather(
        *(commit(store, brokers[n % 3], f"g{n // 2}") for n in range(60)), return_exceptions=True
    )

    assert len(await list_groups(store, "acme", range(50))) == 5
    assert all(one is None or isinstance(one, PolicyViolation) for one in made)
    assert 5 <= sum(one is None for one in made) <= 10  # each group was asked for twice


async def test_deleted_groups_free_their_places(
    store: Store, groups: GroupLimits, quotas: Quotas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.quotas.group_limits.RESERVED_MS", 0)
    monkeypatch.setattr("tidegate.quotas.group_limits.FULL_MS", 0)
    await limit(quotas, ACME, Quota.GROUPS, 1)
    await commit(store, groups, "first")
    with pytest.raises(PolicyViolation):
        await commit(store, groups, "second")

    await delete_group(store, store.group_keys("acme", "first"), "1")
    await commit(store, groups, "second")
    assert [one.group_id for one in await list_groups(store, "acme", range(50))] == ["second"]


@pytest.mark.parametrize("damage", [("DEL",), ("SET", "x"), ("HDEL", "=version")])
async def test_lost_reservations_are_counted_again(
    store: Store, groups: GroupLimits, quotas: Quotas, damage: tuple[str, ...]
) -> None:
    await limit(quotas, ACME, Quota.GROUPS, 2)
    await commit(store, groups, "first")
    await commit(store, groups, "second")
    command, *args = damage
    await store.command(command, store.cluster_keys.org_groups("acme"), *args)

    with pytest.raises(PolicyViolation):
        await commit(store, groups, "third")
    await commit(store, groups, "first")


async def test_groups_without_a_limit_cost_no_command(store: Store, groups: GroupLimits) -> None:
    await groups.admit(store.group_keys("acme", "first"))
    assert not await store.command("EXISTS", store.cluster_keys.org_groups("acme"))


async def test_check_of_limits_answers_as_the_change(catalog: Catalog, quotas: Quotas) -> None:
    await limit(quotas, ACME, Quota.PARTITIONS, 4)
    await limit(quotas, ACME, Quota.TOPICS, 2)
    await catalog.create("acme", "t", 2)

    await catalog.steps.check_org_limits("acme", "u", 2)
    await catalog.steps.check_org_limits("acme", "t", 4)
    await catalog.steps.check_org_limits("umbrella", "t", 40)
    for name, count in (("u", 3), ("t", 5)):
        with pytest.raises(PolicyViolation, match="partitions_max"):
            await catalog.steps.check_org_limits("acme", name, count)
    await catalog.create("acme", "u", 1)
    with pytest.raises(PolicyViolation):
        await catalog.steps.check_org_limits("acme", "v", 1)
    assert {topic.name for topic in catalog.topics("acme")} == {"t", "u"}
