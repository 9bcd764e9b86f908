"""Work of all connections in one iteration of the event loop: reads, of which there is a limit, and replies.

libuv reads up to 48 times 1,024 ready sockets before it runs timers and callbacks again (`uv__io_poll`). With thousands
of busy clients, everything that is not answered on arrival would wait for a second and more: replies of Redis, renewals
of leases, other requests.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

import structlog

from tidegate.apis.call import Client

logger = structlog.get_logger()

READS_AT_ONCE: Final = 1_024
"""Reads after which the event loop is asked to run callbacks. After as many again, connections wait until it did; of
those that wait, one iteration takes as many at most."""


class Flushed(Protocol):
    """What a tick uses of a connection."""

    client: Client

    def flush(self) -> None:
        """Send the replies that became ready in this tick."""

    def abort(self) -> None:
        """Close at once."""


class Tick:
    """What all connections do together in an iteration of the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.reads_left = READS_AT_ONCE
        """Connections count their reads down, over one or more iterations; below zero they ask `exhausted`."""
        self._ending = False
        self._dirty: list[Flushed] = []

    def exhausted(self) -> bool:
        """Whether callbacks did not run for too many reads: what is read now is to wait."""
        if self._ending:
            return True
        self._ending = True
        self.reads_left = READS_AT_ONCE - 1
        self._loop.call_soon(self._end)
        return False

    def is_full(self) -> bool:
        """Count a read; whether it is to wait."""
        self.reads_left -= 1
        return self.reads_left < 0 and self.exhausted()

    def _end(self) -> None:
        self._ending = False
        self.reads_left = READS_AT_ONCE

    def flush_soon(self, connection: Flushed) -> None:
        """Schedule a connection's `flush` for the end of this tick."""
        if not self._dirty:
            self._loop.call_soon(self._flush_all)
        self._dirty.append(connection)

    def _flush_all(self) -> None:
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            try:
                connection.flush()
            except Exception:  # the others' replies are not its concern
                logger.exception("replies_not_sent", host=connection.client.host)
                connection.abort()
