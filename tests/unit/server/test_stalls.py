"""After this process stood still, requests that lay in its sockets too long are not executed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from kio.schema.heartbeat.v4.request import HeartbeatRequest

from tests.kit.wire import encode_request, request_type
from tests.support.samples import sample
from tests.unit.server.fakes import (
    CREATE_TOPICS,
    FETCH,
    PRODUCE,
    Handlers,
    another,
    connected,
    deliver,
    on_both_loops,
    raw_socket,
    until,
)
from tidegate.server import stalls
from tidegate.server.listener import Server

HEARTBEAT_REQUEST: Any = HeartbeatRequest(group_id="g", generation_id=1, member_id="m", group_instance_id=None)
CHANGE: Any = sample(request_type(CREATE_TOPICS, 7))
BROKEN = SimpleNamespace(connected=False)
"""A connection to Redis."""
PRODUCES: Any = sample(request_type(PRODUCE, 9))


def stall(server: Server, seconds: float) -> None:
    """As if the event loop had not turned for so long: its clocks say so."""
    server.stalls.alive_s = stalls.perf_counter() - seconds
    server.extend_trust()


@on_both_loops
async def test_stall_closed_peer_requests_discarded() -> None:
    handlers = Handlers()
    async with connected(handlers) as (server, client):
        for seconds in (1.5, 5.0, 15.0):
            gone = raw_socket(server)
            await until(lambda: len(server.connections) == 2)
            deliver(server, gone, encode_request(PRODUCES, 1) + encode_request(CHANGE, 2), close=True)
            stall(server, seconds)
            await until(lambda: len(server.connections) == 1)
        await client.ask(HEARTBEAT_REQUEST)
        assert handlers.started == ["heartbeat g"]


@on_both_loops
async def test_short_gap_closed_peer_requests_executed() -> None:
    """Who sends and closes loses nothing while the broker runs."""
    handlers = Handlers()
    async with connected(handlers) as (server, _):
        gone = raw_socket(server)
        await until(lambda: len(server.connections) == 2)
        deliver(server, gone, encode_request(PRODUCES, 1), close=True)
        stall(server, 0.5)
        await until(lambda: len(server.connections) == 1)
        assert len(handlers.started) == 1


@on_both_loops
async def test_long_stall_late_change_closes_connection_behind_replies() -> None:
    """The client is there, and may have been answered elsewhere: the heartbeat is answered, the change not made."""
    handlers = Handlers()
    async with connected(handlers) as (server, client):
        late = raw_socket(server)
        await until(lambda: len(server.connections) == 2)
        deliver(
            server,
            late,
            encode_request(HEARTBEAT_REQUEST, 1) + encode_request(CHANGE, 2) + encode_request(HEARTBEAT_REQUEST, 3),
        )
        stall(server, 5)
        await until(lambda: len(server.connections) == 1)
        assert handlers.started == ["heartbeat g"]
        assert late.recv(1 << 16)[4:8] == (1).to_bytes(4, "big")
        assert late.recv(1 << 16) == b""
        late.close()
        await client.ask(HEARTBEAT_REQUEST)


@on_both_loops
async def test_long_stall_behind_a_read_that_waits_for_callbacks_change_not_made() -> None:
    """The change was read, and waited for its turn among thousands of connections when the process stood still."""
    handlers = Handlers()
    async with connected(handlers) as (server, client):
        await client.ask(HEARTBEAT_REQUEST)
        late = raw_socket(server)
        await until(lambda: len(server.connections) == 2)
        deliver(server, late, encode_request(HEARTBEAT_REQUEST, 1) + encode_request(CHANGE, 2))

        def exhausted() -> bool:
            server.tick.reads_left = 10
            asyncio.get_running_loop().call_soon(stall, server, 5)
            return True

        server.tick.reads_left = 0
        with patch.object(server.tick, "exhausted", exhausted):
            await until(lambda: len(server.connections) == 1)
        assert handlers.started == ["heartbeat g"] * 2
        assert late.recv(1 << 16)[4:8] == (1).to_bytes(4, "big")
        assert late.recv(1 << 16) == b""
        late.close()


@on_both_loops
async def test_stall_closed_peer_in_listen_queue_discarded() -> None:
    """It connected, sent and gave up during the stall: the event loop accepts it behind the check, or before it."""
    handlers = Handlers()
    async with connected(handlers) as (server, client):
        for is_checked_first in (True, False):
            gone = raw_socket(server)
            gone.sendall(encode_request(CHANGE, 1))
            gone.close()
            stall(server, 1.5)
            if is_checked_first:
                server.stalls.check()
            await client.ask(HEARTBEAT_REQUEST)
            await until(lambda: len(server.connections) == 1)
        assert handlers.started == ["heartbeat g"] * 2


@on_both_loops
async def test_long_stall_change_in_listen_queue_closes_connection_behind_replies() -> None:
    """The client is still connected: the heartbeat is answered, the change not made, whichever stall was the last."""
    handlers = Handlers()
    async with connected(handlers) as (server, _):
        late = raw_socket(server)
        late.sendall(encode_request(HEARTBEAT_REQUEST, 1) + encode_request(CHANGE, 2))
        now_s = stalls.perf_counter()
        for seconds in (5, 1.5):
            now_s += seconds
            with patch.object(stalls, "perf_counter", lambda: now_s):  # noqa: B023 - called in this turn
                server.stalls.check()
        server.stalls._accepts_until_s = now_s
        await until(lambda: handlers.started == ["heartbeat g"])
        await until(lambda: len(server.connections) == 1)
        assert late.recv(1 << 16)[4:8] == (1).to_bytes(4, "big")
        assert late.recv(1 << 16) == b""
        late.close()


@on_both_loops
async def test_suspended_broker_serves_again_late_requests_not_executed() -> None:
    """It did not read: who gave up is gone with its requests, of who stayed nothing late is changed."""
    handlers = Handlers()
    async with connected(handlers) as (server, client):
        for seconds, closes in ((1.5, True), (5.0, True), (5.0, False)):
            late = raw_socket(server)
            await until(lambda: len(server.connections) == 2)
            server.suspend()
            deliver(server, late, encode_request(CHANGE, 1), close=closes)
            server._suspended_s -= seconds
            server.serve(60.0)
            await until(lambda: len(server.connections) == 1)
            late.close()
        await client.ask(CHANGE)
        assert handlers.started == ["create_topics", "create_topics done"]


@on_both_loops
async def test_change_of_connection_made_after_stall_executed() -> None:
    handlers = Handlers()
    async with connected(handlers) as (server, _):
        stall(server, 5)
        server.stalls.check()
        async with await another(server) as beside:
            await beside.ask(CHANGE)
        assert handlers.started == ["create_topics", "create_topics done"]


@on_both_loops
async def test_long_stall_change_sent_afterwards_executed() -> None:
    """What came whole before the wake-up is late, what is sent after it is not, on the same connection too."""
    handlers = Handlers()
    async with connected(handlers) as (server, client):
        client.send(HEARTBEAT_REQUEST)
        stall(server, 5)
        await client.receive()
        await client.ask(CHANGE)
        assert handlers.started == ["heartbeat g", "create_topics", "create_topics done"]


@on_both_loops
async def test_short_stall_living_peer_change_executed() -> None:
    handlers = Handlers()
    async with connected(handlers) as (server, client):
        client.send(CHANGE)
        stall(server, 1.5)
        await client.receive()
        assert "create_topics" in handlers.started


@on_both_loops
async def test_long_stall_change_behind_parked_request_not_executed() -> None:
    """It was read before the stall, and waits for its turn."""
    handlers = Handlers()
    handlers.cold_gate.clear()
    async with connected(handlers) as (server, client), await another(server) as beside:
        client.send(CHANGE)
        client.send(CHANGE)
        client.send(sample(request_type(FETCH, 12)))
        await until(lambda: handlers.started == ["create_topics"])
        await beside.ask(HEARTBEAT_REQUEST)
        stall(server, 5)
        await beside.ask(HEARTBEAT_REQUEST)
        handlers.cold_gate.set()
        await client.receive()
        assert await client.reader.read() == b""
        assert handlers.started.count("create_topics") == 1


@on_both_loops
async def test_long_stall_half_received_change_not_executed() -> None:
    handlers = Handlers()
    async with connected(handlers) as (server, client):
        object.__setattr__(PRODUCES.topic_data[0].partition_data[0], "records", bytes(300_000))
        frame = encode_request(PRODUCES, 1)
        client.writer.write(frame[:100_000])
        await until(lambda: any(one.state.name == "READING" for one in server.connections))
        stall(server, 5)
        client.writer.write(frame[100_000:])
        assert await client.reader.read() == b""
        assert handlers.started == []
        assert server.request_bytes.held == 0


@on_both_loops
async def test_stall_beyond_the_lease_failed_renewal_does_not_serve() -> None:
    """The stall ends with the failure of the renewal that was under way: another broker may have the node id."""
    for is_checked_first in (True, False):
        handlers = Handlers()
        async with connected(handlers) as (server, client):
            server.context = cast(
                Any, SimpleNamespace(store=SimpleNamespace(metadata_node=SimpleNamespace(control=BROKEN)))
            )
            server.serve(-1.0)
            server._asked_s -= 5
            server.stalls.alive_s -= 5
            if is_checked_first:
                server.stalls.check()
            server.go_on_without_redis(-1.0)
            client.writer.write(encode_request(HEARTBEAT_REQUEST, 1))
            await until(lambda server=server: not server.serving)  # type: ignore[misc]
            assert handlers.started == []

            server._doubted_s -= server.settings.redis_connect_timeout_ms / 1000 + 1
            server.go_on_without_redis(-1.0)  # Redis is away for everybody
            await client.receive_frame()
            assert handlers.started == ["heartbeat g"]


@on_both_loops
async def test_is_late_what_was_received_before_the_end_of_a_long_stall() -> None:
    """Before it, and while what waited is read behind it, also if another stall follows that alone is short."""
    async with connected(Handlers()) as (server, _):
        now_s = stalls.perf_counter()
        for gap_s, is_late in ((1.5, False), (5.0, True), (1.5, True)):
            stall(server, gap_s)
            server.stalls.check()
            assert server.stalls.is_late(now_s - 10) is is_late
            assert server.stalls.is_late(now_s) is is_late
        assert not server.stalls.is_late(now_s + stalls.ACCEPT_S)


@on_both_loops
async def test_is_late_before_the_timer_has_observed_the_stall() -> None:
    async with connected(Handlers()) as (server, _):
        stall(server, 5)
        assert server.stalls.is_late(stalls.perf_counter())


@on_both_loops
async def test_has_left_client_that_closed_behind_unread_bytes() -> None:
    async with connected(Handlers()) as (server, _):
        beside = raw_socket(server)
        await until(lambda: len(server.connections) == 2)
        connection = list(server.connections)[1]
        assert not server.stalls.has_left(connection.transport)
        deliver(server, beside, encode_request(HEARTBEAT_REQUEST, 1), close=True)
        assert server.stalls.has_left(connection.transport)
        await until(lambda: len(server.connections) == 1)
        assert server.stalls.has_left(None)
