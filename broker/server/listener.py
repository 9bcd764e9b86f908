"""The ports of a broker and the connections behind them: opening, sweeping, draining, closing."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Mapping
from time import perf_counter
from typing import Final

import structlog

from broker.apis.call import Rooms
from broker.apis.registry import Api
from broker.server.connection import Connection
from broker.server.dispatch import Routes
from broker.server.limits import RequestBytes
from broker.settings import Settings
from broker.telemetry.metrics import CONNECTIONS, metrics

logger = structlog.get_logger()

CHUNK_BYTES: Final = 256 * 1024
SWEEP_INTERVAL_S: Final = 5.0
AGE_JITTER: Final = 0.2
DRAIN_SPREAD: Final = 0.5
"""Share of a drain's budget over which connections are closed."""


class Server:
    """All listeners of one broker. `rooms` and the table of served APIs come from `app.py`."""

    def __init__(self, rooms: Rooms, apis: Mapping[int, Api], settings: Settings) -> None:
        self.rooms = rooms
        self.settings = settings
        self.routes = Routes(apis)
        self.draining = asyncio.Event()
        self.request_bytes = RequestBytes(settings.requests_in_flight_bytes_max)
        self.shared_room = memoryview(bytearray(CHUNK_BYTES))
        """What sockets read into: a chunk is copied out before the next one is read."""
        self.connections: dict[Connection, None] = {}
        """In the order in which they came, so that what is done to all is done in one order."""
        self.loop = asyncio.get_running_loop()
        self.ports: list[int] = []
        """The ports that were opened, in order."""
        self._opened: list[asyncio.Server] = []
        self._dirty: list[Connection] = []
        self._last_connection_id = 0
        self._sweeper: asyncio.Task[None] | None = None
        self._refusal_told_s = -60.0
        self.serving = True
        """Whether requests are taken: not while this broker's lease is in doubt, nor without one."""
        self.lease_ends_s = math.inf
        """When the lease ends by itself, by `perf_counter`; past it, requests wait for what Redis says."""
        self._refusing = False
        self._asked_s = self._doubted_s = -math.inf
        """When the lease was last asked for, and when requests last came after a time of not even asking."""
        self._empty = asyncio.Event()
        self._empty.set()
        metrics.sample(CONNECTIONS, lambda: {(): len(self.connections)})

    # -- life

    async def open(self, host: str, port: int, listener: str = "PLAINTEXT") -> int:
        """Accept on host:port; the port, which may have been given as 0. Raises OSError."""
        opened = await self.loop.create_server(lambda: Connection(self, listener), host, port, backlog=1024)
        self._opened.append(opened)
        if self._sweeper is None:
            self._sweeper = self.loop.create_task(self._sweep())
        bound: int = opened.sockets[0].getsockname()[1]
        self.ports.append(bound)
        logger.info("listening", host=host, port=bound, listener=listener)
        return bound

    @property
    def listening(self) -> bool:
        """Whether new connections are accepted."""
        return any(opened.is_serving() for opened in self._opened)

    def stop_accepting(self) -> None:
        """Refuse new connections; those that are open go on."""
        for opened in self._opened:
            opened.close()

    # -- the lease

    def serve(self, lease_ends_s: float) -> None:
        """The lease is held: take requests, also those that came while it was in doubt."""
        self.lease_ends_s, self._asked_s = lease_ends_s, perf_counter()
        self._refusing = False
        if not self.serving:
            self.serving = True
            for connection in list(self.connections):
                connection.resume()

    def suspend(self) -> None:
        """The lease is in doubt: take nothing more; requests that come stay in their sockets."""
        self.serving = False

    def refuse(self) -> None:
        """There is no lease, or one under another node id than clients know: they are to ask another broker.

        What is parked is cut, and keeps its place in the store.
        """
        self.serving = False
        self._refusing = True
        if self.connections:
            logger.warning("connections_closed_without_lease", connections=len(self.connections))
        for connection in list(self.connections):
            connection.abort()

    def lease_overdue(self) -> None:
        """The lease ended by itself, and may be another's by now: wait for what Redis says.

        Without Redis nobody else has it either, and clients are told to try again. But that Redis is away is known
        only to who went on asking: a process that stood still finds its connections broken where others had none.
        """
        now_s = perf_counter()
        stood_still = now_s - self._asked_s > self.settings.lease_suspect_ms / 1000
        if stood_still:
            self._doubted_s = now_s
        if stood_still or self.rooms.store.control.connected:
            self.suspend()

    def go_on_without_redis(self, lease_ends_s: float) -> None:
        """Redis did not renew the lease: serve, unless this process stood still so lately that it cannot know why."""
        self._asked_s = perf_counter()
        if self._asked_s - self._doubted_s > self.settings.redis_connect_timeout_ms / 1000:
            self.serve(lease_ends_s)

    async def drain(self, budget_ms: int) -> None:
        """Let clients go to other brokers: no new connections, long polls answered, the rest closed bit by bit.

        Requests under way are answered. What still waits when the budget ends (parked joins) is cut: its
        place is kept in the store.
        """
        ends_s = perf_counter() + budget_ms / 1000
        self.stop_accepting()
        self.draining.set()
        leaving = list(self.connections)
        random.shuffle(leaving)
        pause_s = budget_ms / 1000 * DRAIN_SPREAD / max(len(leaving), 1)
        for connection in leaving:
            connection.leave()
            await asyncio.sleep(min(pause_s, 0.1))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), max(ends_s - perf_counter(), 0))
        await self.close()

    async def close(self) -> None:
        """Cut whatever is left."""
        self.stop_accepting()
        self.draining.set()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in list(self.connections):
            connection.abort()
        await self._empty.wait()

    # -- for connections

    def next_connection_id(self) -> int:
        """A number of its own for each connection."""
        self._last_connection_id += 1
        return self._last_connection_id

    def admit(self, connection: Connection) -> bool:
        """Take a new connection in, unless there are too many, or no lease to serve it under."""
        if self._refusing:
            return False
        if len(self.connections) >= self.settings.connections_max:
            metrics.connections_refused += 1
            now_s = perf_counter()
            if now_s - self._refusal_told_s > 10:
                self._refusal_told_s = now_s
                logger.warning("connections_refused", connections_max=self.settings.connections_max)
            return False
        metrics.connections_opened += 1
        self.connections[connection] = None
        self._empty.clear()
        return True

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        self.connections.pop(connection, None)
        if not self.connections:
            self._empty.set()

    def flush_soon(self, connection: Connection) -> None:
        """Have a connection write at the end of this tick."""
        if not self._dirty:
            self.loop.call_soon(self._flush_all)
        self._dirty.append(connection)

    def _flush_all(self) -> None:
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.flush()

    async def _sweep(self) -> None:
        """One look at all connections every few seconds instead of a timer for each request."""
        settings = self.settings
        interval_s = min(SWEEP_INTERVAL_S, settings.connections_max_idle_ms / 4000)
        while True:
            await asyncio.sleep(interval_s)
            now_s = perf_counter()
            for connection in list(self.connections):
                age_s = settings.connections_max_age_ms / 1000 * (1 + AGE_JITTER * connection.jitter)
                try:
                    connection.sweep(now_s, age_s)
                except Exception:
                    logger.exception("connection_not_swept", connection=connection.client.connection_id)
