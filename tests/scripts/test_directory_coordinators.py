"""FindCoordinator and ListGroups over several brokers, one of which loses its lease (scenario 97)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from tests.kit.wire import request
from tests.scripts.test_directory_groups import listed
from tests.scripts.test_offsets_commit import commit_request
from tests.support.clock import SteppedClock
from tests.support.handlers import Broker, FakeCatalog, topic
from tidegate.apis import discovery, group_admin
from tidegate.cluster.broker_lease import SINGLE_NODE_ID, BrokerLease
from tidegate.settings import Settings
from tidegate.store.store import Store

FIND_COORDINATOR, NONE, INVALID_REQUEST = 10, 0, 42
GROUPS = [f"group {number}/ü" for number in range(40)]

assert discovery and group_admin  # importing the modules registers their handlers


def with_membership(store: Store, broker_lease: Any, settings: Settings | None = None) -> Broker:
    """Handlers that know the others by leases."""
    broker = Broker(store, FakeCatalog(topic("t1")))
    broker.context.broker_lease = broker_lease
    broker.context.settings = settings or store.settings
    return broker


@pytest.fixture
async def brokers(clock: SteppedClock) -> AsyncIterator[list[Broker]]:
    """Three, whose leases the test renews."""
    store = clock._store
    memberships = [BrokerLease(store, store.settings, {"PLAINTEXT": ("h", port)}, None) for port in (1, 2, 3)]
    for broker_lease in memberships:
        await broker_lease.start()
        await broker_lease._loops.close()
    await renew(memberships)
    yield [with_membership(store, broker_lease) for broker_lease in memberships]


async def renew(memberships: Sequence[BrokerLease]) -> None:
    for broker_lease in memberships:
        await broker_lease.renew()


async def coordinator(broker: Broker, group_id: str, version: int = 6) -> tuple[int, str, int]:
    """Node id, host and port that a broker names for a group."""
    if version >= 4:
        response = await broker.ask(request(FIND_COORDINATOR, version, coordinator_keys=(group_id,), key_type=0))
        (found,) = response.coordinators
        assert found.key == group_id
    else:
        found = await broker.ask(
            request(FIND_COORDINATOR, version, key=group_id, **({"key_type": 0} if version else {}))
        )
    assert found.error_code.value == NONE
    if version >= 1:
        assert found.error_message == ("NONE" if version < 4 else "")  # Kafka's way to say that there is none
    return found.node_id, found.host, found.port


async def test_scenario_97_all_versions_and_all_brokers_name_the_same(brokers: list[Broker]) -> None:
    for group_id in (*GROUPS, ""):
        named = {await coordinator(broker, group_id, version) for broker in brokers for version in range(7)}
        assert len(named) == 1


async def test_scenario_97_no_coordinators_of_other_kinds(brokers: list[Broker]) -> None:
    for version in range(1, 7):
        key: dict[str, Any] = {"coordinator_keys": ("g", "h")} if version >= 4 else {"key": "g"}
        response = await brokers[0].ask(request(FIND_COORDINATOR, version, key_type=9, **key))
        for one in response.coordinators if version >= 4 else [response]:
            assert (one.error_code.value, one.node_id, one.host, one.port) == (INVALID_REQUEST, -1, "", -1)
            assert one.error_message


async def test_scenario_97_a_broker_without_its_lease_is_not_named(clock: SteppedClock, brokers: list[Broker]) -> None:
    memberships = [broker.context.broker_lease for broker in brokers]
    dead = memberships[2].node_id
    for group_id in GROUPS:
        await brokers[0].ask(commit_request(9, group_id=group_id))
    before = {group_id: (await coordinator(brokers[0], group_id))[0] for group_id in GROUPS}
    assert dead in before.values()

    for _ in range(4):
        await clock.advance(250)
        await renew(memberships[:2])

    after = {group_id: (await coordinator(brokers[0], group_id))[0] for group_id in GROUPS}
    assert dead not in after.values()
    assert all(after[group_id] == node_id for group_id, node_id in before.items() if node_id != dead)
    assert after == {group_id: (await coordinator(brokers[1], group_id))[0] for group_id in GROUPS}
    lists = [[one[0] for one in await listed(broker)] for broker in brokers[:2]]
    assert sorted([*lists[0], *lists[1]]) == sorted(GROUPS)
    assert all(lists)


async def test_behind_one_address_every_broker_lists_all_groups(clock: SteppedClock) -> None:
    store = clock._store
    settings = store.settings.model_copy(update={"address_mode": "single"})
    brokers = []
    for port in (1, 2):
        broker_lease = BrokerLease(store, settings, {"PLAINTEXT": ("h", port)}, None)
        await broker_lease.start()
        await broker_lease._loops.close()
        brokers.append(with_membership(store, broker_lease, settings))
    await renew([broker.context.broker_lease for broker in brokers])
    for group_id in GROUPS:
        await brokers[0].ask(commit_request(9, group_id=group_id))

    for broker in brokers:
        assert [one[0] for one in await listed(broker)] == sorted(GROUPS)
        assert (await coordinator(broker, GROUPS[0]))[0] == SINGLE_NODE_ID
