"""Requests that waited in socket buffers while the process was stopped (SIGSTOP, a frozen host).

Their clients may have timed out, connected to another broker and been answered there; an old commit would then
overwrite a newer one. After a gap of the event loop, by the monotonic clock, two rules apply:

- above `STALL_S`: connections whose peer has closed its side are aborted with their unread bytes;
- above `LATE_S`: of the bytes in the socket at wake-up, requests that change no state are executed. The first request
  that changes state closes the connection after the earlier replies. The client reconnects and retries.

Connections made during the stall wait in the listen queue and are accepted behind it: for `ACCEPT_S` the rules apply to
each new connection. A broker whose lease was suspect has not read for as long: the rules apply when it serves again.
The first rule also holds for one connection that was not read for as long: its client was beyond a quota, or did not
read its replies.

The connections of the admin HTTP are not the server's: it asks `is_late` and `has_left` before it executes a change.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import math
import select
import termios
from collections import deque
from collections.abc import Iterable
from time import perf_counter
from typing import Any, Final, Protocol

import structlog

from tidegate.protocol import headers
from tidegate.protocol.framing import LENGTH_BYTES, Splitter
from tidegate.server.bad_frames import refuse_frame
from tidegate.server.limits import RequestBytes
from tidegate.server.pending_request import PendingRequest
from tidegate.server.routes import Routes

logger = structlog.get_logger()

CHECK_INTERVAL_S: Final = 0.25
"""Interval of the timer that observes the event loop, s."""
STALL_S: Final = 1.0
"""A longer gap is a stall. The shortest client time-outs (session, request) are several times as long."""
LATE_S: Final = 2.0
"""Requests that may have waited this long, s, are late. No client abandons a request earlier and stays connected."""
ACCEPT_S: Final = 1.0
"""Time after a stall, s, in which the event loop accepts what waited in the listen queue."""

_WAITED: Final = "waited while this process stood still"
_CLOSED: Final = select.POLLHUP | select.POLLERR | select.POLLNVAL | getattr(select, "POLLRDHUP", 0)


class Requests(Protocol):
    """What late requests need of the server."""

    routes: Routes
    request_bytes: RequestBytes


class StalledConnection(Protocol):
    """What the monitor uses of a connection."""

    transport: Any
    late_bytes: int
    splitter: Splitter
    queue: deque[PendingRequest]

    @property
    def server(self) -> Requests:
        """The server of the connection."""

    @property
    def pipeline(self) -> deque[PendingRequest]:
        """Requests without a reply, in order of arrival."""

    def take(self, data: bytes | memoryview, start: int, end: int) -> None:
        """Start or queue one request."""

    def abort(self) -> None:
        """Close at once."""

    def close_after_replies(self, reason: str, pending: PendingRequest | None) -> None:
        """Take no more requests; close after the replies."""


class StalledServer(Protocol):
    """What the monitor uses of the server."""

    loop: asyncio.AbstractEventLoop

    @property
    def connections(self) -> Iterable[StalledConnection]:
        """The open connections."""

    def extend_trust(self) -> None:
        """The event loop runs."""

    def stood_still(self) -> None:
        """The event loop did not run for more than `STALL_S`."""


class StallMonitor:
    """Detects stalls of the event loop: by a timer, and by the first bytes received after one."""

    def __init__(self, server: StalledServer) -> None:
        self._server = server
        self._timer: asyncio.TimerHandle | None = None
        self.alive_s = perf_counter()
        """Last observed run of the event loop, by `perf_counter`, to within `CHECK_INTERVAL_S`."""
        self._waited_s, self._accepts_until_s = 0.0, -math.inf
        """How long what is accepted now may have waited for the end of a stall, and until when that is so."""
        self._late_until_s = -math.inf
        """As `_accepts_until_s`, of the last stall for which something waited longer than `LATE_S`."""

    def start(self) -> None:
        """Start the timer; a second call has no effect."""
        if self._timer is None:
            self.alive_s = perf_counter()
            self._check_periodically()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def due_s(self) -> float:
        """Until when no check is needed, by `perf_counter`; infinity before `start`."""
        return self.alive_s + STALL_S if self._timer is not None else float("inf")

    def _check_periodically(self) -> None:
        self._timer = self._server.loop.call_later(CHECK_INTERVAL_S, self._check_periodically)
        self.check()

    def check(self) -> None:
        """Record that the event loop runs; after a stall, first handle the connections with unread bytes."""
        now_s = perf_counter()
        gap_s, self.alive_s = now_s - self.alive_s, now_s
        self._server.extend_trust()
        if gap_s > STALL_S:
            self._after_stall(gap_s)

    def _after_stall(self, gap_s: float) -> None:
        self._server.stood_still()
        began_s = self.alive_s - gap_s
        self._waited_s = gap_s + (self._waited_s if began_s < self._accepts_until_s else 0.0)
        self._accepts_until_s = self.alive_s + ACCEPT_S
        if self._waited_s > LATE_S:
            self._late_until_s = self._accepts_until_s
        closed_count = self.drop_late(gap_s)
        logger.warning("event_loop_stalled", stall_ms=round(gap_s * 1000), closed_connections=closed_count)

    def drop_late(self, waited_s: float) -> int:
        """Apply the rules to all connections, whose bytes were not read for so long; how many were closed."""
        closed = _closed_of(self._server.connections, waited_s) if waited_s > STALL_S else []
        for connection in closed:
            connection.abort()
        return len(closed)

    def admits(self, connection: StalledConnection) -> bool:
        """Whether a new connection is served: not if it waited for a stall's end and its peer has closed."""
        return perf_counter() >= self._accepts_until_s or not _closed_of((connection,), self._waited_s)

    def is_late(self, received_s: float) -> bool:
        """Whether a request received then, by `perf_counter`, may have waited for `LATE_S` before that or since."""
        if perf_counter() > self.due_s:
            self.check()
        return received_s < self._late_until_s

    def has_left(self, transport: Any) -> bool:
        """Whether the client of a connection that is not the server's has closed its side."""
        if transport is None or transport.is_closing():
            return True
        fileno = _fileno_of(transport)
        return fileno >= 0 and bool(_closed((fileno,)))


def peer_has_closed(connection: StalledConnection) -> bool:
    """Whether the peer has closed, which a connection that is not read does not notice."""
    return bool(_closed_of((connection,), 0.0))


def _closed_of(connections: Iterable[StalledConnection], waited_s: float) -> list[StalledConnection]:
    """Those whose peer has closed; of the others, mark what is unread if it may have waited for `LATE_S`."""
    filenos = {_fileno(connection): connection for connection in connections}
    filenos.pop(-1, None)
    closed = _closed(filenos)
    if waited_s > LATE_S:
        for fileno, connection in filenos.items():
            if fileno not in closed:
                _distrust(connection, _unread(fileno))
    return [connection for fileno, connection in filenos.items() if fileno in closed]


def _distrust(connection: StalledConnection, unread: int) -> None:
    """Mark `unread` bytes of the socket as late; close after replies if a queued request changes state."""
    connection.late_bytes = unread + connection.splitter.received
    queue = connection.queue
    place = next((place for place, pending in enumerate(queue) if pending.route.changes_state), None)
    if place is None:
        return
    name = queue[place].route.name
    while len(queue) > place:  # queued requests are the last of `pipeline`
        connection.server.request_bytes.release(queue.pop().held)
        connection.pipeline.pop()
    connection.close_after_replies(f"{name} {_WAITED}", None)


def take_late(connection: StalledConnection, data: bytes | memoryview, start: int, end: int) -> None:
    """Take one frame; a late frame only if its request changes no state. Raises DecodeError."""
    if connection.late_bytes <= 0:
        connection.take(data, start, end)
        return
    connection.late_bytes -= end - start + LENGTH_BYTES
    server, route = connection.server, None
    if end - start >= headers.FIXED.size:
        route_key = headers.FIXED.unpack_from(data, start)[0]
        route = server.routes.get(route_key) or server.routes.find(route_key)
    if route is None or not route.changes_state:
        connection.take(data, start, end)
        return
    refuse_frame(connection, f"{route.name} {_WAITED}", (data, start, end))


def _fileno(connection: StalledConnection) -> int:
    """The file descriptor of a connection, -1 without one."""
    return -1 if connection.transport is None else _fileno_of(connection.transport)


def _fileno_of(transport: Any) -> int:
    sock = transport.get_extra_info("socket")
    return -1 if sock is None else int(sock.fileno())


def _closed(filenos: Iterable[int]) -> set[int]:
    """File descriptors whose peer has closed, whether or not all of its bytes were read."""
    poll = select.poll()
    for fileno in filenos:
        poll.register(fileno, _CLOSED)
    return {fileno for fileno, events in poll.poll(0) if events & _CLOSED}


def _unread(fileno: int) -> int:
    """Bytes in the socket's receive buffer."""
    count = array.array("i", [0])
    with contextlib.suppress(OSError):
        fcntl.ioctl(fileno, termios.FIONREAD, count)
    return count[0]
