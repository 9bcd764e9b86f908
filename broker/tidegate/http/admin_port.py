"""The port of the admin HTTP: answers probes at once, and imports the HTTP server at the first other request.

aiohttp, the REST API and the console occupy 14 MB and take as long to import as half of the rest; brokers that nobody
asks for more than their health do without. The import runs in a thread while the request waits. Not put off where
secrets or roles are set: they are checked at the start.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Final, cast

import structlog

from tidegate.apis.call import BrokerContext
from tidegate.http import probes
from tidegate.http.health import Health
from tidegate.http.secrets import Secrets
from tidegate.store.tasks import TaskSet

if TYPE_CHECKING:
    from tidegate.http.routes import AdminServer

logger = structlog.get_logger()

_CONNECTIONS_MAX: Final = 256
"""Connections without a request: the oldest makes place. As many wait for the import: others are closed.
`ConnectionLimiter` limits those of the HTTP server."""
_REQUEST_TIMEOUT_S: Final = 10.0
"""Maximum time until the first bytes of a request."""


class AdminPort:
    """The admin HTTP on a bound socket. Raises OSError at `start` when it cannot listen, CannotStart for settings."""

    def __init__(self, health: Health, sock: socket.socket, context: BrokerContext) -> None:
        self.health = health
        self._sock = sock
        self._context = context
        self._listening: asyncio.Server | None = None
        self._server: AdminServer | None = None
        self._loading = asyncio.Lock()
        self._tasks = TaskSet()
        self._silent: dict[ProbeConnection, None] = {}
        self._waiting: set[ProbeConnection] = set()
        """Connections with a request for the HTTP server, until it is imported."""

    async def start(self) -> None:
        """Listen."""
        settings = self._context.settings
        if Secrets.read(settings) != Secrets() or settings.admin_oidc_issuer_url:
            await self._load()
        self._listening = await asyncio.get_running_loop().create_server(self._protocol, sock=self._sock)

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._listening is not None:
            self._listening.close()
        for connection in [*self._silent, *self._waiting]:
            connection.transport.abort()
        await self._tasks.close()
        if self._server is not None:
            await self._server.close()
        self._sock.close()

    def _protocol(self) -> asyncio.Protocol:
        return ProbeConnection(self) if self._server is None else self._server.protocol()

    async def _load(self) -> AdminServer:
        async with self._loading:
            if self._server is None:
                new_server = await asyncio.to_thread(_admin_server)
                server = new_server(self.health, str(self._sock.getsockname()[0]), self._context)
                await server.start()
                self._server = server
            return self._server

    # -- connections without a request

    def add(self, connection: ProbeConnection) -> None:
        """A client connected; at the limit abort the oldest connection."""
        if len(self._silent) >= _CONNECTIONS_MAX:
            oldest = next(iter(self._silent))
            self.remove(oldest)  # it is closed only after this tick
            oldest.transport.abort()
        self._silent[connection] = None

    def remove(self, connection: ProbeConnection) -> None:
        """A client sent a request or disconnected."""
        self._silent.pop(connection, None)
        self._waiting.discard(connection)

    def hand_over(self, connection: ProbeConnection) -> None:
        """Have the HTTP server answer, once it is imported."""
        if len(self._waiting) >= _CONNECTIONS_MAX:
            connection.transport.abort()
            return
        self._waiting.add(connection)
        connection.transport.pause_reading()
        self._tasks.start(self._hand_over(connection))

    async def _hand_over(self, connection: ProbeConnection) -> None:
        transport = connection.transport
        try:
            server = await self._load()
        except Exception:
            logger.exception("admin_http_not_loaded")
            transport.abort()
            return
        self._waiting.discard(connection)
        if not transport.is_closing():
            protocol = server.protocol()
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
            protocol.data_received(connection.received)
            transport.resume_reading()


class ProbeConnection(asyncio.Protocol):
    """A client that has sent no request yet, or one for the HTTP server, which waits until that is imported."""

    def __init__(self, port: AdminPort) -> None:
        self._port = port
        self._timer: asyncio.TimerHandle | None = None
        self.transport: asyncio.Transport
        self.received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._timer = asyncio.get_running_loop().call_later(_REQUEST_TIMEOUT_S, self.transport.abort)
        self._port.add(self)

    def data_received(self, data: bytes) -> None:
        if self.received:  # received before reading was paused
            self.received += data
            return
        self._end_silence()
        answer = probes.answer(self._port.health, data)
        if answer is None:
            self.received = data
            self._port.hand_over(self)
        else:
            self.transport.write(answer)
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_silence()

    def _end_silence(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._port.remove(self)


def _admin_server() -> type[AdminServer]:
    """The admin HTTP server and the routes, with aiohttp."""
    from tidegate.http.routes import AdminServer

    return AdminServer
