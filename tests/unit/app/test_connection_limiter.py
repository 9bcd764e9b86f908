"""The admin HTTP's connections: too many of them, slow ones, silent ones."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.http import connection_limiter, routes
from tidegate.http.health import Health
from tidegate.http.routes import AdminServer
from tidegate.settings import Settings

WHOLE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
LONG_MS = 60_000
PATIENCE_S = 60.0


class Clock:
    """The clock of the connections, which a test moves on."""

    later_ms = 0.0

    def __call__(self) -> float:
        return perf_counter() + self.later_ms / 1000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(connection_limiter, "perf_counter", clock)
    return clock


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Connections are checked all the time, and none is slow unless a test says so."""
    monkeypatch.setattr(routes, "CHECK_INTERVAL_MS", 10)
    monkeypatch.setattr(connection_limiter, "REQUEST_TIMEOUT_MS", LONG_MS)
    monkeypatch.setattr(connection_limiter, "IDLE_TIMEOUT_MS", LONG_MS)
    return monkeypatch


@asynccontextmanager
async def listening() -> AsyncIterator[int]:
    """The port of an admin HTTP."""
    sock = socket.create_server(("127.0.0.1", 0))
    context: Any = SimpleNamespace(
        settings=Settings(),
        security=None,
        audit=None,
        broker_lease=SimpleNamespace(cluster_id="c1", node_id=1),
    )
    admin = AdminServer(Health(lambda: True, lambda: True, listening=True), "127.0.0.1", context)
    await admin.start()
    server = await asyncio.get_running_loop().create_server(admin.protocol, sock=sock)
    yield sock.getsockname()[1]
    server.close()
    await admin.close()


class Visitor:
    """A client that sends what the test wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def body_text(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def is_answered(self) -> bool:
        async with asyncio.timeout(PATIENCE_S):
            return (await self.reader.readuntil(b'{"live": true}')).startswith(b"HTTP/1.1 200")

    async def is_closed(self) -> bool:
        """Waits for the end, without an answer before it."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read() == b""
            except ConnectionResetError:
                return True


async def visit(port: int, stack: AsyncExitStack) -> Visitor:
    visitor = Visitor(*await asyncio.open_connection("127.0.0.1", port))
    stack.callback(visitor.writer.close)
    return visitor


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /health/li",
        b"POST /console/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        b"Content-Length: 99\r\n\r\nname=",
    ],
    ids=["nothing", "half a head", "half a body"],
)
async def test_incomplete_request_is_aborted(begun: bytes, limits: pytest.MonkeyPatch) -> None:
    limits.setattr(connection_limiter, "REQUEST_TIMEOUT_MS", 100)
    async with listening() as port, AsyncExitStack() as stack:
        slow = await visit(port, stack)
        await slow.body_text(begun)

        assert await slow.is_closed()


async def test_next_request_of_a_connection_must_be_complete_too(clock: Clock, limits: pytest.MonkeyPatch) -> None:
    limits.setattr(connection_limiter, "IDLE_TIMEOUT_MS", math.inf)
    async with listening() as port, AsyncExitStack() as stack:
        slow = await visit(port, stack)
        await slow.body_text(WHOLE)
        assert await slow.is_answered()
        await slow.body_text(WHOLE[:10])
        closed = asyncio.create_task(slow.is_closed())
        while not closed.done():
            clock.later_ms += 2 * LONG_MS
            await asyncio.sleep(0.01)

        assert await closed


async def test_connection_persists_between_requests_for_a_limited_time(
    clock: Clock, limits: pytest.MonkeyPatch
) -> None:
    limits.setattr(connection_limiter, "IDLE_TIMEOUT_MS", 3 * LONG_MS)
    async with listening() as port, AsyncExitStack() as stack:
        kept = await visit(port, stack)
        for _ in range(2):
            await kept.body_text(WHOLE)
            assert await kept.is_answered()
            clock.later_ms += 2 * LONG_MS

        clock.later_ms += 4 * LONG_MS
        assert await kept.is_closed()


async def test_one_too_many_takes_the_place_of_the_one_that_is_silent_for_longest(limits: pytest.MonkeyPatch) -> None:
    limits.setattr(connection_limiter, "CONNECTIONS_MAX", 8)
    async with listening() as port, AsyncExitStack() as stack:
        silent = [await visit(port, stack) for _ in range(8)]
        for visitor in [*silent[1:], silent[0]]:
            await visitor.body_text(WHOLE)
            assert await visitor.is_answered()
        probe = await visit(port, stack)
        await probe.body_text(WHOLE)

        assert await probe.is_answered()
        assert await silent[1].is_closed()
        await silent[0].body_text(WHOLE)
        assert await silent[0].is_answered()


async def test_probe_is_answered_beside_unfinished_bodies(limits: pytest.MonkeyPatch) -> None:
    limits.setattr(connection_limiter, "CONNECTIONS_MAX", 8)
    head = b"POST /console/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    async with listening() as port, AsyncExitStack() as stack:
        unfinished = [await visit(port, stack) for _ in range(8)]
        for visitor in unfinished:
            await visitor.body_text(head + b"Content-Length: 99\r\nExpect: 100-continue\r\n\r\nname=")
            async with asyncio.timeout(PATIENCE_S):
                assert b"100 Continue" in await visitor.reader.readuntil(b"\r\n\r\n")  # it is being handled
        probe = await visit(port, stack)
        await probe.body_text(WHOLE)

        assert await probe.is_answered()
        assert await unfinished[0].is_closed()
