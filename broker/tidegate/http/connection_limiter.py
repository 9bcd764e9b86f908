"""Limits the admin HTTP's connections: their number, and the time for sending a request and reading a reply.

aiohttp limits neither: a client could exhaust the connections with partial requests and starve the probes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final, cast

from aiohttp import web
from aiohttp.typedefs import Handler

from tidegate.telemetry.rate_limited_log import RateLimitedLogger

CONNECTIONS_MAX: Final = 256
"""Concurrent connections of the admin HTTP; when it is reached, the one that waits longest for its client is closed."""
REQUEST_TIMEOUT_MS: Final = 10_000
"""Maximum time to receive a complete request."""
IDLE_TIMEOUT_MS: Final = 75_000
"""Idle time without a request after which a connection is closed."""
CHECK_INTERVAL_MS: Final = 500
RECEIVED_S: Final = web.RequestKey("received_s", float)
"""When the last bytes before the handling of a request were received, by `perf_counter`."""


@dataclass(slots=True, eq=False)
class Visitor:
    """One connection and its state: since when it is idle, receiving a request, or being answered."""

    transport: asyncio.Transport
    since_s: float
    begun: bool = True
    """A request is partially received; a new connection starts in this state."""
    requests: list[web.Request] = field(default_factory=list)
    """The request being handled."""
    received_s: float = 0.0
    """When the last bytes were received."""

    def sent_something(self) -> None:
        """Bytes were received."""
        self.received_s = perf_counter()
        if not self.begun and not self.requests:
            self.begun, self.since_s = True, self.received_s

    def waits_for_client(self) -> bool:
        """Whether the next step is the client's: a request, the rest of one, or reading the reply."""
        if not self.requests or not self.requests[0].content.is_eof():
            return True
        return self.transport.get_write_buffer_size() > 0

    def overdue(self, now_s: float, request_s: float, idle_s: float) -> bool:
        """Whether the client exceeded a time limit: for its request, for idling, or for reading its reply."""
        waited_s = now_s - self.since_s
        if not self.requests:
            return waited_s > (request_s if self.begun else idle_s)
        if not self.requests[0].content.is_eof():
            return waited_s > request_s
        return waited_s > idle_s and self.transport.get_write_buffer_size() > 0


class ConnectionLimiter:
    """Counts connections and closes slow ones; the duration of handlers is not limited."""

    def __init__(self) -> None:
        self._connections_max = CONNECTIONS_MAX
        self._request_s = REQUEST_TIMEOUT_MS / 1000
        self.idle_s = IDLE_TIMEOUT_MS / 1000
        self._visitors: dict[asyncio.BaseProtocol, Visitor] = {}
        self._limited_log = RateLimitedLogger()

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._visitors)

    def protocol(self, server: web.Server) -> asyncio.Protocol:
        """Creates the protocol of a new connection."""
        return _Guarded(self, server())

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Mark the connection as handling a request."""
        visitor = self._visitors.get(request.protocol)
        if visitor is None:  # not accepted through this limiter, as in tests of the routes alone
            return await handler(request)
        visitor.requests.append(request)
        request[RECEIVED_S] = visitor.received_s
        try:
            return await handler(request)
        finally:
            visitor.requests.clear()
            visitor.begun, visitor.since_s = False, perf_counter()

    def enter(self, inner: asyncio.Protocol, transport: asyncio.Transport) -> bool:
        """Register a connection; at the limit abort the one that waits longest for its client, if any does.

        Returns False if none does: this connection is refused then.
        """
        if len(self._visitors) >= self._connections_max:
            self._limited_log.warn("admin_connections_full", connections_max=self._connections_max)
            waiting = [(one.since_s, known) for known, one in self._visitors.items() if one.waits_for_client()]
            if not waiting:
                return False
            _, oldest = min(waiting, key=lambda one: one[0])
            self._visitors.pop(oldest).transport.abort()
        self._visitors[inner] = Visitor(transport, perf_counter())
        return True

    def sent_something(self, inner: asyncio.Protocol) -> None:
        """Bytes of a connection were received."""
        if inner in self._visitors:
            self._visitors[inner].sent_something()

    def leave(self, inner: asyncio.Protocol) -> None:
        """Unregister a closed connection."""
        self._visitors.pop(inner, None)

    async def close_slow(self) -> None:
        """Close connections that exceeded a time limit."""
        now_s = perf_counter()
        for visitor in list(self._visitors.values()):
            if visitor.overdue(now_s, self._request_s, self.idle_s):
                visitor.transport.abort()


class _Guarded(asyncio.Protocol):
    """Wraps aiohttp's protocol to observe its connection."""

    def __init__(self, connection_limiter: ConnectionLimiter, inner: asyncio.Protocol) -> None:
        self._connection_limiter, self._inner = connection_limiter, inner
        self._in = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._in = self._connection_limiter.enter(self._inner, cast(asyncio.Transport, transport))
        if self._in:
            self._inner.connection_made(transport)
        else:
            cast(asyncio.Transport, transport).abort()

    def data_received(self, data: bytes) -> None:
        if self._in:
            self._connection_limiter.sent_something(self._inner)
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._in else None

    def pause_writing(self) -> None:
        if self._in:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._in:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._in:
            self._connection_limiter.leave(self._inner)
            self._inner.connection_lost(exc)
