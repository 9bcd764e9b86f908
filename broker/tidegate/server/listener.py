"""The listeners of a broker and their connections: open, suspend, drain, close."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from time import perf_counter
from typing import Final, Protocol

import structlog

from tidegate.admissions import Admissions
from tidegate.apis.call import BrokerContext
from tidegate.apis.registry import Api
from tidegate.audit.ocsf import Origin, authentication
from tidegate.cluster.broker_lease import BrokerIdentity
from tidegate.memory import shares_of
from tidegate.protocol.framing import LARGE_BYTES
from tidegate.quotas.entities import Quota
from tidegate.quotas.leases import QuotaLeases
from tidegate.quotas.org_limits import OrgLimits
from tidegate.quotas.table import Quotas
from tidegate.security.identity import ANONYMOUS, DEFAULT_ORG
from tidegate.server import limits
from tidegate.server.certificate_connection import CertificateConnection
from tidegate.server.certificates import Certificates
from tidegate.server.connection import Connection
from tidegate.server.connection_rebalancing import REBALANCE_WINDOW_MS, ConnectionRebalancer
from tidegate.server.limits import RequestBytes
from tidegate.server.pending_request import PendingRequest
from tidegate.server.routes import Routes, Wrap
from tidegate.server.sasl_connection import SaslConnection
from tidegate.server.stalls import StallMonitor
from tidegate.server.sweeping import Sweeper
from tidegate.server.throttling import MeteredRoutes, metered
from tidegate.server.ticks import Tick
from tidegate.server.tls_port import TlsPort
from tidegate.settings import Settings
from tidegate.telemetry.declared import CONNECTIONS
from tidegate.telemetry.metrics import metrics
from tidegate.telemetry.rate_limited_log import RateLimitedLogger

logger = structlog.get_logger()

CHUNK_BYTES: Final = 256 * 1024
DRAIN_SPREAD: Final = 0.5
"""Part of a drain's budget over which connections are closed."""


class Port(Protocol):
    def is_serving(self) -> bool:
        """Whether new connections are accepted."""

    def close(self) -> None:
        """Stop accepting."""


class Server:
    """All listeners of one broker. `apis` is the table of served APIs."""

    def __init__(
        self,
        context: BrokerContext,
        apis: Mapping[int, Api],
        settings: Settings,
        *,
        request_type: type[PendingRequest] = PendingRequest,
        wrap: Wrap = attrgetter("handler"),
    ) -> None:
        self.context = context
        self.settings = settings
        self.routes = self._plain_routes = Routes(apis, wrap)
        self.request_type = self._plain_request_type = request_type
        self._leases: QuotaLeases | None = None
        self._org_limits: OrgLimits | None = None
        self._limits_connections = False
        self.draining = asyncio.Event()
        shares = shares_of(settings.memory_max)
        self.request_bytes = RequestBytes(shares.requests)
        self.request_bytes_max = min(limits.REQUEST_BYTES_MAX, shares.requests)
        self.large_requests = Admissions(shares.decoded // limits.DECODED_FACTOR)
        self.out_bytes_max = min(limits.OUT_BYTES_MAX, shares.unsent)
        self.unread_bytes_max = shares.unsent
        self._whole_buffer = self.shared_buffer = memoryview(bytearray(CHUNK_BYTES))
        """Read buffer of all connections: each chunk is copied out before the next read."""
        self.connections: dict[Connection, None] = {}
        """Connections in order of arrival (a dict as an ordered set), so that iteration is deterministic."""
        self.loop = asyncio.get_running_loop()
        self.ports: list[int] = []
        """Open ports, in the order of opening."""
        self._listeners: list[str] = []
        self.limited_log = RateLimitedLogger()
        self._opened: list[Port] = []
        self.tick = Tick(self.loop)
        self._last_connection_id = 0
        self.sweeper = Sweeper(self)
        self.stalls = StallMonitor(self)
        self.trusted_until_s = math.inf
        """Until when, by `perf_counter`, requests are taken unchecked: the lease is valid, the loop not stalled."""
        self.spreading = ConnectionRebalancer(self._shed_connections, self._serving, REBALANCE_WINDOW_MS)
        self.serving = True
        """Whether requests are taken; False while the broker's lease is suspect or lost."""
        self.lease_ends_s = math.inf
        """When the lease expires, by `perf_counter`; later requests wait for the lease's renewal."""
        self._refusing = False
        self._asked_s = self._doubted_s = -math.inf
        """Times of the last lease renewal attempt, and of the last expiry that followed a stall of this process."""
        self._suspended_s = math.inf
        """When reading stopped, by `perf_counter`; meaningful unless `serving`."""
        self._empty = asyncio.Event()
        self._empty.set()
        metrics.sample(CONNECTIONS, self._by_listener)

    # -- lifecycle

    async def open(self, host: str, port: int, listener: str = "PLAINTEXT", *, sasl: bool = False) -> int:
        """Listen on host:port; returns the port, also when `port` was 0. Raises OSError."""
        opened = await self.loop.create_server(self._connect(listener, sasl, tls=False), host, port, backlog=1024)
        return self._listening(opened, opened.sockets[0], listener, "SASL_PLAINTEXT" if sasl else "PLAINTEXT")

    def open_tls(self, sock: socket.socket, listener: str, certificates: Certificates, *, sasl: bool = False) -> int:
        """Listen with TLS on a bound socket; returns its port. Raises OSError."""
        opened = TlsPort(self, sock, listener, certificates, self._connect(listener, sasl, tls=True))
        opened.open()
        return self._listening(opened, sock, listener, "SASL_SSL" if sasl else "SSL")

    def _connect(self, listener: str, sasl: bool, tls: bool) -> Callable[[], Connection]:
        """Creates the connections of a listener, which know how its clients are identified."""
        security = self.context.security if sasl or tls else None
        if security is None:
            return lambda: Connection(self, listener)
        if sasl:
            return lambda: SaslConnection(self, listener, security.mechanisms)
        return lambda: CertificateConnection(self, listener, security.certificates)

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
        """Stop accepting; open connections are not affected."""
        for opened in self._opened:
            opened.close()

    # -- quotas

    def meter(self, leases: QuotaLeases | None) -> None:
        """Count what requests use from now on; None: there are no quotas, count nothing."""
        if self._org_limits is not None:
            self._limits_connections = self._org_limits.on_quotas_changed()
        if self._leases is leases:
            return
        self._leases = leases
        if leases is None:
            self.routes, self.request_type = self._plain_routes, self._plain_request_type
            return
        self.routes = MeteredRoutes(self._plain_routes)
        self.request_type = metered(self._plain_request_type, leases)
        self.forget_repeated_requests()

    def forget_repeated_requests(self) -> None:
        """Pass the next request of each connection to its handler: what allowed the one before has changed."""
        for connection in self.connections:
            connection.repeated = connection.client.repeat = None

    def limit_orgs(self, quotas: Quotas, process: str) -> OrgLimits:
        """Ask these limits, once they are started, before clients are admitted; `process` names this broker."""
        context, orgs = self.context, self._orgs_of_connections
        pressure, topics = context.memory_pressure, context.catalog.all_topics
        self._org_limits = OrgLimits(context.store, quotas, pressure, process, orgs, topics)
        return self._org_limits

    def _orgs_of_connections(self) -> Iterator[str]:
        """The organisation of each client that is connected, without those that have not authenticated."""
        for connection in self.connections:
            client = connection.client
            if client.sasl is None or client.sasl.identity is not None:
                yield client.org

    # -- the lease

    def serve(self, lease_left_s: float) -> None:
        """The lease is held for `lease_left_s`: take requests, including those that arrived while it was suspect."""
        self._asked_s = perf_counter()
        self.lease_ends_s = self._asked_s + lease_left_s
        self.extend_trust()
        self._refusing = False
        if not self.serving:
            self.stalls.drop_late(self._asked_s - self._suspended_s)
            self.serving, self._suspended_s = True, math.inf
            for connection in list(self.connections):
                connection.resume()

    def suspend(self) -> None:
        """The lease is suspect: stop reading; arriving requests stay in the socket buffers."""
        if self.serving:
            self._suspended_s = perf_counter()
        self.serving = False

    def refuse(self) -> None:
        """Abort all connections: the lease is lost, or was granted under another node id than clients know.

        Clients refresh their metadata. Members of aborted parked requests keep their membership in Redis.
        """
        self.serving = False
        self._refusing = True
        if self.connections:
            logger.warning("connections_closed_without_lease", connections=len(self.connections))
        for connection in list(self.connections):
            connection.abort()

    def extend_trust(self) -> None:
        """Recompute `trusted_until_s` after the lease was renewed or the event loop ran."""
        self.trusted_until_s = min(self.lease_ends_s, self.stalls.due_s)

    def read_less(self) -> None:
        """Small requests exceed their memory: read shorter chunks until the limit has capacity for them."""
        self.shared_buffer = self._whole_buffer[:LARGE_BYTES]
        self.request_bytes.pause(self, self._read_whole_chunks)

    def _read_whole_chunks(self) -> None:
        self.shared_buffer = self._whole_buffer

    def check_trust(self, now_s: float) -> None:
        """Bytes arrived after `trusted_until_s`: check for a stall of the process and for the end of the lease."""
        if now_s > self.stalls.due_s:
            self.stalls.check()
        if now_s > self.lease_ends_s:
            self.lease_overdue()

    def lease_overdue(self) -> None:
        """The lease expired and another broker may hold the node id: suspend until its renewal is answered.

        While Redis is unavailable no broker can take the lease over, so the broker continues and replies with retriable
        errors. A process that stalled cannot conclude this from its own broken connections, and suspends.
        """
        now_s = perf_counter()
        if now_s - self._asked_s > self.settings.broker_lease_suspect_ms / 1000:
            self._doubted_s = now_s
        if self._is_doubted(now_s) or self.context.store.metadata_node.control.connected:
            self.suspend()

    def stood_still(self) -> None:
        """This process stalled: if its lease expired meanwhile, it is not trusted for the time of a connection."""
        if (now_s := perf_counter()) > self.lease_ends_s:
            self._doubted_s = now_s

    def go_on_without_redis(self, lease_left_s: float) -> None:
        """Redis did not answer the renewal: serve, unless a recent stall of this process may be the reason."""
        if perf_counter() > self.stalls.due_s:
            self.stalls.check()
        self._asked_s = perf_counter()
        if not self._is_doubted(self._asked_s):
            self.serve(lease_left_s)

    def _is_doubted(self, now_s: float) -> bool:
        return now_s - self._doubted_s <= self.settings.redis_connect_timeout_ms / 1000

    async def drain(self, budget_ms: int) -> None:
        """Stop accepting, answer long polls, then close connections one by one within `budget_ms`.

        Running requests are answered. Requests that still wait at the end (parked joins) are aborted; their members
        keep their membership in Redis.
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
        """Abort all remaining connections."""
        self.stop_accepting()
        self.draining.set()
        self.spreading.close()
        self.sweeper.close()
        self.stalls.close()
        for connection in list(self.connections):
            connection.abort()
        await self._empty.wait()

    def _shed_connections(self, share: float) -> None:
        """Close a share of the connections. Behind one shared address only new connections reach other brokers."""
        self.sweeper.shed_connections(share, self.context.broker_lease.is_single)

    def _serving(self) -> set[BrokerIdentity]:
        return {one.identity for one in self.context.broker_lease.preferred()}

    # -- called by connections

    def next_connection_id(self) -> int:
        self._last_connection_id += 1
        return self._last_connection_id

    def admit(self, connection: Connection) -> bool:
        """Register a new connection; False above `connections_max`, without a lease, or if its client has given up."""
        if self._refusing or self.full() or not self.stalls.admits(connection):
            return False
        if self._limits_connections and connection.identified_on_accept and not self.admit_to_org(connection):
            return False
        if self._leases is not None:
            self._limit_rate(connection, self._leases)
        metrics.connections_opened += 1
        self.connections[connection] = None
        connection.client.software.connections += 1
        self._empty.clear()
        return True

    def admit_to_org(self, connection: Connection) -> bool:
        """Count a connection for its organisation, which is known; False if that has as many as it may."""
        org = connection.client.org
        if not self._limits_connections or self._org_limits is None or self._org_limits.admits(org):
            return True
        metrics.connections_refused += 1
        self.limited_log.warn("connections_refused_of_org", org=org, quota=Quota.CONNECTIONS.value)
        return False

    def _limit_rate(self, connection: Connection, leases: QuotaLeases) -> None:
        """A connection above its address's quota is not served, and closed when the quota has recovered (KIP-612)."""
        host, *_ = connection.transport.get_extra_info("peername") or ("",)
        wait_s = leases.connect(host)
        if wait_s > 0:
            metrics.throttled(Quota.CONNECTION.value).observe(wait_s)
            connection.mute(math.inf)
            self.loop.call_later(wait_s, connection.abort)

    def _by_listener(self) -> dict[tuple[str, ...], float]:
        found = Counter(connection.client.listener for connection in self.connections)
        return {(name,): found[name] for name in {*self._listeners, *found}}

    def full(self, coming: int = 0) -> bool:
        """Whether `connections_max` is reached, counting `coming` connections that are still in their handshake."""
        if len(self.connections) + coming < self.settings.connections_max:
            return False
        metrics.connections_refused += 1
        self.limited_log.warn("connections_refused", connections_max=self.settings.connections_max)
        return True

    def on_tls_handshake(self, connection: Connection) -> None:
        """A client sent a TLS handshake to a plaintext listener: close without a reset, and log the remedy."""
        client = connection.client
        self.limited_log.warn(
            "tls_on_plaintext_listener",
            listener=client.listener,
            host=client.host,
            do="set security.protocol=PLAINTEXT at the client, or have it connect to an SSL listener",
        )
        connection.drain()

    def on_certificate_refused(self, listener: str, host: str, reason: str) -> None:
        """Audit that a client's certificate was refused in the handshake."""
        trail = self.context.audit
        if trail is not None:
            origin = Origin(ANONYMOUS, DEFAULT_ORG, host, 0, listener)
            trail.note_repeatable((host, listener, reason), lambda: authentication(origin, "TLS", reason))

    def forget(self, connection: Connection) -> None:
        """Unregister a closed connection."""
        if self.connections.pop(connection, connection) is None:
            connection.client.software.connections -= 1
        if not self.connections:
            self._empty.set()
