"""The ports of a broker and the connections behind them: opening, sweeping, draining, closing."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import socket
from collections import Counter
from collections.abc import Mapping
from time import perf_counter
from typing import Final, Protocol

import structlog

from tidegate.apis.call import BrokerContext
from tidegate.apis.registry import Api
from tidegate.server.certificates import Certificates
from tidegate.server.connection import Connection
from tidegate.server.connection_rebalancing import ConnectionRebalancer
from tidegate.server.dispatch import Routes
from tidegate.server.limits import RequestBytes
from tidegate.server.pending_request import PendingRequest
from tidegate.server.stalls import StallMonitor
from tidegate.server.sweeping import Sweeper
from tidegate.server.tls_port import TlsPort
from tidegate.settings import Settings
from tidegate.telemetry.declared import CONNECTIONS
from tidegate.telemetry.metrics import metrics
from tidegate.telemetry.rate_limited_log import RateLimitedLogger

logger = structlog.get_logger()

CHUNK_BYTES: Final = 256 * 1024
DRAIN_SPREAD: Final = 0.5
"""Share of a drain's budget over which connections are closed."""


class Port(Protocol):
    """A port that may be open."""

    def is_serving(self) -> bool:
        """Whether new connections are accepted."""

    def close(self) -> None:
        """Accept no more."""


class Server:
    """All listeners of one broker. `context` and the table of served APIs come from `app.py`."""

    def __init__(self, context: BrokerContext, apis: Mapping[int, Api], settings: Settings) -> None:
        self.context = context
        self.settings = settings
        self.routes = Routes(apis)
        self.request_type = PendingRequest
        self.draining = asyncio.Event()
        self.request_bytes = RequestBytes(settings.requests_in_flight_bytes_max)
        self.shared_room = memoryview(bytearray(CHUNK_BYTES))
        """What sockets read into: a chunk is copied out before the next one is read."""
        self.connections: dict[Connection, None] = {}
        """In the order in which they came, so that what is done to all is done in one order."""
        self.loop = asyncio.get_running_loop()
        self.ports: list[int] = []
        """The ports that were opened, in order."""
        self._listeners: list[str] = []
        self.limited_log = RateLimitedLogger()
        self._opened: list[Port] = []
        self._dirty: list[Connection] = []
        self._last_connection_id = 0
        self.sweeper = Sweeper(self)
        self.stalls = StallMonitor(self)
        self.trusted_until_s = math.inf
        """Until when requests are taken unchecked, by `perf_counter`: the lease holds, the event loop turned."""
        self.spreading = ConnectionRebalancer(
            self._shed_connections, self._serving, settings.connection_rebalance_window_ms
        )
        self.serving = True
        """Whether requests are taken: not while this broker's lease is in doubt, nor without one."""
        self.lease_ends_s = math.inf
        """When the lease ends by itself, by `perf_counter`; past it, requests wait for what Redis says."""
        self._refusing = False
        self._asked_s = self._doubted_s = -math.inf
        """When the lease was last asked for, and when requests last came after a time of not even asking."""
        self._empty = asyncio.Event()
        self._empty.set()
        metrics.sample(CONNECTIONS, self._by_listener)

    # -- life

    async def open(self, host: str, port: int, listener: str = "PLAINTEXT") -> int:
        """Accept on host:port; the port, which may have been given as 0. Raises OSError."""
        opened = await self.loop.create_server(lambda: Connection(self, listener), host, port, backlog=1024)
        return self._listening(opened, opened.sockets[0], listener, "PLAINTEXT")

    def open_tls(self, sock: socket.socket, listener: str, certificates: Certificates) -> int:
        """Accept TLS on a bound socket; its port. Raises OSError."""
        opened = TlsPort(self, sock, listener, certificates)
        opened.open()
        return self._listening(opened, sock, listener, "SSL")

    def _listening(self, opened: Port, sock: socket.socket, listener: str, protocol: str) -> int:
        self._opened.append(opened)
        self.sweeper.start()
        self.stalls.start()
        host, port, *_ = sock.getsockname()
        self.ports.append(port)
        self._listeners.append(listener)
        logger.info("listening", host=host, port=port, listener=listener, protocol=protocol)
        return int(port)

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
        self.extend_trust()
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

    def extend_trust(self) -> None:
        """The lease or the last turn of the event loop was observed anew."""
        self.trusted_until_s = min(self.lease_ends_s, self.stalls.due_s)

    def check_trust(self, now_s: float) -> None:
        """Bytes arrived after `trusted_until_s`: did this process stand still, did its lease end?"""
        if now_s > self.stalls.due_s:
            self.stalls.check()
        if now_s > self.lease_ends_s:
            self.lease_overdue()

    def lease_overdue(self) -> None:
        """The lease ended by itself, and may be another's by now: wait for what Redis says.

        Without Redis nobody else has it either, and clients are told to try again. But that Redis is away is known
        only to who went on asking: a process that stood still finds its connections broken where others had none.
        """
        now_s = perf_counter()
        stood_still = now_s - self._asked_s > self.settings.lease_suspect_ms / 1000
        if stood_still:
            self._doubted_s = now_s
        if stood_still or self.context.store.metadata_node.control.connected:
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
            connection.drain()
            await asyncio.sleep(min(pause_s, 0.1))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(ends_s - perf_counter(), 0)):
                await self._empty.wait()
        await self.close()

    async def close(self) -> None:
        """Cut whatever is left."""
        self.stop_accepting()
        self.draining.set()
        self.spreading.close()
        self.sweeper.close()
        self.stalls.close()
        for connection in list(self.connections):
            connection.abort()
        await self._empty.wait()

    def _shed_connections(self, share: float) -> None:
        """Have some clients ask anew who leads and coordinates. Behind one address only new connections get there."""
        self.sweeper.shed_connections(share, self.context.broker_lease.is_single)

    def _serving(self) -> set[int]:
        return {one.node_id for one in self.context.broker_lease.preferred()}

    # -- for connections

    def next_connection_id(self) -> int:
        """A number of its own for each connection."""
        self._last_connection_id += 1
        return self._last_connection_id

    def admit(self, connection: Connection) -> bool:
        """Take a new connection in, unless there are too many, or no lease to serve it under."""
        if self._refusing or self.full():
            return False
        metrics.connections_opened += 1
        self.connections[connection] = None
        connection.client.software.connections += 1
        self._empty.clear()
        return True

    def _by_listener(self) -> dict[tuple[str, ...], float]:
        found = Counter(connection.client.listener for connection in self.connections)
        return {(name,): found[name] for name in {*self._listeners, *found}}

    def full(self, coming: int = 0) -> bool:
        """Whether one more connection, beside those that are `coming`, must be refused."""
        if len(self.connections) + coming < self.settings.connections_max:
            return False
        metrics.connections_refused += 1
        self.limited_log.warn("connections_refused", connections_max=self.settings.connections_max)
        return True

    def tls_came(self, connection: Connection) -> None:
        """A client speaks TLS on a plain port: close without a reset, and say what to do."""
        client = connection.client
        self.limited_log.warn(
            "tls_on_plaintext_listener",
            listener=client.listener,
            host=client.host,
            do="set security.protocol=PLAINTEXT at the client, or have it connect to an SSL listener",
        )
        connection.drain()

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        if self.connections.pop(connection, connection) is None:
            connection.client.software.connections -= 1
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
