"""Keys of a KIP-848 group are lost under a broker that has the group cached: its members join again by themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.consumer_wire import Wire, code, wire_of
from tests.support.valkey import ValkeyServer


@pytest.fixture
async def wire(valkey: ValkeyServer) -> AsyncIterator[Wire]:
    async with wire_of(valkey) as opened:
        yield opened


@pytest.mark.parametrize("lost", [("consumers",), ("group",), ("consumers", "group")])
async def test_member_of_a_group_without_its_keys_joins_again(wire: Wire, lost: tuple[str, ...]) -> None:
    store, keys = wire.app.broker.store, wire.app.broker.store.group_keys("default", wire.group)
    epochs = {}
    for member in ("a", "b"):
        epochs[member] = (await wire.join(member, "t1", instance_id=member)).member_epoch
    await store.command("DEL", *(getattr(keys, name) for name in lost))

    refused = []
    for member in ("a", "b"):
        answer = await wire.heartbeat(member, epochs[member], instance_id=member)
        while code(answer) == "NONE":  # from a snapshot, until the renewal of its session refutes it
            answer = await wire.heartbeat(member, epochs[member], instance_id=member)
        refused.append(code(answer))
    for member in ("a", "b"):
        epochs[member] = (await wire.join(member, "t1", instance_id=member)).member_epoch
        assert await wire.commit(member, epochs[member]) == "NONE"

    # Without any key there was no such group, as Kafka answers; a record says that a member is to join again.
    expected = "GROUP_ID_NOT_FOUND" if len(lost) == 2 else "UNKNOWN_MEMBER_ID"
    assert refused == [expected, expected]
    assert await store.command("HLEN", keys.consumers) == 2
