"""What administrators ask of a broker that was not notified yet of what another one changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.wire import request
from tests.support.transactions import NONE, Brokers, brokers_of
from tests.support.whole_broker import ClientOf
from tidegate.cluster.audit import Actor
from tidegate.groups.reset_plan import Choice
from tidegate.http import actions, producer_views, topic_views
from tidegate.http.offset_actions import Reset, plan_reset
from tidegate.settings import Settings
from tidegate.store.store import Store
from tidegate.topics.catalog import Catalog

OPERATOR = Actor("ann", "operator", "10.0.0.9")
TIMEOUT = timedelta(seconds=30)
DEADLINE_S = 30.0


@pytest.fixture
async def brokers(store: Store, settings: Settings) -> AsyncIterator[Brokers]:
    """Two brokers, of which the second learns late of changes, with the topic `t`."""
    async with brokers_of(settings, 2) as opened:
        await opened.create("t", 1, **{"cleanup.policy": "compact"})
        await opened.all[1].follow_no_topics()
        yield opened


@pytest.fixture
def late(brokers: Brokers) -> ClientOf:
    """A client of the second broker."""
    return brokers.clients[1]


@pytest.fixture
def catalog(brokers: Brokers) -> Catalog:
    """The first broker's topics."""
    return brokers.all[0].context.catalog


async def without_compaction(catalog: Catalog) -> None:
    await catalog.alter_configs("default", "t", lambda now: {"cleanup.policy": "delete"})


async def made_again(catalog: Catalog, name: str = "t") -> None:
    await catalog.delete("default", name)
    await catalog.create("default", name, 2)


async def test_delete_topics_made_again(late: ClientOf, catalog: Catalog) -> None:
    await made_again(catalog)

    [result] = (await late.ask(request(20, 4, topic_names=("t",), timeout=TIMEOUT))).responses

    assert result.error_code is NONE


async def test_delete_records_of_a_new_partition_with_another_policy(late: ClientOf, catalog: Catalog) -> None:
    await catalog.add_partitions("default", "t", 2)
    await without_compaction(catalog)

    partitions = [{"partition_index": index, "offset": 0} for index in (0, 1)]
    topic = {"name": "t", "partitions": partitions}
    [found] = (await late.ask(request(21, 1, topics=[topic], timeout=TIMEOUT))).topics

    assert [one.error_code for one in found.partitions] == [NONE, NONE]


async def test_describe_configs_after_a_change(late: ClientOf, catalog: Catalog) -> None:
    await without_compaction(catalog)

    resource = {"resource_type": 2, "resource_name": "t",
                "configuration_keys": ("cleanup.policy",)}  # fmt: skip
    [found] = (await late.ask(request(32, 4, resources=[resource]))).results

    assert [one.value for one in found.configs] == ["delete"]


async def test_describe_log_dirs_of_a_new_topic(brokers: Brokers, catalog: Catalog) -> None:
    await catalog.create("default", "new", 2)
    late = brokers.clients[1]

    def named(answer: Any) -> list[str]:
        return [one.name for one in answer.results[0].topics]

    wanted = [{"topic": "new", "partitions": (0, 1)}]
    assert named(await late.ask(request(35, 4, topics=wanted))) == ["new"]
    await catalog.create("default", "newer")
    assert named(await late.ask(request(35, 4, topics=None))) == ["new", "newer", "t"]


async def test_operator_deletes_a_topic_made_again(brokers: Brokers, catalog: Catalog) -> None:
    await made_again(catalog)

    await actions.delete_topic(brokers.all[1].context, OPERATOR, "default", "t")

    await catalog.refresh()
    assert catalog.get("default", "t") is None


async def test_operator_trims_a_new_partition_with_another_policy(brokers: Brokers, catalog: Catalog) -> None:
    await catalog.add_partitions("default", "t", 2)
    await without_compaction(catalog)

    starts = await actions.trim_topic(brokers.all[1].context, OPERATOR, "default", "t", {0: 0, 1: 0})

    assert starts == {0: 0, 1: 0}


async def test_operator_reads_the_topic_of_now(brokers: Brokers, catalog: Catalog) -> None:
    context = brokers.all[1].context
    await catalog.add_partitions("default", "t", 2)
    assert (await producer_views.producers(context, "default", "t"))["partition_count"] == 2
    await catalog.add_partitions("default", "t", 3)
    assert (await topic_views.topic(context, "default", "t"))["partition_count"] == 3


async def test_operator_plans_a_reset_of_a_topic_made_again(brokers: Brokers, catalog: Catalog) -> None:
    await made_again(catalog)
    client = brokers.clients[0]
    client.group_id = "orders"
    assert await client.commit("t", 0) is ErrorCode.none

    wanted = Reset("orders", Choice(to_latest=True), ("t:0",))
    [move] = (await plan_reset(brokers.all[1].context, OPERATOR, "default", wanted))["moves"]

    assert (move["before"], move["after"]) == (0, 0)


@pytest.mark.parametrize("is_late_adding", [True, False])
async def test_produce_in_a_transaction_of_a_topic_made_again(
    brokers: Brokers, catalog: Catalog, is_late_adding: bool
) -> None:
    """Adding the partition and the batch are asked of two brokers, of which one knows the former topic."""
    await brokers.create("u")
    await brokers.clients[1].produce("u", 1)
    await made_again(catalog, "u")
    adding, writing = (brokers.all[1], brokers.all[0]) if is_late_adding else (brokers.all[0], brokers.all[1])
    producer = await brokers.producer().init()
    producer.brokers = Brokers([adding])
    assert await producer.add(("u", 0)) == [NONE]

    producer.brokers = Brokers([writing])
    async with asyncio.timeout(DEADLINE_S):
        while (code := (await producer.produce("u", version=9))[0]) is ErrorCode.unknown_topic_or_partition:
            assert not is_late_adding
    assert code is NONE
    await producer.end(True, version=4)

    found = await Brokers([brokers.all[0]]).fetch("u", committed=True, end=2)
    assert (found.offsets, found.last_stable_offset) == ([0], 2)


async def test_produce_outside_the_transaction_of_a_topic_made_again(brokers: Brokers, catalog: Catalog) -> None:
    await brokers.create("u")
    producer = await brokers.producer().init()
    assert await producer.add(("u", 0)) == [NONE]
    await producer.end(True, version=4)
    await made_again(catalog, "u")

    producer.brokers = Brokers([brokers.all[0]])
    assert (await producer.produce("u", version=9))[0] is ErrorCode.invalid_txn_state
