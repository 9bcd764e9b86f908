"""Clients that announce large requests and send them slowly stop nobody else, and are cut in the end."""

from __future__ import annotations

import asyncio
import math
import struct
from typing import Any

import pytest
from kio.schema.heartbeat.v4.request import HeartbeatRequest

from tests.support.samples import sample
from tests.support.wire import RawClient, encode_request, request_type
from tests.unit.server.fakes import PRODUCE, Handlers, another, closed, connected, on_both_loops, until
from tidegate.http.health import Health
from tidegate.server import limits
from tidegate.server.limits import HOST_SHARE, RequestBytes

MIB = 1 << 20
ANNOUNCED = 100 * MIB
HEARTBEAT_REQUEST: Any = HeartbeatRequest(group_id="g", generation_id=1, member_id="m", group_instance_id=None)


def large_produce(size: int) -> Any:
    produce: Any = sample(request_type(PRODUCE, 9))
    object.__setattr__(produce.topic_data[0].partition_data[0], "records", bytes(size))
    return produce


async def announcers(server: Any, count: int) -> list[RawClient]:
    """Connections that announce a large request and send a byte of it."""
    clients = [await another(server) for _ in range(count)]
    for client in clients:
        client.writer.write(struct.pack(">i", ANNOUNCED) + b"\x00")
    await until(lambda: len(server.connections) == count + 1)
    await until(lambda: sum(one.state.name == "READING" for one in server.connections) == count)
    return clients


@on_both_loops
async def test_slow_announcers_neighbour_produces_and_heartbeats() -> None:
    handlers = Handlers()
    async with connected(handlers) as (server, client):
        slow = await announcers(server, 7)
        assert server.request_bytes.held < 7 * MIB
        client.send(large_produce(MIB))
        await client.ask(HEARTBEAT_REQUEST)
        assert handlers.started[0].startswith("produce") and handlers.started[1] == "heartbeat g"
        for one in slow:
            await one.close()
        await until(lambda: server.request_bytes.held == 0)


@on_both_loops
async def test_slow_request_closed_by_total_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then keeps the time without a byte short; the time of the whole request counts."""
    monkeypatch.setattr(limits, "FRAME_TIMEOUT_S", 0.3)
    async with connected(Handlers(), connections_max_idle_ms=1000) as (server, _):
        [slow] = await announcers(server, 1)
        closing = asyncio.create_task(closed(slow, 20))
        while not closing.done():
            slow.writer.write(b"\x00")
            await asyncio.sleep(0.05)
        assert await closing == b""
        await slow.close()
        assert server.request_bytes.held == 0


@on_both_loops
async def test_steady_request_above_the_rate_completes() -> None:
    """It takes twice the time-out, and comes fast enough."""
    handlers = Handlers()
    async with connected(handlers) as (server, client):
        (connection,) = server.connections
        frame, chunk, now_s = encode_request(large_produce(2 * MIB), 1), 100_000, connection.last_active_s
        for start in range(0, len(frame) - chunk, chunk):
            received = connection.splitter.received
            client.writer.write(frame[start : start + chunk])
            await until(lambda received=received: connection.splitter.received >= received + chunk - 4)
            connection.last_active_s = now_s = now_s + 3
            server.sweeper.sweep(connection, now_s)
            assert connection in server.connections
        assert now_s - connection.half_since_s > 1.8 * limits.FRAME_TIMEOUT_S
        client.writer.write(frame[start + chunk :])
        await until(lambda: handlers.started)


@on_both_loops
async def test_partial_requests_fill_the_cap_all_complete() -> None:
    """Each is larger than its share, all together than the cap: they come whole one after the other."""
    handlers = Handlers()
    async with connected(handlers) as (server, first):
        server.request_bytes = RequestBytes(4 * MIB)
        clients = [first, *[await another(server) for _ in range(4)]]
        frame = encode_request(large_produce(3 * MIB), 1)
        for client in clients:
            client.writer.write(frame[:MIB])
        await asyncio.sleep(0.1)
        for client in reversed(clients):
            client.writer.write(frame[MIB:])
        await until(lambda: len(handlers.started) == len(clients), 20)
        assert server.request_bytes.held == 0
        for client in clients[1:]:
            await client.close()


def test_reserve_one_address_gets_its_share() -> None:
    budget = RequestBytes(8 * MIB)
    share = 8 * MIB // HOST_SHARE
    assert budget.reserve("a", 1, share)
    assert not budget.reserve("a", 2, 1)
    assert budget.reserve("a", 1, 3 * share), "the oldest request of an address continues"
    assert budget.reserve("b", 3, share)
    woken: list[int] = []
    budget.wait(lambda: woken.append(2))
    budget.received("a", 1)
    assert woken == [2] and budget.reserve("a", 2, share)


def test_readiness_no_bytes_for_requests_not_ready(monkeypatch: Any) -> None:
    monkeypatch.setattr(limits, "EXHAUSTED_S", 0.0)
    budget = RequestBytes(MIB)
    health = Health(lambda: True, lambda: True, lambda: not budget.exhausted, listening=True)
    assert health.ready
    assert budget.reserve("a", 1, MIB)
    assert not budget.reserve("b", 2, 1)
    assert health.reasons() == ["no memory is left for requests (memory_max)"]
    budget.abandon("a", 1)
    assert health.ready
    assert budget._full_since_s == math.inf
