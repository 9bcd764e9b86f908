"""Changes over the admin HTTP that waited, whose client has gone, or that come to a broker without a lease."""

from __future__ import annotations

import asyncio
import math
import re
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.http import actions, late_requests
from tidegate.http.health import Health
from tidegate.http.routes import AdminServer
from tidegate.server.stalls import StallMonitor
from tidegate.settings import Settings

TOKEN = "t" * 16
PATIENCE_S = 60.0


class Stalls:
    """A process that stood still until a time; connections are as they are."""

    late_until_s = -math.inf

    def is_late(self, received_s: float) -> bool:
        return received_s < self.late_until_s

    def has_left(self, transport: Any) -> bool:
        nothing: Any = None
        return StallMonitor(nothing).has_left(transport)

    def stand_still(self) -> None:
        """Now, so that what was received before has waited."""
        self.late_until_s = perf_counter()


@dataclass
class Admin:
    """An admin HTTP whose only change is to drain brokers: it notes which."""

    server: AdminServer
    stalls: Stalls
    lease: Any
    port: int
    executed: list[str] = field(default_factory=list)
    own_drains: list[str] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    begun: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    async def drain_broker(self, context: Any, actor: Any, node_id: str) -> None:
        self.executed.append(node_id)
        await self.gate.wait()

    async def drain_after_reads(self, context: Any, actor: Any, node_id: str) -> None:
        """A change that reads something first, and is checked behind it."""
        self.begun.append(node_id)
        await self.gate.wait()
        try:
            late_requests.refuse_late(context)
        except late_requests.NotExecuted as refused:
            self.refused.append(refused.detail)
            raise
        self.executed.append(node_id)


@pytest.fixture
async def admin(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Admin]:
    sock = socket.create_server(("127.0.0.1", 0))
    stalls, lease = Stalls(), SimpleNamespace(cluster_id="c1", node_id=1, valid=True)
    own_drains: list[str] = []
    context: Any = SimpleNamespace(
        settings=Settings(admin_operator_token=TOKEN),
        security=None,
        audit=None,
        broker_lease=lease,
        stalls=stalls,
        ask_to_drain=own_drains.append,
    )
    server = AdminServer(Health(lambda: True, lambda: True), "127.0.0.1", context)
    await server.start()
    listening = await asyncio.get_running_loop().create_server(server.protocol, sock=sock)
    admin = Admin(server, stalls, lease, sock.getsockname()[1], own_drains=own_drains)
    admin.gate.set()
    monkeypatch.setattr(actions, "drain_broker", admin.drain_broker)
    yield admin
    listening.close()
    await server.close()


def request_bytes(method: str, path: str, body: bytes = b"", body_type: str = "application/json") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
    return f"{head}Content-Type: {body_type}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def drain_of(node_id: int, body: bytes = b"") -> bytes:
    """A change. The body is not looked at."""
    return request_bytes("POST", f"/api/v1/brokers/{node_id}/drain", body)


async def next_status(reader: asyncio.StreamReader) -> tuple[int, str]:
    """Status and body of an answer."""
    async with asyncio.timeout(PATIENCE_S):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"Content-Length: (\d+)", head)
        return int(head.split()[1]), (await reader.readexactly(int(length[1]) if length else 0)).decode()


async def status(admin: Admin, asked: bytes) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", admin.port)
    writer.write(asked)
    answer = await next_status(reader)
    writer.close()
    return answer


async def test_change_that_waited_answers_503_and_is_not_executed(admin: Admin) -> None:
    admin.stalls.late_until_s = math.inf
    answer = await status(admin, drain_of(1))
    assert answer[0] == 503 and late_requests.LATE in answer[1]
    assert admin.executed == []

    admin.stalls.stand_still()
    assert (await status(admin, drain_of(2)))[0] == 204
    assert admin.executed == ["2"]


async def test_change_without_valid_lease_answers_503_and_is_not_executed(admin: Admin) -> None:
    admin.lease.valid = False
    answer = await status(admin, drain_of(1))
    assert answer[0] == 503 and late_requests.NO_LEASE in answer[1]
    assert admin.executed == []


async def test_change_with_body_received_after_a_stall_is_not_executed(admin: Admin) -> None:
    whole = drain_of(1, b"x" * 100)
    reader, writer = await asyncio.open_connection("127.0.0.1", admin.port)
    writer.write(whole[:-50])
    visitors = admin.server._connection_limiter._visitors
    async with asyncio.timeout(PATIENCE_S):
        while not any(one.requests for one in visitors.values()):
            await asyncio.sleep(0)
    admin.stalls.stand_still()
    writer.write(whole[-50:])
    assert (await next_status(reader))[0] == 503
    assert admin.executed == []
    writer.close()


async def test_change_pipelined_before_a_stall_is_not_executed(admin: Admin) -> None:
    """It was received before, and waited behind the request before it until long after the stall."""
    admin.gate.clear()
    reader, writer = await asyncio.open_connection("127.0.0.1", admin.port)
    writer.write(drain_of(1) + drain_of(2))
    async with asyncio.timeout(PATIENCE_S):
        while not admin.executed:
            await asyncio.sleep(0.001)
    admin.stalls.stand_still()
    admin.gate.set()
    assert [(await next_status(reader))[0] for _ in range(2)] == [204, 503]
    assert admin.executed == ["1"]
    writer.close()


async def test_change_under_way_in_a_stall_is_not_executed_however_long_it_ended_before(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "drain_broker", admin.drain_after_reads)
    admin.gate.clear()
    reader, writer = await asyncio.open_connection("127.0.0.1", admin.port)
    writer.write(drain_of(1))
    async with asyncio.timeout(PATIENCE_S):
        while not admin.begun:
            await asyncio.sleep(0.001)
    admin.stalls.stand_still()
    admin.gate.set()
    answer = await next_status(reader)
    assert answer[0] == 503 and late_requests.LATE in answer[1]
    writer.write(drain_of(2))
    assert (await next_status(reader))[0] == 204
    assert admin.executed == ["2"]
    writer.close()


async def test_change_under_way_of_a_client_that_left_is_not_executed(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "drain_broker", admin.drain_after_reads)
    admin.gate.clear()
    with socket.create_connection(("127.0.0.1", admin.port)) as gone:
        gone.sendall(drain_of(1))
        async with asyncio.timeout(PATIENCE_S):
            while not admin.begun:
                await asyncio.sleep(0.001)
    admin.gate.set()
    assert (await status(admin, drain_of(2)))[0] == 204
    assert admin.refused == [late_requests.LEFT]
    assert admin.executed == ["2"]


async def test_change_of_a_client_that_left_is_not_executed(admin: Admin) -> None:
    """The end of its connection is behind the request in the socket; the event loop did not run meanwhile."""
    with socket.create_connection(("127.0.0.1", admin.port)) as gone:
        gone.sendall(drain_of(1))
    assert (await status(admin, drain_of(2)))[0] == 204
    assert admin.executed == ["2"]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (request_bytes("GET", "/"), 200),
        (request_bytes("GET", "/health/live"), 200),
        (request_bytes("POST", "/drain"), 202),
        (request_bytes("POST", "/console/login", b"name=a&password=b", "application/x-www-form-urlencoded"), 303),
    ],
    ids=["index", "probe", "own drain", "login"],
)
async def test_request_that_stores_nothing_is_answered(admin: Admin, asked: bytes, expected: int) -> None:
    admin.stalls.late_until_s, admin.lease.valid = math.inf, False
    assert (await status(admin, asked))[0] == expected


async def test_body_that_cannot_be_read_answers_400(admin: Admin) -> None:
    asked = drain_of(1).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + b"nonsense\r\n\r\n"
    assert (await status(admin, asked))[0] == 400
    assert admin.executed == []


async def test_every_change_that_waited_answers_503(admin: Admin) -> None:
    """Whatever route is added."""
    admin.stalls.late_until_s = math.inf
    routes = [one for one in admin.server._runner.app.router.routes() if one.method not in ("GET", "HEAD")]
    paths = [(one.method, re.sub(r"{[^}]*}", "x", one.resource.canonical)) for one in routes if one.resource]
    changes = [(method, path) for method, path in paths if path not in late_requests._STORED_NOWHERE]
    assert len(changes) > 15
    answers = [await status(admin, request_bytes(method, path, b"{}")) for method, path in changes]
    assert {code for code, _ in answers} == {503}
