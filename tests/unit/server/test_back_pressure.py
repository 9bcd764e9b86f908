"""Memory stays bounded whatever clients send and however slowly they read; nothing waits forever."""

from __future__ import annotations

import asyncio
import resource
import struct
from collections import Counter
from typing import Any

import pytest
from kio.schema.heartbeat.v4.request import HeartbeatRequest

from tests.kit.wire import RawClient, encode_request, request_type
from tests.support.samples import sample
from tests.unit.server.fakes import (
    CREATE_TOPICS,
    FETCH,
    PRODUCE,
    Handlers,
    another,
    closed,
    connected,
    on_both_loops,
    pass_time,
    until,
)  # fmt: skip
from tidegate.protocol.framing import LARGE_BYTES
from tidegate.server import connection, limits, sweeping, ticks
from tidegate.server.limits import RequestBytes

HEARTBEAT_REQUEST: Any = HeartbeatRequest(group_id="g", generation_id=1, member_id="m", group_instance_id=None)
FETCHES: Any = sample(request_type(FETCH, 12))
CREATES: Any = sample(request_type(CREATE_TOPICS, 7))
MIB = 1 << 20


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@on_both_loops
async def test_client_that_does_not_read_stops_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 GB of answers asked for and none read: a few are made, then the broker stops taking requests."""
    handlers = Handlers()
    handlers.fetch_bytes = 4 * MIB
    monkeypatch.setattr(limits, "OUT_BYTES_MAX", 8 * MIB)
    async with connected(handlers) as (server, other):
        client = RawClient(*await asyncio.open_connection("127.0.0.1", server.ports[0], limit=1 << 16), None)
        before = peak_mib()
        client.writer.write(encode_request(FETCHES, 1) * 256)
        await until(lambda: handlers.started)
        await asyncio.sleep(0.3)
        started = len(handlers.started)
        assert started < 16
        assert peak_mib() - before < 64

        await other.ask(HEARTBEAT_REQUEST, timeout_s=30)

        for _ in range(20):
            assert len(await asyncio.wait_for(client.receive_frame(), 30)) > handlers.fetch_bytes
        assert len(handlers.started) > started
        await client.close()


@on_both_loops
async def test_task_requests_of_client_that_does_not_read_do_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were parsed before the first reply: each starts only while the replies before it are read."""
    handlers = Handlers()
    handlers.created_bytes = 4 * MIB
    monkeypatch.setattr(limits, "OUT_BYTES_MAX", 8 * MIB)
    async with connected(handlers) as (server, other):
        client = RawClient(*await asyncio.open_connection("127.0.0.1", server.ports[0], limit=1 << 16), None)
        client.writer.write(encode_request(CREATES, 1) * 64)
        await until(lambda: len(server.connections) == 2 and any(one.blocked for one in server.connections))
        await asyncio.sleep(0.2)
        assert handlers.started.count("create_topics") < 16

        await other.ask(HEARTBEAT_REQUEST, timeout_s=30)

        for _ in range(64):
            assert len(await asyncio.wait_for(client.receive_frame(), 30)) > handlers.created_bytes
        assert handlers.started.count("create_topics done") == 64
        await client.close()


@on_both_loops
async def test_replies_that_no_client_reads_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection is far below its own limit; the largest are closed until the others fit."""
    handlers = Handlers()
    handlers.fetch_bytes = 4 * MIB
    monkeypatch.setattr(sweeping, "CHECK_INTERVAL_S", 0.05)
    async with connected(handlers) as (server, other):
        server.unread_bytes_max = 16 * MIB
        clients = []
        for _ in range(8):
            client = RawClient(*await asyncio.open_connection("127.0.0.1", server.ports[0], limit=1 << 16), None)
            clients.append(client)
            client.writer.write(encode_request(FETCHES, 1) * 3)
        await until(lambda: len(handlers.started) >= 24)
        await until(lambda: sum(one.transport.get_write_buffer_size() for one in server.connections) <= 16 * MIB)
        await until(lambda: not any(one.closed or one.transport.is_closing() for one in server.connections))
        assert 2 <= len(server.connections) < 9

        await other.ask(HEARTBEAT_REQUEST, timeout_s=30)
        for client in clients:
            await client.close()


@on_both_loops
async def test_client_that_reads_slowly_is_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = Handlers()
    handlers.fetch_bytes = 4 * MIB
    monkeypatch.setattr(limits, "OUT_BYTES_MAX", 8 * MIB)
    async with connected(handlers) as (server, other):
        server.unread_bytes_max = MIB
        client = RawClient(*await asyncio.open_connection("127.0.0.1", server.ports[0], limit=1 << 16), None)
        client.writer.write(encode_request(FETCHES, 1) * 6)
        await until(lambda: handlers.started)
        for _ in range(6):
            assert len(await asyncio.wait_for(client.receive_frame(), 30)) > handlers.fetch_bytes
            server.sweeper.drop_unread()
        await other.ask(HEARTBEAT_REQUEST, timeout_s=30)
        await client.close()


@on_both_loops
async def test_answers_behind_a_parked_one_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = Handlers()
    monkeypatch.setattr(connection, "IN_FLIGHT_MAX", 50)
    async with connected(handlers) as (_, client):
        first = client.send(FETCHES)
        sent = [first, *(client.send(HEARTBEAT_REQUEST) for _ in range(1000))]
        await until(lambda: len(handlers.started) == 50)
        await asyncio.sleep(0.05)
        assert len(handlers.started) == 50

        handlers.answer_fetch(handlers.parked[0])

        assert [(await asyncio.wait_for(client.receive(), 30))[0] for _ in sent] == sent


@on_both_loops
async def test_requests_of_one_read_run_in_slices() -> None:
    """Other connections are served between them."""
    handlers, iteration, of_iteration = Handlers(), 0, Counter[int]()
    loop, started, count = asyncio.get_running_loop(), handlers.heartbeat, 5_000

    def iterate() -> None:
        nonlocal iteration
        iteration += 1
        loop.call_soon(iterate)

    def heartbeat(call: Any, request: Any) -> None:
        of_iteration[iteration] += 1
        started(call, request)

    handlers.heartbeat = heartbeat  # type: ignore[method-assign]
    async with connected(handlers) as (server, client):
        iterate()
        client.writer.write(encode_request(HEARTBEAT_REQUEST, 1) * count)
        for _ in range(count):
            await asyncio.wait_for(client.receive_frame(), 30)
        assert of_iteration.total() == count
        assert max(of_iteration.values()) <= 2 * limits.FRAMES_AT_ONCE  # one of them as its bytes were read
        assert server.request_bytes.held == 0


@on_both_loops
async def test_callbacks_run_between_reads_of_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sockets have a request: after a number of reads, the others wait until callbacks and timers ran."""
    handlers, count, iteration, of_iteration = Handlers(), 64, 0, Counter[int]()
    loop, started = asyncio.get_running_loop(), handlers.heartbeat
    monkeypatch.setattr(ticks, "READS_AT_ONCE", 8)

    def iterate() -> None:
        nonlocal iteration
        iteration += 1
        loop.call_soon(iterate)

    def heartbeat(call: Any, request: Any) -> None:
        of_iteration[iteration] += 1
        started(call, request)

    handlers.heartbeat = heartbeat  # type: ignore[method-assign]
    async with connected(handlers) as (server, first):
        await first.ask(HEARTBEAT_REQUEST)  # its schemas are imported
        clients = [await another(server) for _ in range(count)]
        await until(lambda: len(server.connections) == count + 1)
        iterate()
        for client in clients:
            client.writer.write(encode_request(HEARTBEAT_REQUEST, 1) * 2)
        for client in clients * 2:
            assert (await asyncio.wait_for(client.receive_frame(), 30))[:4] == struct.pack(">i", 1)
        assert of_iteration.total() == 1 + 2 * count
        reads_max = 3 * 8  # of those that waited, and of the sockets behind them
        assert max(of_iteration.values()) <= 2 * reads_max, of_iteration
        for client in clients:
            await client.close()


@on_both_loops
async def test_large_request_arrives_whole() -> None:
    handlers = Handlers()
    async with connected(handlers) as (server, client):
        produce: Any = sample(request_type(PRODUCE, 9))
        partition = produce.topic_data[0].partition_data[0]
        object.__setattr__(partition, "records", bytes(5 * MIB))
        heartbeat = client.send(HEARTBEAT_REQUEST)
        client.send(produce)
        client.send(produce)
        last = client.send(HEARTBEAT_REQUEST)
        assert [(await asyncio.wait_for(client.receive(), 30))[0] for _ in range(2)] == [heartbeat, last]
        assert len(handlers.started) == 4
        assert handlers.started[1] == handlers.started[2]
        assert int(handlers.started[1].split()[-1]) > 5 * MIB
        assert server.request_bytes.held == 0


def large_fetch() -> Any:
    """A Fetch of a little more than 3 MiB."""
    fetch: Any = sample(request_type(FETCH, 12))
    object.__setattr__(fetch.topics[0], "topic", "t" * 30_000)
    object.__setattr__(fetch, "topics", fetch.topics * 106)
    return fetch


@on_both_loops
async def test_large_requests_of_all_connections_together_are_bounded() -> None:
    """Two connections send 3 MiB each where 4 are allowed: the second waits until the first is answered."""
    handlers = Handlers()
    async with connected(handlers) as (server, first), await another(server) as second:
        server.request_bytes = RequestBytes(4 * MIB)
        large = large_fetch()
        waiting = [first.send(large), second.send(large)]
        await until(lambda: handlers.parked)
        await asyncio.sleep(0.1)
        assert handlers.started == ["fetch"]
        assert 3 * MIB < server.request_bytes.held < 4 * MIB

        handlers.answer_fetch(handlers.parked[0])
        await until(lambda: len(handlers.parked) == 2)
        handlers.answer_fetch(handlers.parked[1])

        assert [(await client.receive())[0] for client in (first, second)] == waiting
        assert server.request_bytes.held == 0


@on_both_loops
async def test_request_above_the_cap_of_all_is_taken_alone() -> None:
    handlers = Handlers()
    async with connected(handlers) as (server, client):
        server.request_bytes = RequestBytes(MIB)
        large = large_fetch()
        client.send(large)
        await until(lambda: handlers.parked)


def small_fetch() -> Any:
    """A Fetch of nearly 31 KiB, which is a small request."""
    fetch: Any = sample(request_type(FETCH, 12))
    object.__setattr__(fetch.topics[0], "topic", "t" * 31_000)
    return fetch


@on_both_loops
async def test_small_requests_of_all_connections_together_are_bounded() -> None:
    """Each connection is far below its own limit; behind a parked request they stay unread."""
    handlers = Handlers()
    async with connected(handlers) as (server, first):
        server.request_bytes = RequestBytes(MIB)
        clients = [first, *[await another(server) for _ in range(7)]]
        small = encode_request(small_fetch(), 1)
        for client in clients:
            client.writer.write(small * 400)
        await until(lambda: len(handlers.parked) == len(clients))
        await until(lambda: all(one.state.name == "WAITING" for one in server.connections))
        await asyncio.sleep(0.2)
        assert MIB < server.request_bytes.held < MIB + len(clients) * 2 * len(small)

        for place in range(len(clients) * 400):
            await until(lambda place=place: len(handlers.parked) > place)
            handlers.answer_fetch(handlers.parked[place])
        for client in clients:
            for _ in range(400):
                await asyncio.wait_for(client.receive_frame(), 30)
        assert server.request_bytes.held == 0
        for client in clients[1:]:
            await client.close()


@on_both_loops
async def test_memory_full_of_small_requests_others_have_one_each() -> None:
    handlers = Handlers()
    async with connected(handlers) as (server, parked), await another(server) as client:
        server.request_bytes = RequestBytes(MIB)
        parked.writer.write(encode_request(small_fetch(), 1) * 100)
        await until(lambda: server.request_bytes.held > MIB)
        assert len(server.shared_buffer) < MIB // 8

        handlers.created_bytes = 1
        for _ in range(3):
            sent = [client.send(request) for request in (CREATES, HEARTBEAT_REQUEST, CREATES)]
            assert [(await asyncio.wait_for(client.receive_frame(), 30))[:4] for _ in sent] == [
                struct.pack(">i", correlation_id) for correlation_id in sent
            ]

        for place in range(100):
            await until(lambda place=place: len(handlers.parked) > place)
            handlers.answer_fetch(handlers.parked[place])
        assert server.request_bytes.held == 0
        assert len(server.shared_buffer) == MIB // 4


def test_release_small_requests_resumes_what_fits() -> None:
    budget, resumed = RequestBytes(MIB), list[int]()
    assert budget.count_small(MIB)
    assert not budget.count_small(1)
    for receiver in range(100):
        budget.pause(receiver, lambda receiver=receiver: resumed.append(receiver))  # type: ignore[misc]
    budget.abandon("closed", 0)
    budget.release(1)
    assert not resumed
    budget.release(2 * LARGE_BYTES)
    assert resumed == [1, 2]
    budget.release(MIB - 2 * LARGE_BYTES)
    assert len(resumed) == 34


@on_both_loops
async def test_closed_connection_in_the_middle_of_a_large_request_frees_its_bytes() -> None:
    async with connected(Handlers()) as (server, client):
        client.writer.write(struct.pack(">i", 50 * MIB) + bytes(100_000))
        await until(lambda: 100_000 < server.request_bytes.held < MIB)
        await client.close()
        await until(lambda: server.request_bytes.held == 0)


@on_both_loops
async def test_idle_connection_is_closed_and_one_with_a_parked_request_is_not(swept_often: None) -> None:
    handlers = Handlers()
    async with connected(handlers, connections_max_idle_ms=60_000) as (server, idle), await another(server) as parked:
        await idle.ask(HEARTBEAT_REQUEST)
        fetch = parked.send(FETCHES)
        await until(lambda: handlers.parked)
        pass_time(server, 61)
        assert await closed(idle) == b""
        await asyncio.sleep(0.1)
        handlers.answer_fetch(handlers.parked[0])
        assert (await parked.receive())[0] == fetch


@on_both_loops
async def test_request_that_stops_in_its_middle_ends_the_connection(swept_often: None) -> None:
    async with connected(Handlers()) as (server, client):
        client.writer.write(struct.pack(">i", 10 * MIB) + bytes(10))
        await until(lambda: any(one.state.name == "READING" for one in server.connections))
        pass_time(server, limits.FRAME_TIMEOUT_S + 1)
        assert await closed(client) == b""
        assert server.request_bytes.held == 0


@on_both_loops
async def test_old_connection_is_closed_between_requests(swept_often: None) -> None:
    handlers = Handlers()
    settings = {"connections_max_idle_ms": 600_000, "connections_max_age_ms": 60_000}
    async with connected(handlers, **settings) as (server, busy), await another(server) as parked:
        fetch = parked.send(FETCHES)
        await busy.ask(HEARTBEAT_REQUEST)
        await until(lambda: handlers.parked)
        pass_time(server, 120)
        assert await closed(busy) == b""
        handlers.answer_fetch(handlers.parked[0])
        assert (await parked.receive())[0] == fetch
        assert await closed(parked) == b""


@on_both_loops
async def test_client_that_never_reads_is_aborted_in_the_end(
    monkeypatch: pytest.MonkeyPatch, swept_often: None
) -> None:
    handlers = Handlers()
    handlers.fetch_bytes = 4 * MIB
    monkeypatch.setattr(limits, "OUT_BYTES_MAX", MIB)
    async with connected(handlers, connections_max_idle_ms=60_000) as (server, other):
        client = RawClient(*await asyncio.open_connection("127.0.0.1", server.ports[0], limit=1 << 16), None)
        client.writer.write(encode_request(FETCHES, 1) * 8)
        await until(lambda: any(one.state.name == "BLOCKED_ON_WRITE" for one in server.connections))

        def is_empty() -> bool:
            pass_time(server, 61)
            return not server.connections

        await until(is_empty)
        assert await closed(other) == b""
        await client.close()
