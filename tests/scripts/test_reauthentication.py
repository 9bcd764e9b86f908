"""Clients that authenticate again while a request of theirs waits at the broker (KIP-368).

Replies leave in the order of the requests, so the handshake is answered behind the waiting request, however long that
waits; meanwhile the session may end, and nothing is closed or lost for that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer
from kio.schema.errors import ErrorCode

from tests.kit.member import Member
from tests.kit.wire import RawClient, request
from tests.scripts.test_security_scenarios import PASSWORDS, Listener, listening, plain
from tests.support.log_broker import fetch_request, produce_request
from tests.support.valkey import ValkeyServer
from tidegate.records.build import NewRecord, build_batch
from tidegate.telemetry.metrics import metrics

NONE = ErrorCode.none
SESSION_MS = 3_000
BATCH = build_batch([NewRecord(b"v", b"k", 1_700_000_000_000)])


class Clock:
    """The clock of SASL sessions, which continues by hand."""

    def __init__(self) -> None:
        self.now_s = time.monotonic()

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    opened = Clock()
    monkeypatch.setattr("tidegate.security.session.monotonic", opened)
    return opened


@pytest.fixture
async def listener(valkey: ValkeyServer, clock: Clock) -> AsyncIterator[Listener]:
    settings = {"acl_enabled": False, "super_users": "", "group_initial_rebalance_delay_ms": 0}
    async with listening(valkey, connections_max_reauth_ms=SESSION_MS, **settings) as opened:
        await opened.app.broker.catalog.create("default", "t", 1)
        yield opened


def authenticate_again(client: RawClient) -> None:
    """Send an exchange of PLAIN behind what waits."""
    client.send(request(17, 1, mechanism="PLAIN"))
    client.send(request(36, 1, auth_bytes=f"\0u\0{PASSWORDS['u']}".encode()))


async def received(client: RawClient) -> Any:
    async with asyncio.timeout(60):
        _, answer = await client.receive()
    return answer


async def test_member_authenticates_again_behind_its_parked_join(listener: Listener, clock: Clock) -> None:
    group_id = f"g-{uuid4().hex[:8]}"
    first, second = [Member(await listener.login("u"), group_id) for _ in range(2)]
    await first.round()
    second.member_id = (await second.client.ask(second.join_request())).member_id
    second.client.send(second.join_request())  # parked until the first member joins again
    clock.now_s += 0.9 * SESSION_MS / 1000
    assert (await plain(first.client, "u")).error_code is NONE
    authenticate_again(second.client)
    await until(lambda: group_is(listener, "PreparingRebalance", group_id))
    clock.now_s += 0.5 * SESSION_MS / 1000  # the session of the member that waits has ended
    first.client.send(first.join_request())

    joined = await received(second.client)
    assert (joined.error_code, joined.generation_id) == (NONE, 2)
    assert (await received(second.client)).error_code is NONE
    again = await received(second.client)
    assert (again.error_code, again.session_lifetime) == (NONE, timedelta(milliseconds=SESSION_MS))
    second.generation = joined.generation_id
    plan = {one.member_id: b"" for one in (await received(first.client)).members}
    first.generation = joined.generation_id
    assert {(await one.sync(plan)).error_code for one in (first, second)} == {NONE}
    clock.now_s += 0.9 * SESSION_MS / 1000  # only the renewed session lasts so long
    assert await second.heartbeat() is NONE


async def test_consumer_authenticates_again_behind_its_parked_fetch(listener: Listener, clock: Clock) -> None:
    consumer, producer = await listener.login("u"), await listener.login("u")
    consumer.send(fetch_request([("t", [(0, 0)])], max_wait_ms=300_000))
    await until(lambda: has_parked_fetch(listener))
    clock.now_s += 0.9 * SESSION_MS / 1000
    authenticate_again(consumer)
    assert (await plain(producer, "u")).error_code is NONE
    clock.now_s += 0.5 * SESSION_MS / 1000
    assert (await producer.ask(produce_request([("t", [(0, BATCH)])]))).responses[0].partition_responses

    fetched = (await received(consumer)).responses[0].partitions[0]
    assert (fetched.error_code, fetched.high_watermark) == (NONE, 1)
    assert [(await received(consumer)).error_code for _ in range(2)] == [NONE, NONE]
    clock.now_s += 0.9 * SESSION_MS / 1000
    assert (await consumer.ask(fetch_request([("t", [(0, 0)])]))).responses[0].partitions[0].error_code is NONE


async def test_failed_reauthentication_behind_a_parked_fetch_ends_the_connection(
    listener: Listener, clock: Clock
) -> None:
    consumer, producer = await listener.login("u"), await listener.login("u")
    consumer.send(fetch_request([("t", [(0, 0)])], max_wait_ms=300_000))
    await until(lambda: has_parked_fetch(listener))
    clock.now_s += 0.9 * SESSION_MS / 1000
    consumer.send(request(17, 1, mechanism="PLAIN"))
    consumer.send(request(36, 1, auth_bytes=b"\0u\0wrong"))
    await producer.ask(produce_request([("t", [(0, BATCH)])]))

    assert (await received(consumer)).responses[0].partitions[0].high_watermark == 1
    assert (await received(consumer)).error_code is NONE
    assert (await received(consumer)).error_code is ErrorCode.sasl_authentication_failed
    assert await asyncio.wait_for(consumer.reader.read(), 60) == b""


@pytest.mark.slow
async def test_librdkafka_authenticates_again_while_its_requests_wait(valkey: ValkeyServer) -> None:
    """At 90 % of its session of 5 s its JoinGroup waits for other members for 8 s, later its fetches for records."""
    settings = {"acl_enabled": False, "super_users": "", "group_initial_rebalance_delay_ms": 8_000}
    async with listening(valkey, connections_max_reauth_ms=5_000, **settings) as listener:
        await listener.app.broker.catalog.create("default", "t", 1)
        options = {
            "bootstrap.servers": f"127.0.0.1:{listener.app.broker.settings.port}",
            "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "u",
            "sasl.password": PASSWORDS["u"], "log_level": 0,
        }  # fmt: skip
        await asyncio.to_thread(_read_over_sessions, listener, options)
        store = listener.app.broker.store
        generation = await store.command("HGET", store.group_keys("default", "g").group, "generation")
    assert generation == b"1"  # the group was joined once, and never again


def _read_over_sessions(listener: Listener, options: dict[str, Any]) -> None:
    """Consume until connections that stayed open have authenticated three times more."""
    producer = Producer(options)
    consumer = Consumer({**options, "group.id": "g", "auto.offset.reset": "earliest", "fetch.wait.max.ms": 6_000})
    consumer.subscribe(["t"])
    server, opened, authenticated, ends = listener.app.broker.server, 0, 0, time.monotonic() + 120
    while not opened or metrics.authentications < authenticated + 3:
        assert time.monotonic() < ends
        message = consumer.poll(0.2)
        if not opened:
            producer.produce("t", b"v")
            producer.poll(0)
        if message is not None and not message.error() and not opened:
            producer.flush(60)
            opened, authenticated = server._last_connection_id, metrics.authentications
    producer.produce("t", b"last")
    producer.flush(60)
    while (message := consumer.poll(1)) is None or message.error() or message.value() != b"last":
        assert time.monotonic() < ends
    assert server._last_connection_id == opened  # none was closed and opened again


async def until(holds: Callable[[], Any]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(60):
        while not (await found if asyncio.iscoroutine(found := holds()) else found):
            await asyncio.sleep(0.01)


def has_parked_fetch(listener: Listener) -> bool:
    return any(listener.app.broker.context.fetch_waits._parked.values())


async def group_is(listener: Listener, state: str, group_id: str) -> bool:
    store = listener.app.broker.store
    stored: bytes | None = await store.command("HGET", store.group_keys("default", group_id).group, "state")
    return stored == state.encode()
