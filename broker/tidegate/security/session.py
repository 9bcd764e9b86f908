"""The SASL state of one connection: the exchange under way, then who the client is, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic, time
from typing import Final, Protocol

from tidegate.errors import KafkaError
from tidegate.security.errors import IllegalSaslState, SaslAuthenticationFailed, UnsupportedSaslMechanism
from tidegate.security.identity import Identity

TOKEN_BYTES_MAX: Final = 64 * 1024
"""Of one SASL message; an OAuth token has some kB."""


class Authentication(Protocol):
    """One exchange of one mechanism; `identity` is set when the client is authenticated.

    `is_refused`: the client got a refusal, which it has to acknowledge before the exchange ends.
    """

    identity: Identity | None
    is_refused: bool

    async def step(self, token: bytes) -> bytes:
        """Answer a client's message. Raises SaslAuthenticationFailed, StoreUnavailable."""


MakeAuthentication = Callable[[], Authentication]

REAUTHENTICATION_INTERVAL_S: Final = 1.0
"""A client authenticates again at most once in this time (KIP-368)."""


class SaslSession:
    """`on_authenticated` is called at each success, `on_refused` with the reason at each failure."""

    def __init__(
        self,
        offered: Mapping[str, MakeAuthentication],
        max_reauth_ms: int,
        on_authenticated: Callable[[Identity], None],
        on_refused: Callable[[str], None],
    ) -> None:
        self.offered = offered
        self.mechanism = ""
        self.identity: Identity | None = None
        self._max_reauth_ms = max_reauth_ms
        self._on_authenticated = on_authenticated
        self._on_refused = on_refused
        self._exchange: Authentication | None = None
        self._expires_s: float | None = None
        self._authenticated_s = 0.0
        self._api_versions_answered = False

    @property
    def expired(self) -> bool:
        """Whether the client must authenticate again before any other request."""
        return self._expires_s is not None and monotonic() > self._expires_s

    @property
    def is_exchanging(self) -> bool:
        """Whether an exchange is under way."""
        return self._exchange is not None

    def admit_api_versions(self) -> bool:
        """Note a successful ApiVersions; False for a second one before the client is authenticated.

        Raises IllegalSaslState within an exchange.
        """
        if self.identity is not None:
            return True
        if self.is_exchanging:
            raise IllegalSaslState("ApiVersions within a SASL exchange")
        admitted, self._api_versions_answered = not self._api_versions_answered, True
        return admitted

    def handshake(self, mechanism: str) -> None:
        """Begin an exchange. Raises UnsupportedSaslMechanism, IllegalSaslState.

        A failure ends the connection of a client that is not authenticated yet, and one that names another mechanism.
        """
        try:
            self._check_handshake(mechanism)
        except KafkaError as error:
            if self.identity is None or mechanism != self.mechanism:
                self._on_refused(error.message or "")
            raise
        self.mechanism = mechanism
        self._exchange = self.offered[mechanism]()

    def _check_handshake(self, mechanism: str) -> None:
        if self.is_exchanging:
            raise IllegalSaslState("a SASL exchange is under way")
        if self.identity is not None:
            if self._expires_s is None:
                raise IllegalSaslState("the session does not end, so that nobody authenticates again")
            if monotonic() - self._authenticated_s < REAUTHENTICATION_INTERVAL_S:
                raise IllegalSaslState("the client has just authenticated")
            if mechanism != self.mechanism:
                raise IllegalSaslState("a session cannot change its mechanism")
        if mechanism not in self.offered:
            raise UnsupportedSaslMechanism(f"mechanism {mechanism!r} is not enabled")

    async def authenticate(self, token: bytes) -> tuple[bytes, int]:
        """Answer one message; returns the answer and the session's lifetime in ms (0: without end, or not yet).

        Raises IllegalSaslState, SaslAuthenticationFailed, StoreUnavailable. After a failure the exchange is over.
        """
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            raise IllegalSaslState("SaslAuthenticate without a SaslHandshake before it")
        try:
            if len(token) > TOKEN_BYTES_MAX:
                raise SaslAuthenticationFailed("Authentication failed: the message is too long")
            answer = await exchange.step(token)
            identity = exchange.identity
            if identity is None:
                self._exchange = exchange
                return answer, 0
            if self.identity is not None and self.identity.principal != identity.principal:
                raise SaslAuthenticationFailed("Authentication failed: a session cannot change its principal")
            if self.identity is not None and self.identity.org != identity.org:
                raise SaslAuthenticationFailed("Authentication failed: a session cannot change its organisation")
            lifetime_ms = self._lifetime_ms(identity)
        except SaslAuthenticationFailed as error:
            self._on_refused(error.message or "")
            raise
        self.identity = identity
        self._authenticated_s = monotonic()
        self._expires_s = monotonic() + lifetime_ms / 1000 if lifetime_ms else None
        self._on_authenticated(identity)
        return answer, lifetime_ms

    def end(self) -> None:
        """The connection is closed: report a refusal that the client did not acknowledge."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None and exchange.is_refused:
            self._on_refused("Authentication failed: the token was refused")

    def _lifetime_ms(self, identity: Identity) -> int:
        """The shorter of the credential's life and connections_max_reauth_ms; 0 without end.

        Source: SaslServerAuthenticator.ReauthInfo, where a token's life counts whether or not the setting is set.
        """
        limits = [self._max_reauth_ms] if self._max_reauth_ms else []
        if identity.expires_at is not None:
            left_ms = int((identity.expires_at - time()) * 1000)
            if left_ms <= 0:
                raise SaslAuthenticationFailed("Authentication failed: the credential has expired")
            limits.append(left_ms)
        return min(limits, default=0)
