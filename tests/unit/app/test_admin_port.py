"""The admin port answers probes by itself, and imports the HTTP server for the first other request."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidegate.http import admin_port, probes
from tidegate.http.admin_port import AdminPort
from tidegate.http.health import Health
from tidegate.http.routes import AdminServer
from tidegate.settings import Settings
from tidegate.startup import CannotStart

READY = b"GET /health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n"
INDEX = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
PATIENCE_S = 60.0


class Loading:
    """Counts imports of the HTTP server; the first `failures` of them fail."""

    def __init__(self) -> None:
        self.count = self.failures = 0

    def __call__(self) -> type[AdminServer]:
        self.count += 1
        if self.count <= self.failures:
            raise MemoryError
        return AdminServer


@pytest.fixture
def loading(monkeypatch: pytest.MonkeyPatch) -> Loading:
    loading = Loading()
    monkeypatch.setattr(admin_port, "_admin_server", loading)
    return loading


@asynccontextmanager
async def listening(health: Health | None = None, **settings: Any) -> AsyncIterator[int]:
    """The port of an admin HTTP."""
    context: Any = SimpleNamespace(
        settings=Settings(**settings),
        security=None,
        audit=None,
        broker_lease=SimpleNamespace(cluster_id="c1", node_id=1),
    )
    sock = socket.create_server(("127.0.0.1", 0))
    port = AdminPort(health or Health(lambda: True, lambda: True, listening=True), sock, context)
    try:
        await port.start()
        yield sock.getsockname()[1]
    finally:
        await port.close()


class Response:
    def __init__(self, head: str, body: bytes) -> None:
        first, *fields = head.split("\r\n")
        self.status = int(first.split()[1])
        self.headers = dict(one.split(": ", 1) for one in fields if one)
        self.body = body


async def receive(reader: asyncio.StreamReader) -> Response:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = int(head.partition("Content-Length: ")[2].partition("\r\n")[0])
    return Response(head, await reader.readexactly(length))


async def ask(port: int, *parts: bytes) -> Response:
    """The response to a request that is sent in parts."""
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for part in parts:
                writer.write(part)
                await asyncio.sleep(0.01)
            return await receive(reader)
        finally:
            writer.close()


@pytest.mark.parametrize("path", [probes.LIVE_PATH, probes.READY_PATH])
@pytest.mark.parametrize("up", [True, False])
async def test_probe_answer_is_that_of_the_http_server(path: str, up: bool, loading: Loading) -> None:
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    async with listening(Health(lambda: up, lambda: True, listening=True)) as port:
        by_itself = await ask(port, request)
        assert loading.count == 0
        await ask(port, INDEX)
        by_server = await ask(port, request)
        assert loading.count == 1

    assert by_itself.status == by_server.status
    assert json.loads(by_itself.body) == json.loads(by_server.body)
    changing = {"Date", "Server"}
    assert {name: value for name, value in by_itself.headers.items() if name not in changing} == {
        name: value for name, value in by_server.headers.items() if name not in changing
    }
    assert "Date" in by_itself.headers


async def test_probe_connection_is_closed_behind_the_answer(loading: Loading) -> None:
    async with listening() as port, asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health/live HTTP/1.0\r\nHost: localhost\r\n\r\n")
        answered = await reader.read()
        writer.close()

    assert answered.startswith(b"HTTP/1.1 200 OK\r\n") and answered.endswith(b'{"live": true}')
    assert loading.count == 0


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"HEAD /health/ready HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /health/ready?verbose HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /health/ready HTTP/2.0\r\nHost: a\r\n\r\n",
        b"GET /health/ready HTTP/1.1\r\n\r\n",
        b"GET /health/ready HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /health/ready HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n",
        b"GET /health/ready HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /health/ready HTTP/1.1\r\nHost: a\r\n folded: 1\r\n\r\n",
        b"GET /health/ready HTTP/1.1\nHost: a\n\n",
        b"GET /health/ready HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n",
        READY[:-2],
        READY + READY,
        b"GET /health/ready HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 4_096 + b"\r\n\r\n",
        INDEX,
    ],
)
def test_probe_answer_is_for_plain_probes_only(request_bytes: bytes) -> None:
    assert probes.answer(Health(lambda: True, lambda: True), request_bytes) is None


async def test_admin_port_other_requests_are_answered_after_one_import(loading: Loading) -> None:
    async with listening() as port:
        answers = await asyncio.gather(*(ask(port, INDEX) for _ in range(5)))

    assert [one.status for one in answers] == [200] * 5 and b"tidegate" in answers[0].body
    assert loading.count == 1


async def test_admin_port_request_in_parts_is_answered(loading: Loading) -> None:
    async with listening() as port:
        answer = await ask(port, READY[:9], READY[9:30], READY[30:])

    assert answer.status == 200


async def test_admin_port_connection_persists_after_the_import(loading: Loading) -> None:
    async with listening() as port, asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for request in (INDEX, READY):
            writer.write(request)
            assert (await receive(reader)).status == 200
        writer.close()


async def test_admin_port_failed_import_is_tried_again(loading: Loading) -> None:
    loading.failures = 1
    async with listening() as port:
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await ask(port, INDEX)

        assert (await ask(port, INDEX)).status == 200


async def test_admin_port_with_secrets_imports_at_the_start(loading: Loading) -> None:
    async with listening(admin_viewer_token="x" * 20):
        assert loading.count == 1


async def test_admin_port_roles_that_do_not_fit_prevent_the_start() -> None:
    with pytest.raises(CannotStart, match="TIDEGATE_ADMIN_ROLES"):
        async with listening(admin_roles="nonsense"):
            pass


async def test_admin_port_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_port, "_REQUEST_TIMEOUT_S", 0.05)
    async with listening() as port, asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await reader.readexactly(1)
        writer.close()


async def test_admin_port_oldest_silent_connection_makes_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_port, "_CONNECTIONS_MAX", 2)
    async with listening() as port, asyncio.timeout(PATIENCE_S):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        assert (await ask(port, READY)).status == 200
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await silent[0][0].readexactly(1)
        silent[1][1].write(READY)
        assert (await receive(silent[1][0])).status == 200
        for _, writer in silent:
            writer.close()


class Transport:
    """Counts aborts; like the event loop's, it reports the end of the connection later."""

    def __init__(self) -> None:
        self.aborted = 0

    def abort(self) -> None:
        self.aborted += 1

    def pause_reading(self) -> None:
        """Nothing is received any more."""


def connect(port: AdminPort, *parts: bytes) -> Transport:
    """A client of the port that sends this."""
    transport: Any = Transport()
    connection = admin_port.ProbeConnection(port)
    connection.connection_made(transport)
    for part in parts:
        connection.data_received(part)
    return cast(Transport, transport)


def new_port() -> AdminPort:
    """A port without a socket."""
    nothing: Any = None
    return AdminPort(nothing, nothing, nothing)


async def test_admin_port_burst_of_silent_connections_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_port, "_CONNECTIONS_MAX", 2)
    port = new_port()
    silent = [connect(port) for _ in range(5)]

    assert [one.aborted for one in silent] == [1, 1, 1, 0, 0]
    assert len(port._silent) == 2


async def test_admin_port_connections_that_wait_for_the_import_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_port, "_CONNECTIONS_MAX", 2)
    port = new_port()
    monkeypatch.setattr(port, "_load", asyncio.Event().wait)
    waiting = [connect(port, INDEX) for _ in range(3)]

    assert [one.aborted for one in waiting] == [0, 0, 1]
    await port._tasks.close()


async def test_admin_port_close_ends_connections_that_wait_for_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    queued, hand_over = asyncio.Event(), AdminPort.hand_over
    monkeypatch.setattr(AdminPort, "_load", lambda port: asyncio.Event().wait())
    monkeypatch.setattr(AdminPort, "hand_over", lambda *args: (hand_over(*args), queued.set()))
    async with asyncio.timeout(PATIENCE_S):
        async with listening() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(INDEX)
            await queued.wait()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await reader.readexactly(1)
        writer.close()
