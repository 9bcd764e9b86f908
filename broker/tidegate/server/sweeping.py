"""Which connections the broker closes on its own: idle, stuck, too old, or to rebalance towards joined brokers."""

from __future__ import annotations

import asyncio
import heapq
import math
import random
from collections.abc import Callable, Iterable
from enum import Enum, auto
from operator import itemgetter
from time import perf_counter
from typing import Any, Final, Protocol

import structlog

from tidegate.apis.call import Client
from tidegate.protocol.framing import Splitter
from tidegate.server import limits
from tidegate.server.connection_rebalancing import REBALANCE_WINDOW_MS
from tidegate.server.muting import BLOCKED_ON_WRITE
from tidegate.settings import Settings
from tidegate.telemetry.metrics import metrics

logger = structlog.get_logger()

CHECK_INTERVAL_S: Final = 1.0
SWEEP_INTERVAL_S: Final = 5.0
FRAME_BYTES_PER_S_MIN: Final = 32 * 1024
"""Minimum rate of a request after `limits.FRAME_TIMEOUT_S`: 100 MiB arrive in less than an hour."""
AGE_JITTER: Final = 0.2
NOTICE_S: Final = 2.0
"""Delay before clients are redirected to a new broker, s: the other brokers need it to refresh their registry."""


class ConnectionState(Enum):
    """Activity of a connection."""

    READING = auto()
    """A partial request, or closing."""
    BLOCKED_ON_WRITE = auto()
    """Replies that the client does not read."""
    WAITING = auto()
    """A request that may wait for other members (JoinGroup) or for memory; never closed for a rebalance."""
    SERVING = auto()
    """Requests that are answered soon; a long poll at the end of its wait time."""
    IDLE = auto()
    """No request, or a delayed heartbeat."""


class SweptConnection(Protocol):
    """What the sweeper uses of a connection."""

    client: Client
    splitter: Splitter
    last_active_s: float
    opened_s: float
    taken_s: float
    half_since_s: float
    jitter: float
    blocked: int
    transport: Any

    @property
    def state(self) -> ConnectionState:
        """Its activity now."""

    def drain(self) -> None:
        """Close between requests."""

    def abort(self, reason: str) -> None:
        """Close at once."""


class SweptServer(Protocol):
    """What the sweeper uses of the server."""

    settings: Settings
    draining: asyncio.Event
    loop: asyncio.AbstractEventLoop
    unread_bytes_max: int

    @property
    def connections(self) -> Iterable[SweptConnection]:
        """The open connections."""


class Sweeper:
    """Checks every connection periodically, instead of one timer each."""

    def __init__(self, server: SweptServer) -> None:
        self._server = server
        self._draining: list[tuple[float, int, SweptConnection]] = []
        """Heap of connections to be closed for a rebalance, by time."""
        self._unsent: dict[SweptConnection, tuple[int, float]] = {}
        """Connections whose write buffer is full -> its bytes, and `last_active_s`, at the last check."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task; a second call has no effect."""
        if self._task is None:
            self._task = self._server.loop.create_task(self._run(), name="sweeper")

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def shed_connections(self, share: float, all_of: Callable[[str], bool] = lambda listener: False) -> None:
        """Close this share of the connections, and all of listeners in `all_of`, over REBALANCE_WINDOW_MS.

        Their clients reconnect at once and refresh metadata and coordinators.
        """
        spread_s, now_s = REBALANCE_WINDOW_MS / 1000, perf_counter()
        if not spread_s or self._server.draining.is_set():
            return
        chosen = 0
        for connection in self._server.connections:
            listener = connection.client.listener
            if all_of(listener) or random.random() < share:  # noqa: S311 - spreads reconnects, no secret
                due_s = now_s + NOTICE_S + random.random() * spread_s  # noqa: S311
                heapq.heappush(self._draining, (due_s, connection.client.connection_id, connection))
                chosen += 1
        if chosen:
            logger.info("connections_rebalanced", share=round(share, 2), connections=chosen)

    async def _run(self) -> None:
        idle_s = self._server.settings.connections_max_idle_ms / 1000
        check_interval_s, sweep_s = min(CHECK_INTERVAL_S, idle_s / 4), min(SWEEP_INTERVAL_S, idle_s / 4)
        swept_s = perf_counter()
        while True:
            await asyncio.sleep(check_interval_s)
            now_s = perf_counter()
            self._abort_drained(now_s)
            self.drop_unread()
            if now_s - swept_s < sweep_s:
                continue
            swept_s = now_s
            for connection in list(self._server.connections):
                try:
                    self.sweep(connection, now_s)
                except Exception:
                    logger.exception("connection_not_swept", connection=connection.client.connection_id)

    def drop_unread(self) -> None:
        """Close the connections with the most bytes that nobody reads, until the others fit in `unread_bytes_max`.

        A connection counts if its client has read nothing since the check before.
        """
        before, self._unsent = self._unsent, {}
        unread = list[tuple[int, SweptConnection]]()
        for connection in self._server.connections:
            if connection.blocked & BLOCKED_ON_WRITE:
                size, active_s = connection.transport.get_write_buffer_size(), connection.last_active_s
                self._unsent[connection] = size, active_s
                if before.get(connection) == (size, active_s):
                    unread.append((size, connection))
        total = sum(size for size, _ in unread)
        for size, connection in sorted(unread, key=itemgetter(0), reverse=True):
            if total <= self._server.unread_bytes_max:
                break
            connection.abort("does not read its answers, and no memory is left for them")
            total -= size

    def _abort_drained(self, now_s: float) -> None:
        """Drain connections that are due; those that wait for other members are retried after `CHECK_INTERVAL_S`."""
        leaving = self._draining
        while leaving and leaving[0][0] <= now_s:
            _, connection_id, connection = heapq.heappop(leaving)
            if connection not in self._server.connections:
                continue
            if connection.state in (ConnectionState.SERVING, ConnectionState.IDLE):
                metrics.connections_rebalanced += 1
                connection.drain()
            else:
                heapq.heappush(leaving, (now_s + CHECK_INTERVAL_S, connection_id, connection))

    def _receives_too_slowly(self, connection: SweptConnection, now_s: float) -> bool:
        """Whether a partial frame is below the minimum rate; called at each sweep that finds one."""
        if connection.half_since_s == math.inf or connection.half_since_s < connection.taken_s:
            connection.half_since_s = now_s
        overdue_s = now_s - connection.half_since_s - limits.FRAME_TIMEOUT_S
        return overdue_s * FRAME_BYTES_PER_S_MIN > connection.splitter.received

    def sweep(self, connection: SweptConnection, now_s: float) -> None:
        """Close a connection that is stuck, idle or too old."""
        settings, state = self._server.settings, connection.state
        silent_ms = (now_s - connection.last_active_s) * 1000
        if state is ConnectionState.READING:
            if silent_ms > limits.FRAME_TIMEOUT_S * 1000:
                connection.abort("stopped in the middle of a request or of our answers")
            elif self._receives_too_slowly(connection, now_s):
                connection.abort("sends a request too slowly")
        elif state is ConnectionState.BLOCKED_ON_WRITE:
            if silent_ms > settings.connections_max_idle_ms:
                connection.abort("does not read its answers")
        elif state is not ConnectionState.WAITING:
            idle = state is ConnectionState.IDLE and silent_ms > settings.connections_max_idle_ms
            age_ms_max = settings.connections_max_age_ms * (1 + AGE_JITTER * connection.jitter)
            if idle or (age_ms_max and (now_s - connection.opened_s) * 1000 > age_ms_max):
                connection.drain()
