"""Clients that announce large requests and send them slowly stop nobody else, and are cut in the end."""

from __future__ import annotations

import asyncio
import math
import struct
from typing import Any

import pytest
from kio.schema.heartbeat.v4.request import HeartbeatRequest

from tests.kit.wire import RawClient, encode_request, request_type
from tests.support.samples import sample
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
async def test_slow_request_closed_by_total_time(monkeypatch: pytest.MonkeyPatch, swept_often: None) -> None:
    """A byte now and then keeps the time without a byte short; the time of the whole request counts."""
    async with connected(Handlers()) as (server, _):
        [slow] = await announcers(server, 1)
        monkeypatch.setattr(limits, "FRAME_TIMEOUT_S", 0.3)
        closing = asyncio.create_task(closed(slow))
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
        await until(lambda: len(handlers.started) == len(clients))
        assert server.request_bytes.held == 0
        for client in clients[1:]:
            await client.close()


class Requests:
    """Large requests, by a number each, that count how often the budget was asked for one, or continued one."""

    def __init__(self, bytes_max: int) -> None:
        self.budget = RequestBytes(bytes_max)
        self.continued: list[int] = []

    def reserve(self, host: str, receiver: int, size: int) -> bool:
        return self.budget.reserve(host, receiver, size, lambda: self.continued.append(receiver))


def test_reserve_one_address_gets_its_share() -> None:
    requests = Requests(8 * MIB)
    share = 8 * MIB // HOST_SHARE
    assert requests.reserve("a", 1, share)
    assert not requests.reserve("a", 2, 1)
    assert requests.reserve("a", 1, 3 * share), "the oldest request of an address continues"
    assert requests.reserve("b", 3, share)
    requests.budget.received("a", 1)
    assert requests.continued == [2]
    assert requests.budget.held == 5 * share + 1


def test_release_share_exhausted_continues_none() -> None:
    """Only the address has no capacity: the end of other requests does not help its waiting ones."""
    requests = Requests(8 * MIB)
    share = 8 * MIB // HOST_SHARE
    assert requests.reserve("a", 0, share)
    for receiver in range(1, 3_001):
        assert not requests.reserve("a", receiver, share // 2)
    for _ in range(10):
        requests.budget.count_small(100)
        requests.budget.release(100)
    assert not requests.continued
    requests.budget.abandon("a", 0)
    assert requests.continued == [1, 2], "in order, as far as the share has capacity"
    requests.budget.received("a", 1)
    assert requests.continued == [1, 2, 3]


def test_release_limit_exhausted_continues_what_fits() -> None:
    requests = Requests(8 * MIB)
    requests.budget.count_small(8 * MIB)
    for receiver in range(10):
        assert not requests.reserve(f"host {receiver}", receiver, MIB)
    assert not requests.reserve("host 0", 0, MIB), "it waits already"
    requests.budget.release(100)
    assert not requests.continued
    requests.budget.release(2 * MIB)
    assert requests.continued == [0, 1]
    requests.budget.abandon("host 5", 5)
    requests.budget.abandon("host 2", 2)
    requests.budget.release(3 * MIB - 100)
    assert requests.continued == [0, 1, 3, 4, 6]
    assert requests.budget.held == 8 * MIB


def test_release_oldest_partial_request_exceeds_limit() -> None:
    """It waits behind others, which only its end gives capacity to."""
    requests = Requests(8 * MIB)
    assert requests.reserve("a", 1, 4 * MIB)
    requests.budget.count_small(4 * MIB)
    assert not requests.reserve("b", 2, MIB)
    assert not requests.reserve("a", 1, 8 * MIB)
    requests.budget.release(4 * MIB)
    assert requests.continued == [1]
    requests.budget.received("a", 1)
    assert requests.continued == [1]
    requests.budget.release(12 * MIB)
    assert requests.continued == [1, 2]


def test_readiness_no_bytes_for_requests_not_ready(monkeypatch: Any) -> None:
    monkeypatch.setattr(limits, "EXHAUSTED_S", 0.0)
    requests = Requests(MIB)
    budget = requests.budget
    health = Health(lambda: True, lambda: True, lambda: not budget.exhausted, listening=True)
    assert health.ready
    assert requests.reserve("a", 1, MIB)
    assert not requests.reserve("b", 2, 1)
    assert health.reasons() == ["no memory is left for requests (memory_max)"]
    budget.abandon("a", 1)
    assert health.ready
    assert budget._full_since_s == math.inf


def test_readiness_waiting_request_abandoned_ready(monkeypatch: Any) -> None:
    monkeypatch.setattr(limits, "EXHAUSTED_S", 0.0)
    requests = Requests(MIB)
    assert requests.reserve("a", 1, MIB)
    assert not requests.reserve("b", 2, 1)
    requests.budget.abandon("b", 2)
    assert not requests.budget.exhausted
