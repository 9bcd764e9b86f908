"""Large answers over TLS are encrypted in steps, in order, while the client reads; plain ones are written at once."""

from __future__ import annotations

import asyncio
import socket
from operator import methodcaller
from types import SimpleNamespace
from typing import Any

from kio.schema.fetch.v12.request import FetchRequest
from kio.schema.heartbeat.v4.request import HeartbeatRequest

from tests.kit.wire import encode_request
from tests.support.samples import sample
from tests.unit.server.fakes import Handlers, on_both_loops, running, until
from tidegate.server import sweeping
from tidegate.server.connection import Connection
from tidegate.server.listener import Server

FETCHES: Any = sample(FetchRequest)
HEARTBEATS: Any = sample(HeartbeatRequest)
MIB = 1 << 20
ANSWER_BYTES = 10 * MIB


class Transport:
    """One of an event loop, whose client reads when the test says so; the last iteration's writes are joined."""

    def __init__(self, encrypts: bool) -> None:
        self.connection: Any = None
        no_socket = SimpleNamespace(family=socket.AF_UNIX, setsockopt=lambda *_: None, fileno=lambda: -1)
        self.extra: dict[str, Any] = {"socket": no_socket} | ({"sslcontext": object()} if encrypts else {})
        self.steps: list[int] = []
        """Bytes given in each iteration of the event loop."""
        self.sent = bytearray()
        self.buffered = 0
        self.reads = True
        self.closed = self.aborted = False
        self._in_step = self._paused = False

    def get_extra_info(self, name: str) -> Any:
        return self.extra.get(name)

    def set_write_buffer_limits(self, high: int) -> None:
        self._high = high

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def write(self, data: Any) -> None:
        assert not self.closed
        if not self._in_step:
            self._in_step = True
            self.steps.append(0)
            asyncio.get_running_loop().call_soon(self._end_step)
        self.steps[-1] += len(data)
        self.sent += data
        if not self.reads:
            self.buffered += len(data)
            if self.buffered >= self._high and not self._paused:
                self._paused = True
                self.connection.pause_writing()

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def _end_step(self) -> None:
        self._in_step = False

    def read(self) -> None:
        """The client reads what is buffered."""
        self.buffered = 0
        if self._paused:
            self._paused = False
            self.connection.resume_writing()

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def close(self) -> None:
        self.closed = True
        asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    def abort(self) -> None:
        self.aborted = True
        asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    def pause_reading(self) -> None:
        """Nothing is received meanwhile."""

    def resume_reading(self) -> None:
        """The test sends when it likes."""


def connect(server: Server, encrypts: bool = True) -> tuple[Any, Transport]:
    """A connection of a server without a socket."""
    transport = Transport(encrypts)
    transport.connection = made = Connection(server, "SSL")  # type: ignore[arg-type]
    made.connection_made(transport)
    return made, transport


def send(connection: Any, *requests: Any) -> None:
    data = b"".join(encode_request(one, number) for number, one in enumerate(requests, 1))
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))


def answered(sent: bytearray) -> list[int]:
    """Correlation ids of the whole answers."""
    found, position = [], 0
    while position < len(sent):
        size = int.from_bytes(sent[position : position + 4], "big")
        assert position + 4 + size <= len(sent)
        found.append(int.from_bytes(sent[position + 4 : position + 8], "big"))
        position += 4 + size
    return found


def large_answers() -> Handlers:
    handlers = Handlers()
    handlers.fetch_bytes = ANSWER_BYTES
    return handlers


@on_both_loops
async def test_tls_large_answers_are_encrypted_in_steps_and_in_order() -> None:
    async with running(large_answers()) as (server, _):
        connection, transport = connect(server)
        send(connection, FETCHES, HEARTBEATS, FETCHES, HEARTBEATS)
        await until(lambda: len(transport.sent) > 2 * ANSWER_BYTES and not connection.blocked)
        await until(lambda: not connection.pipeline)
        await asyncio.sleep(0)
        assert answered(transport.sent) == [1, 2, 3, 4]
        assert max(transport.steps) <= MIB
        assert connection.unsent == connection.transport.get_write_buffer_size() == 0
        assert not connection._paused


@on_both_loops
async def test_tls_small_answers_are_written_at_once() -> None:
    async with running(Handlers()) as (server, _):
        connection, transport = connect(server)
        send(connection, HEARTBEATS, HEARTBEATS)
        assert answered(transport.sent) == [1, 2] and not connection.blocked


@on_both_loops
async def test_plain_large_answer_is_written_at_once() -> None:
    async with running(large_answers()) as (server, _):
        connection, transport = connect(server, encrypts=False)
        send(connection, FETCHES)
        assert answered(transport.sent) == [1] and connection.transport is transport


@on_both_loops
async def test_tls_client_that_reads_slowly_gets_steps_as_it_reads() -> None:
    handlers = large_answers()
    async with running(handlers) as (server, _):
        connection, transport = connect(server)
        transport.reads = False
        send(connection, FETCHES)
        await asyncio.sleep(0.01)
        unsent = connection.transport.get_write_buffer_size()
        assert transport.buffered <= 2 * MIB and ANSWER_BYTES <= unsent < ANSWER_BYTES + 1_000
        assert connection.state is sweeping.ConnectionState.BLOCKED_ON_WRITE and connection._paused

        before = len(transport.sent)
        transport.read()
        await asyncio.sleep(0.01)
        assert before < len(transport.sent) < ANSWER_BYTES and connection.blocked
        assert len(handlers.started) == 1

        while connection.blocked:
            transport.read()
            await asyncio.sleep(0)
        assert answered(transport.sent) == [1] and max(transport.steps) <= MIB
        assert not connection.blocked


@on_both_loops
async def test_tls_close_waits_for_what_is_not_encrypted() -> None:
    async with running(large_answers()) as (server, _):
        connection, transport = connect(server)
        send(connection, FETCHES)
        connection.drain()
        assert not transport.closed
        await until(lambda: transport.closed)
        assert answered(transport.sent) == [1] and max(transport.steps) <= MIB


@on_both_loops
async def test_tls_lost_connection_keeps_no_answer() -> None:
    async with running(large_answers()) as (server, _):
        for end in ("connection_lost", "eof_received"):
            connection, transport = connect(server)
            send(connection, FETCHES)
            written = len(transport.sent)
            methodcaller(end, *([None] if end == "connection_lost" else []))(connection)
            assert connection.transport.get_write_buffer_size() == 0
            await asyncio.sleep(0.01)
            assert len(transport.sent) == written


@on_both_loops
async def test_tls_client_that_has_left_ends_the_connection(monkeypatch: Any) -> None:
    async with running(large_answers()) as (server, _):
        connection, transport = connect(server)
        monkeypatch.setattr(connection, "client_has_left", lambda: True)
        send(connection, FETCHES)
        await until(lambda: transport.aborted)
        assert len(transport.sent) <= MIB and connection.transport.get_write_buffer_size() == 0
