"""A broker that was paused for longer than its lease: it serves nobody under a node id that may be another's."""

from __future__ import annotations

import asyncio
import signal
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from redis import Redis

from bench.cluster import CONNECTIONS_STAY, BrokerProcess, Cluster
from tests.kit.member import Member
from tests.kit.wire import RawClient, request
from tidegate.cluster.broker_lease import NODE_ID_QUARANTINE_MS
from tidegate.settings import Settings
from tidegate.store.store import Store

TIMEOUT_MS = 4_000
SETTINGS = {
    "TIDEGATE_BROKER_LEASE_TIMEOUT_MS": str(TIMEOUT_MS),
    "TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "TIDEGATE_REDIS_COMMAND_TIMEOUT_MS": "2000",
}
"""Commands time out in a pause, as in one that outlasts any lease: links break at its end, all by themselves."""
PAUSE_S = TIMEOUT_MS / 1000 + 1.0
SESSION_MS = 120_000
"""Longer than a pause and the start of another broker, however loaded the machine is."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=0, settings=SETTINGS) as running:
        yield running


def add(cluster: Cluster, **settings: str) -> BrokerProcess:
    own: Mapping[str, str] = {**SETTINGS, **{f"TIDEGATE_{name}": value for name, value in settings.items()}}
    name = f"broker-{len(cluster.brokers) + 1}"
    added = BrokerProcess(cluster.redis_url, Path(cluster.directory), name, own, CONNECTIONS_STAY)
    cluster.brokers.append(added)
    added.start()
    added.wait_ready()
    return added


def metadata() -> Any:
    return request(3, 12, topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False)


def end_quarantine(cluster: Cluster, node_id: int) -> None:
    """Have the lease, which has ended, end so much earlier that its node id may be given away."""
    with Redis.from_url(cluster.redis_url) as redis:
        redis.zincrby("tidegate:{cluster}:leases", -NODE_ID_QUARANTINE_MS, str(node_id))


async def ids(client: RawClient) -> dict[int, int]:
    """Node id -> port, as a client gets it."""
    response = await client.ask(metadata())
    return {int(broker.node_id): int(broker.port) for broker in response.brokers}


async def learns(client: RawClient, expected: dict[int, int]) -> bool:
    """Whether the broker asked comes to list these brokers: it learns of others when it renews its own lease."""
    deadline = asyncio.get_running_loop().time() + 60
    while (reported := await ids(client)) != expected:
        if asyncio.get_running_loop().time() > deadline:
            print(f"got {reported}, expected {expected}")
            return False
        await asyncio.sleep(0.02)
    return True


@asynccontextmanager
async def paused(broker: BrokerProcess) -> AsyncIterator[None]:
    """The broker stands still, however long what is inside takes."""
    broker.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        broker.signal(signal.SIGCONT)


async def logged(broker: BrokerProcess, event: str) -> None:
    """Wait until its log has this event. Raises TimeoutError."""
    async with asyncio.timeout(60):
        while event not in broker.log_path.read_text():
            await asyncio.sleep(0.05)


def ready(broker: BrokerProcess) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.admin_port}/health/ready", timeout=30):
            return True
    except (urllib.error.URLError, OSError):
        return False


async def set_message_max_bytes(client: RawClient, node_id: str, size: str) -> None:
    """Store the largest batch of one broker."""
    config = {"name": "message.max.bytes", "config_operation": 0, "value": size}
    resource = {"resource_type": 4, "resource_name": node_id, "configs": [config]}
    answer = await client.ask(request(44, 1, resources=[resource], validate_only=False))
    assert answer.responses[0].error_code is ErrorCode.none


async def becomes(client: RawClient, size: str) -> bool:
    """Whether the broker asked comes to this largest batch of topic `t`, which has none of its own."""
    resource = {
        "resource_type": 2, "resource_name": "t",
        "configuration_keys": ["max.message.bytes"],
    }  # fmt: skip
    describe = request(32, 4, resources=[resource], include_synonyms=False, include_documentation=False)
    deadline = asyncio.get_running_loop().time() + 60
    while (reported := (await client.ask(describe)).results[0].configs[0].value) != size:
        if asyncio.get_running_loop().time() > deadline:
            print(f"got {reported}, expected {size}")
            return False
        await asyncio.sleep(0.02)
    return True


async def closed(client: RawClient) -> bool:
    """Whether the broker closes the connection soon; whatever it answers before is against the rule."""
    try:
        answer = await asyncio.wait_for(client.receive(), 30)
    except (asyncio.IncompleteReadError, ConnectionError):
        return True
    except TimeoutError:
        return False
    raise AssertionError(f"answered without a lease: {answer}")


async def test_lease_same_node_id_preserves_its_clients(cluster: Cluster) -> None:
    one, two = add(cluster), add(cluster)
    async with await RawClient.connect(one.address) as client, await RawClient.connect(two.address) as beside:
        assert await learns(client, {1: one.port, 2: two.port})
        async with paused(one):
            await asyncio.sleep(PAUSE_S)
            assert await learns(beside, {2: two.port})
            waiting = asyncio.create_task(ids(client))  # read as soon as the broker turns again
            await asyncio.sleep(0.1)

        assert await waiting == {1: one.port, 2: two.port}
        await logged(one, "lease_lost")  # its renewal may be answered after the request
        assert one.log_path.read_text().count("lease_lost") == 1


async def test_lease_another_node_id_closes_clients_and_continues_under_it(cluster: Cluster) -> None:
    one, two = add(cluster), add(cluster)
    client = await RawClient.connect(one.address)
    member = Member(client, "g", session_timeout_ms=SESSION_MS)
    await member.round()
    async with paused(one):
        await asyncio.sleep(PAUSE_S)
        end_quarantine(cluster, 1)
        three = await asyncio.to_thread(add, cluster)
        client.send(metadata())

    assert await closed(client)
    async with await RawClient.connect(one.address) as again:
        assert await learns(again, {1: three.port, 2: two.port, 3: one.port})
        member.client = again
        assert await member.heartbeat() is ErrorCode.none
        await member.leave()
    store = Store(Settings(redis_url=cluster.redis_url))
    await store.start()
    [[_, last]] = await store.command(
        "XREVRANGE", store.group_keys("default", "g").shard_keys.events, "+", "-", "COUNT", 1
    )
    await store.close()
    fields = dict(zip(last[::2], last[1::2], strict=True))
    assert fields[b"broker"] == b"3", fields
    await client.close()


async def test_configs_of_the_node_id_change_with_it(cluster: Cluster) -> None:
    one, two = add(cluster), add(cluster)
    async with await RawClient.connect(one.address) as client:
        created = {"name": "t", "num_partitions": 1, "replication_factor": 1}
        topics = [{**created, "assignments": [], "configs": []}]
        await client.ask(request(19, 7, topics=topics, timeout=timedelta(seconds=60), validate_only=False))
        await set_message_max_bytes(client, "1", "1000")
        assert await becomes(client, "1000")
        async with paused(one):
            await asyncio.sleep(PAUSE_S)
            end_quarantine(cluster, 1)
            three = await asyncio.to_thread(add, cluster)
        assert await closed(client)
    async with await RawClient.connect(one.address) as again, await RawClient.connect(three.address) as other:
        assert await learns(again, {1: three.port, 2: two.port, 3: one.port})
        assert await becomes(again, "1048588")
        assert await becomes(other, "1000")


async def test_fixed_id_that_another_took_is_served_by_that_alone(cluster: Cluster) -> None:
    one = add(cluster, NODE_ID="7")
    client = await RawClient.connect(one.address)
    assert await ids(client) == {7: one.port}
    async with paused(one):
        await asyncio.sleep(PAUSE_S)
        other = await asyncio.to_thread(add, cluster, NODE_ID="7")
        client.send(metadata())

    assert await closed(client)
    await logged(one, "node_id_held_by_another")
    await asyncio.sleep(1)
    assert not await asyncio.to_thread(ready, one)
    assert one.log_path.read_text().count("node_id_held_by_another") == 1
    late = await RawClient.connect(one.address)
    late.send(metadata())
    assert await closed(late)

    assert await asyncio.to_thread(other.drain) == 0
    await asyncio.to_thread(one.wait_ready)
    async with await RawClient.connect(one.address) as again:
        assert await ids(again) == {7: one.port}
    for used in (client, late):
        await used.close()


async def test_parked_join_closed_connection_preserves_its_place(cluster: Cluster) -> None:
    one, two = add(cluster), add(cluster)
    client = await RawClient.connect(two.address)
    leader = Member(client, "g", session_timeout_ms=SESSION_MS, rebalance_timeout_ms=SESSION_MS)
    await leader.round()
    at_one = await RawClient.connect(one.address)
    joining = Member(at_one, "g", session_timeout_ms=SESSION_MS, rebalance_timeout_ms=SESSION_MS)
    joining.member_id = (await at_one.ask(joining.join_request())).member_id
    at_one.send(joining.join_request())
    await asyncio.sleep(0.3)
    async with paused(one):
        await asyncio.sleep(PAUSE_S)
        end_quarantine(cluster, 1)
        await asyncio.to_thread(add, cluster)  # takes the node id of the one that is paused
    assert await closed(at_one)

    at_two = await RawClient.connect(two.address)
    joining.client = at_two
    again, rejoined = await asyncio.gather(joining.join(), leader.join())
    assert again.error_code is rejoined.error_code is ErrorCode.none
    assert again.generation_id == rejoined.generation_id == 2
    assert {again.member_id, rejoined.member_id} == {member.member_id for member in [*rejoined.members, *again.members]}
    for used in (client, at_one, at_two):
        await used.close()


async def test_redis_unavailable_clients_get_retriable_codes(cluster: Cluster) -> None:
    """Longer than a lease: nobody else can have it either, so the connections stay."""
    one = add(cluster)
    async with await RawClient.connect(one.address) as client:
        member = Member(client, "g", session_timeout_ms=SESSION_MS)
        await member.round()
        cluster.kill_server()
        codes = set()
        for _ in range(int(PAUSE_S * 5)):
            codes.add(await member.heartbeat())
            await asyncio.sleep(0.2)
        assert codes == {ErrorCode.coordinator_not_available}
        await asyncio.to_thread(cluster.start_server)
        await asyncio.to_thread(one.wait_ready)
        assert await ids(client) == {1: one.port}
