"""Requests that waited in the socket of a broker that stood still are not executed after newer ones.

Each test stops a broker (SIGSTOP), has a client send to it and give up, as clients do when a request timed out,
does the newer thing through another broker, and wakes the first.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from bench.cluster import CONNECTIONS_STAY, BrokerProcess, Cluster
from tests.kit.member import Member
from tests.kit.wire import RawClient, request
from tests.support.log_broker import produce_request
from tests.support.logs import batch_bytes

METADATA, CREATE_TOPICS, DELETE_TOPICS, LIST_OFFSETS, COMMIT, CONSUMER_HEARTBEAT = 3, 19, 20, 2, 8, 68
TOPIC, GROUP = "orders", "readers"
TOKEN = "late" * 4
SETTINGS = {
    "TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "TIDEGATE_ADMIN_OPERATOR_TOKEN": TOKEN,
}
CONSTANTS = CONNECTIONS_STAY | {"tidegate.server.stalls.LATE_S": 4.0}
"""The stops take 5 s. A busy machine lets the other broker stand still too, which then closes connections by the same
rule; it rarely does so for more than 4 s."""
WAKE_S = 2.0
"""After a wake-up, time in which what is executed by mistake is executed."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2, settings=SETTINGS, constants=CONSTANTS) as running:
        yield running


@asynccontextmanager
async def stopped(broker: BrokerProcess) -> AsyncIterator[None]:
    """The broker stands still for what is inside; behind it, it had the time to execute what it found."""
    broker.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        broker.signal(signal.SIGCONT)
    async with await RawClient.connect(broker.address) as client:
        await end_offset(client)
    await asyncio.sleep(WAKE_S)


async def create(client: RawClient, partitions: int = 1) -> UUID:
    topic = {"name": TOPIC, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": []}
    response = await client.ask(request(CREATE_TOPICS, 7, topics=[topic], timeout=30_000, validate_only=False))
    assert response.topics[0].error_code is ErrorCode.none, response
    found: UUID = response.topics[0].topic_id
    return found


def delete_request() -> Any:
    return request(DELETE_TOPICS, 6, topics=[{"name": TOPIC, "topic_id": None}], timeout=30_000)


async def end_offset(client: RawClient) -> int:
    return await offset_at(client, -1)


async def start_offset(client: RawClient) -> int:
    return await offset_at(client, -2)


async def offset_at(client: RawClient, timestamp: int) -> int:
    topics = [{"name": TOPIC, "partitions": [{"partition_index": 0, "timestamp": timestamp}]}]
    response = await client.ask(request(LIST_OFFSETS, 6, replica_id=-1, isolation_level=0, topics=topics))
    return int(response.topics[0].partitions[0].offset)


def commit_request(offset: int, member: Member | None = None) -> Any:
    return (member or Member(None, GROUP)).commit_request({TOPIC: {0: offset}}, metadata=None)


def consumer_heartbeat(member_id: str, epoch: int) -> Any:
    joins = epoch == 0
    return request(
        CONSUMER_HEARTBEAT, 1, group_id=GROUP, member_id=member_id, member_epoch=epoch,
        rebalance_timeout=30_000 if joins else -1, subscribed_topic_names=(TOPIC,) if joins else None,
        topic_partitions=() if joins else None,
    )  # fmt: skip


def given(answer: Any) -> tuple[int, ...]:
    """Partitions that a heartbeat's answer assigns; none also where it changes nothing."""
    assert answer.error_code is ErrorCode.none
    topics = answer.assignment.topic_partitions if answer.assignment is not None else ()
    return tuple(index for topic in topics for index in topic.partitions)


async def leave_unanswered(client: RawClient, request: Any) -> None:
    """Send to a broker that does not answer, and stay connected."""
    client.send(request)
    await client.writer.drain()


async def gave_up(client: RawClient, request: Any) -> None:
    """Send to a broker that does not answer, and close."""
    await leave_unanswered(client, request)
    await client.close()


RESET = f"/api/v1/groups/{GROUP}/offsets/reset", {"to_earliest": True, "all_topics": True, "fence": True}
TRIM = f"/api/v1/topics/{TOPIC}/trim", {"partitions": [{"partition": 0, "before": None}]}


class AdminConnection:
    """A connection to a broker's admin HTTP."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, broker: BrokerProcess) -> AdminConnection:
        return cls(*await asyncio.open_connection("127.0.0.1", broker.admin_port))

    async def send(self, method: str, path: str, body: Any = None) -> None:
        """Send an operator's request."""
        text = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
        self._writer.write(head.encode() + text)
        await self._writer.drain()

    async def status(self) -> int:
        """The status of the answer."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        await self._reader.readexactly(int(head.partition("Content-Length: ")[2].split()[0]))
        return int(head.split()[1])

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


async def administer(broker: BrokerProcess, method: str, path: str, body: Any = None) -> None:
    """An operator's request that is executed."""
    connection = await AdminConnection.open(broker)
    await connection.send(method, path, body)
    assert await connection.status() == 200
    await connection.close()


@asynccontextmanager
async def given_up(broker: BrokerProcess, is_new: bool, *asked: Any) -> AsyncIterator[None]:
    """An operator sends a request to a broker that is stopped, and gives up before it is awake.

    `is_new`: by a connection that is made while the broker is stopped.
    """
    connection = None if is_new else await AdminConnection.open(broker)
    async with stopped(broker):
        connection = connection or await AdminConnection.open(broker)
        await connection.send(*asked)
        await asyncio.sleep(5)
        await connection.close()
        yield


of_both_connections = pytest.mark.parametrize("is_new", [False, True])


@of_both_connections
async def test_admin_reset_waited_in_stopped_broker_offset_stays(cluster: Cluster, is_new: bool) -> None:
    one, two = cluster.brokers
    async with await RawClient.connect(two.address) as beside:
        await create(beside)
        member = Member(beside, GROUP)
        assert await member.commit(TOPIC, {0: 20}) == {0: ErrorCode.none}
        async with given_up(one, is_new, "POST", *RESET):
            await administer(two, "POST", *RESET)
            assert await member.committed(TOPIC, [0]) == {0: 0}
            assert await member.commit(TOPIC, {0: 5000}) == {0: ErrorCode.none}
        assert await member.committed(TOPIC, [0]) == {0: 5000}


async def test_admin_reset_of_connected_operator_waited_answers_503(cluster: Cluster) -> None:
    """The operator waits for its answer, and repeated the request elsewhere."""
    one, two = cluster.brokers
    async with await RawClient.connect(two.address) as beside:
        await create(beside)
        member = Member(beside, GROUP)
        assert await member.commit(TOPIC, {0: 20}) == {0: ErrorCode.none}
        connection = await AdminConnection.open(one)
        async with stopped(one):
            await connection.send("POST", *RESET)
            await asyncio.sleep(5)
            await administer(two, "POST", *RESET)
            assert await member.commit(TOPIC, {0: 5000}) == {0: ErrorCode.none}
        assert await connection.status() == 503
        assert await member.committed(TOPIC, [0]) == {0: 5000}
        await connection.send("POST", *RESET)
        assert await connection.status() == 200
        await connection.close()


@of_both_connections
async def test_admin_trim_waited_in_stopped_broker_new_records_stay(cluster: Cluster, is_new: bool) -> None:
    one, two = cluster.brokers
    async with await RawClient.connect(two.address) as beside:
        await create(beside)
        await beside.ask(produce_request([(TOPIC, [(0, batch_bytes(count=3))])]))
        async with given_up(one, is_new, "POST", *TRIM):
            await administer(two, "POST", *TRIM)
            assert await start_offset(beside) == 3
            await beside.ask(produce_request([(TOPIC, [(0, batch_bytes(count=4))])]))
        assert (await start_offset(beside), await end_offset(beside)) == (3, 7)


@of_both_connections
async def test_admin_delete_waited_in_stopped_broker_new_topic_stays(cluster: Cluster, is_new: bool) -> None:
    one, two = cluster.brokers
    async with await RawClient.connect(two.address) as beside:
        await create(beside)
        async with given_up(one, is_new, "DELETE", f"/api/v1/topics/{TOPIC}"):
            deleted = await beside.ask(delete_request())
            assert deleted.responses[0].error_code is ErrorCode.none
            await create(beside)
        assert await end_offset(beside) == 0


@pytest.mark.parametrize("seconds", [5, 15])
async def test_commit_waited_in_stopped_broker_offset_stays(cluster: Cluster, seconds: int) -> None:
    one, two = cluster.brokers
    member = Member(await RawClient.connect(one.address), GROUP, session_timeout_ms=30_000)
    async with await RawClient.connect(two.address) as beside:
        await create(beside)
        await member.round()
        async with stopped(one):
            await gave_up(member.client, commit_request(10, member))
            member.client = beside
            await asyncio.sleep(seconds)
            assert await member.commit(TOPIC, {0: 20}) == {0: ErrorCode.none}
        assert await member.committed(TOPIC, [0]) == {0: 20}


async def test_commit_of_connected_client_waited_offset_stays(cluster: Cluster) -> None:
    """The client is still connected, and was answered elsewhere."""
    one, two = cluster.brokers
    async with await RawClient.connect(two.address) as beside, await RawClient.connect(one.address) as client:
        await create(beside)
        member = Member(beside, GROUP)
        async with stopped(one):
            client.send(commit_request(10))
            await client.writer.drain()
            await asyncio.sleep(5)
            assert await member.commit(TOPIC, {0: 20}) == {0: ErrorCode.none}
        assert await member.committed(TOPIC, [0]) == {0: 20}


@pytest.mark.parametrize("stays_connected", [False, True])
async def test_commit_of_connection_made_to_stopped_broker_offset_stays(
    cluster: Cluster, stays_connected: bool
) -> None:
    """The kernel accepts for the stopped broker: the connection waits in the listen queue, the commit behind it."""
    one, two = cluster.brokers
    async with await RawClient.connect(two.address) as beside:
        await create(beside)
        member = Member(beside, GROUP)
        async with stopped(one):
            client = await RawClient.connect(one.address)
            await (leave_unanswered if stays_connected else gave_up)(client, commit_request(10))
            await asyncio.sleep(5)
            assert await member.commit(TOPIC, {0: 20}) == {0: ErrorCode.none}
        assert await member.committed(TOPIC, [0]) == {0: 20}
        await client.close()


async def test_consumer_join_of_connection_made_to_stopped_broker_partition_has_one_owner(cluster: Cluster) -> None:
    """A late join of KIP-848 says that the member owns nothing: what it owns would be given to the next one."""
    one, two = cluster.brokers
    async with await RawClient.connect(two.address) as beside:
        await create(beside, partitions=2)
        async with stopped(one):
            await gave_up(await RawClient.connect(one.address), consumer_heartbeat("first", 0))
            assert given(await beside.ask(consumer_heartbeat("first", 0))) == (0, 1)
            second = await beside.ask(consumer_heartbeat("second", 0))
            assert given(second) == ()
            await asyncio.sleep(5)
        assert given(await beside.ask(consumer_heartbeat("second", second.member_epoch))) == ()


async def test_produce_waited_in_stopped_broker_not_appended(cluster: Cluster) -> None:
    one, two = cluster.brokers
    client = await RawClient.connect(one.address)
    async with await RawClient.connect(two.address) as beside:
        await create(beside)
        assert await end_offset(client) == 0
        async with stopped(one):
            await gave_up(client, produce_request([(TOPIC, [(0, batch_bytes(count=3))])]))
            await asyncio.sleep(5)
            answer = await beside.ask(produce_request([(TOPIC, [(0, batch_bytes(count=4))])]))
            assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none
        assert await end_offset(beside) == 4


async def test_delete_topics_waited_in_stopped_broker_new_topic_stays(cluster: Cluster) -> None:
    one, two = cluster.brokers
    client = await RawClient.connect(one.address)
    async with await RawClient.connect(two.address) as beside:
        await create(beside)
        async with stopped(one):
            await gave_up(client, delete_request())
            await asyncio.sleep(5)
            deleted = await beside.ask(delete_request())
            assert deleted.responses[0].error_code is ErrorCode.none
            await create(beside)
        assert await end_offset(beside) == 0


async def test_join_waited_in_stopped_broker_group_stays_stable(cluster: Cluster) -> None:
    """The leader's JoinGroup would begin a rebalance."""
    one, two = cluster.brokers
    member = Member(await RawClient.connect(one.address), GROUP, session_timeout_ms=30_000)
    async with await RawClient.connect(two.address) as beside:
        await member.round()
        before = member.generation
        async with stopped(one):
            await gave_up(member.client, member.join_request())
            await asyncio.sleep(5)
            member.client = beside
            await member.round()
            assert member.generation == before + 1
        assert await member.heartbeat() is ErrorCode.none
        await member.leave()
