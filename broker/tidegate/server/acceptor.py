"""What connections use of the server that accepted them."""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeVar

from tidegate.admissions import Admissions
from tidegate.apis.call import BrokerContext
from tidegate.server.limits import RequestBytes
from tidegate.server.pending_request import PendingRequest
from tidegate.server.routes import Routes
from tidegate.server.ticks import Tick
from tidegate.settings import Settings
from tidegate.telemetry.rate_limited_log import RateLimitedLogger

Accepted = TypeVar("Accepted", contravariant=True)


class Acceptor(Protocol[Accepted]):
    """What a connection uses of its server."""

    context: BrokerContext
    settings: Settings
    loop: asyncio.AbstractEventLoop
    draining: asyncio.Event
    routes: Routes
    request_type: type[PendingRequest]
    request_bytes: RequestBytes
    large_requests: Admissions
    request_bytes_max: int
    out_bytes_max: int
    shared_buffer: memoryview
    tick: Tick
    trusted_until_s: float
    serving: bool
    limited_log: RateLimitedLogger

    def next_connection_id(self) -> int:
        """A new id."""

    def admit(self, connection: Accepted) -> bool:
        """Register a connection; False above `connections_max`, without a lease, or if its client has given up."""

    def admit_to_org(self, connection: Accepted) -> bool:
        """Count a connection for its client's organisation; False if that has as many as it may."""

    def read_less(self) -> None:
        """Small requests exceed their memory."""

    def check_trust(self, now_s: float) -> None:
        """Bytes arrived after `trusted_until_s`."""

    def on_tls_handshake(self, connection: Accepted) -> None:
        """The client speaks TLS to a plaintext listener."""

    def forget(self, connection: Accepted) -> None:
        """Unregister a closed connection."""
