"""What a broker does with requests that lay in its sockets while the process stood still (SIGSTOP, a frozen host).

Their clients may have given up, gone to another broker and been answered there: an old commit would overwrite a
newer one. Two rules apply after a gap of the event loop, by the monotonic clock, which runs on meanwhile:

- above `STALL_S`: what a peer that has closed its side left unread is discarded;
- above `LATE_S`: of the bytes that were there at the wake-up, requests that change nothing are executed (they are
  harmless when late); at the first that changes something the connection closes, behind the replies before it.
  The client connects and sends again what it still wants.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import select
import termios
from time import perf_counter
from typing import TYPE_CHECKING, Final

import structlog

from tidegate.protocol import headers
from tidegate.protocol.framing import LENGTH_BYTES

if TYPE_CHECKING:
    from tidegate.server.connection import Connection
    from tidegate.server.listener import Server

logger = structlog.get_logger()

BEAT_S: Final = 0.25
"""Between two observations that the event loop turns."""
STALL_S: Final = 1.0
"""A gap above this is a stall. Clients' shortest time-outs (session, request) are several times as long."""
LATE_S: Final = 2.0
"""Requests that may have waited this long are late. No client gives a request up earlier and stays connected."""

_WAITED: Final = "waited while this process stood still"
_CLOSED: Final = select.POLLHUP | select.POLLERR | select.POLLNVAL | getattr(select, "POLLRDHUP", 0)


class StallMonitor:
    """Notices stalls of the event loop: by a timer, and by the first bytes that arrive after one."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._timer: asyncio.TimerHandle | None = None
        self.alive_s = perf_counter()
        """When the event loop last turned, by `perf_counter`, to within `BEAT_S`."""

    def start(self) -> None:
        """Begin, once."""
        if self._timer is None:
            self.alive_s = perf_counter()
            self._beat()

    def close(self) -> None:
        """Stop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def due_s(self) -> float:
        """Until when no check is needed, by `perf_counter`; without end before `start`."""
        return self.alive_s + STALL_S if self._timer is not None else float("inf")

    def _beat(self) -> None:
        self._timer = self._server.loop.call_later(BEAT_S, self._beat)
        self.check()

    def check(self) -> None:
        """Note that the event loop turns; after a stall, decide about what lies in the sockets first."""
        now_s = perf_counter()
        gap_s, self.alive_s = now_s - self.alive_s, now_s
        self._server.extend_trust()
        if gap_s > STALL_S:
            self._after_stall(gap_s)

    def _after_stall(self, gap_s: float) -> None:
        connections = {_fileno(connection): connection for connection in self._server.connections}
        connections.pop(-1, None)
        closed = _closed(connections)
        logger.warning("event_loop_stalled", stall_ms=round(gap_s * 1000), closed_connections=len(closed))
        for fileno, connection in connections.items():
            if fileno in closed:
                connection.abort()
            elif gap_s > LATE_S:
                _distrust(connection, _unread(fileno))


def _distrust(connection: Connection, unread: int) -> None:
    """Requests among `unread` bytes in the socket are late, and so are those that wait behind others."""
    connection.late_bytes = unread + connection.splitter.received
    queue = connection.queue
    place = next((place for place, pending in enumerate(queue) if pending.route.changes_state), None)
    if place is None:
        return
    name = queue[place].route.name
    while len(queue) > place:  # they are the last of `pipeline`
        connection.server.request_bytes.release(queue.pop().held)
        connection.pipeline.pop()
    connection.close_after_replies(f"{name} {_WAITED}", None)


def take_late(connection: Connection, data: bytes | memoryview, start: int, end: int) -> None:
    """Take one frame; one that lay in the socket during a stall only if it changes nothing. Raises DecodeError."""
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
    if type(data) is memoryview:
        server.request_bytes.release(end - start)
    connection.close_after_replies(f"{route.name} {_WAITED}", None)


def _fileno(connection: Connection) -> int:
    """The file descriptor of a connection, -1 without one."""
    sock = connection.transport.get_extra_info("socket") if connection.transport is not None else None
    return -1 if sock is None else int(sock.fileno())


def _closed(filenos: dict[int, Connection]) -> set[int]:
    """Those whose peer has closed, whether or not what it sent before was read."""
    poll = select.poll()
    for fileno in filenos:
        poll.register(fileno, _CLOSED)
    return {fileno for fileno, events in poll.poll(0) if events & _CLOSED}


def _unread(fileno: int) -> int:
    """Bytes that a socket has received and nobody has read."""
    count = array.array("i", [0])
    with contextlib.suppress(OSError):
        fcntl.ioctl(fileno, termios.FIONREAD, count)
    return count[0]
