"""A connection of a SASL listener: until the client is authenticated, it may only authenticate (KIP-43, KIP-368)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Final

from tidegate.audit import ocsf
from tidegate.protocol import headers
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.framing import Splitter
from tidegate.protocol.primitives import DecodeError
from tidegate.security.identity import Identity
from tidegate.security.session import MakeAuthentication, SaslSession
from tidegate.server.acceptor import Acceptor
from tidegate.server.audited_requests import origin_of
from tidegate.server.bad_frames import refuse_frame
from tidegate.server.connection import Connection
from tidegate.telemetry.metrics import metrics

UNAUTHENTICATED_BYTES_MAX: Final = 512 * 1024
"""Of one request before authentication (Kafka's sasl.server.max.receive.size)."""
AUTHENTICATION_TIMEOUT_S: Final = 30.0

ABOVE_LIMIT_S: Final = 1.0
"""A client above its organisation's limit of connections is not served for this time, then disconnected."""

_BEFORE: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
_AGAIN: Final = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})


class SaslConnection(Connection):
    """A client that has not authenticated after AUTHENTICATION_TIMEOUT_S is disconnected."""

    identified_on_accept = False

    def __init__(self, server: Acceptor[Connection], listener: str, offered: Mapping[str, MakeAuthentication]) -> None:
        super().__init__(server, listener)
        self._session = self.client.sasl = SaslSession(
            offered, server.settings.connections_max_reauth_ms, self._authenticated, self._refused
        )
        self.splitter = Splitter(min(UNAUTHENTICATED_BYTES_MAX, server.request_bytes_max))
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._timer = self.server.loop.call_later(AUTHENTICATION_TIMEOUT_S, self._too_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)
        self._session.end()

    def take(self, data: bytes | memoryview, start: int, end: int) -> None:
        """Take requests of authentication; others only from a client whose session has not expired."""
        if end - start < headers.FIXED.size:
            raise DecodeError(f"a frame of {end - start} bytes")
        api_key, _ = headers.api_and_version(headers.FIXED.unpack_from(data, start)[0])
        if self._session.identity is None:
            if api_key not in _BEFORE or (api_key == ApiKey.SASL_AUTHENTICATE and not self._session.mechanism):
                refuse_frame(self, f"API {api_key} before SASL authentication", (data, start, end))
                return
        elif self._session.expired and api_key not in _AGAIN:
            refuse_frame(self, "the SASL session has expired", (data, start, end))
            return
        is_exchanging = self._session.is_exchanging
        super().take(data, start, end)
        if is_exchanging and api_key == ApiKey.API_VERSIONS:
            self.close_after_replies("ApiVersions within a SASL exchange", None)

    def _authenticated(self, identity: Identity) -> None:
        metrics.authentications += 1
        is_new = self._timer is not None
        self._stop_timer()
        self.client.principal, self.client.org = identity.principal, identity.org
        self.repeated = None
        self._audit(None)
        self.splitter.frame_bytes_max = self.server.request_bytes_max
        if is_new and not self.server.admit_to_org(self):
            self.mute(math.inf)
            self.server.loop.call_later(ABOVE_LIMIT_S, self.abort)

    def _refused(self, reason: str) -> None:
        """Disconnect after the reply that says so."""
        metrics.authentications_failed += 1
        self._audit(reason)
        self.server.limited_log.warn(
            "authentication_failed",
            listener=self.client.listener,
            host=self.client.host,
            mechanism=self._session.mechanism,
            reason=reason,
        )
        self.drain()

    def _audit(self, refused: str | None) -> None:
        trail, client, mechanism = self.server.context.audit, self.client, self._session.mechanism
        if trail is not None and refused is None:
            trail.note(ocsf.authentication(origin_of(client, self.client_id), mechanism))
        elif trail is not None:
            key = (client.host, client.listener, mechanism, refused)
            trail.note_repeatable(key, lambda: ocsf.authentication(origin_of(client), mechanism, refused))

    def _too_late(self) -> None:
        self.abort("no authentication in time")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
