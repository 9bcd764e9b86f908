"""A TLS port: accepts connections itself instead of the event loop, so that failed handshakes can be logged.

The first byte shows whether the client speaks TLS. A client that does not is disconnected at once; otherwise both sides
would wait until a time-out.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final, Protocol

from tidegate.server import limits
from tidegate.server.certificates import Certificates
from tidegate.store.tasks import TaskSet
from tidegate.telemetry.metrics import metrics
from tidegate.telemetry.rate_limited_log import RateLimitedLogger

HANDSHAKE: Final = 0x16
"""First byte of a TLS record; as the size of a Kafka request it would mean 350 MB."""

_BACKLOG: Final = 1024
_SHUTDOWN_S: Final = 5.0
_ACCEPT_PAUSE_S: Final = 0.5
_UNREAD_BYTES: Final = 64 * 1024

_UNTRUSTED: Final = (
    "the client does not trust this certificate: give the client its CA, and connect by a name that it has"
)
_HUNG_UP: Final = "the client hung up"
_DO: Final = {
    _HUNG_UP: _UNTRUSTED,
    "TLSV1_ALERT_UNKNOWN_CA": _UNTRUSTED,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _UNTRUSTED,
    "SSLV3_ALERT_BAD_CERTIFICATE": _UNTRUSTED,
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the client needs a certificate of ssl_client_ca_file",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client needs a certificate of ssl_client_ca_file",
    "CERTIFICATE_VERIFY_FAILED": "the client's certificate must be of ssl_client_ca_file and not expired",
    "UNSUPPORTED_PROTOCOL": "TLS 1.2 is the oldest that is spoken",
}
"""OpenSSL's reason -> the remedy for the log."""
_OF_CERTIFICATE: Final = frozenset({"PEER_DID_NOT_RETURN_A_CERTIFICATE", "CERTIFICATE_VERIFY_FAILED"})
"""Reasons for which this side refuses a client's certificate."""


class AcceptingServer(Protocol):
    """What a TLS port uses of the server."""

    loop: asyncio.AbstractEventLoop
    limited_log: RateLimitedLogger

    def on_certificate_refused(self, listener: str, host: str, reason: str) -> None:
        """A client's certificate is missing, expired, or not of a trusted authority."""

    def full(self, coming: int = 0) -> bool:
        """Whether no more connections are accepted."""


class TlsPort:
    """One bound socket; `open` starts to accept. `connect` creates the protocol of a connection after its handshake."""

    def __init__(
        self,
        server: AcceptingServer,
        sock: socket.socket,
        listener: str,
        certificates: Certificates,
        connect: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        self._server = server
        self._connect = connect
        self._sock = sock
        self._listener = listener
        self._certificates = certificates
        self._handshakes = TaskSet()
        self._accepting: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Listen. Raises OSError."""
        self._sock.listen(_BACKLOG)
        self._accepting = self._server.loop.create_task(self._accept(), name=f"accept-{self._listener}")

    def is_serving(self) -> bool:
        return self._accepting is not None

    def close(self) -> None:
        """Stop accepting; unfinished handshakes are aborted."""
        if self._accepting is not None:
            self._accepting.cancel()
            self._accepting.add_done_callback(lambda _: self._sock.close())
            self._accepting = None
        self._handshakes.cancel()

    async def _accept(self) -> None:
        server = self._server
        while True:
            try:
                sock, _ = await server.loop.sock_accept(self._sock)
            except OSError as error:  # no file descriptors left, or the client has disconnected
                server.limited_log.warn("connection_not_accepted", listener=self._listener, reason=error.strerror)
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            if server.full(len(self._handshakes)):
                sock.close()
                continue
            self._handshakes.start(self._shake_hands(sock))

    async def _shake_hands(self, sock: socket.socket) -> None:
        """Complete the handshake and create a connection, or log the reason and close the socket."""
        server, timeout_s = self._server, limits.FRAME_TIMEOUT_S
        host, transferred = _peer(sock), False
        try:
            async with asyncio.timeout(timeout_s):
                first = await self._peek(sock)
            if not first:
                return  # a load balancer's health check connects and disconnects
            if first[0] != HANDSHAKE:
                self._hang_up_on_plaintext(sock, host)
                return
            transferred = True
            await server.loop.connect_accepted_socket(
                self._connect,
                sock,
                ssl=self._certificates.context,
                ssl_handshake_timeout=timeout_s,
                ssl_shutdown_timeout=_SHUTDOWN_S,
            )
        except (OSError, TimeoutError) as error:
            self._report(error, host)
        finally:
            if not transferred:
                sock.close()

    async def _peek(self, sock: socket.socket) -> bytes:
        """The first byte, left in the socket; b"" when the client has disconnected. Raises OSError."""
        loop = self._server.loop
        readable: asyncio.Future[None] = loop.create_future()
        loop.add_reader(sock, _done, readable)
        try:
            await readable
        finally:
            loop.remove_reader(sock)
        return sock.recv(1, socket.MSG_PEEK)

    def _hang_up_on_plaintext(self, sock: socket.socket, host: str) -> None:
        metrics.tls_failures += 1
        sock.recv(_UNREAD_BYTES)  # unread bytes would turn the close into a reset
        self._server.limited_log.warn(
            "plaintext_on_tls_listener",
            listener=self._listener,
            host=host,
            do="set security.protocol=SSL at the client, or have it connect to a PLAINTEXT listener",
        )

    def _report(self, error: OSError, host: str) -> None:
        metrics.tls_failures += 1
        if isinstance(error, ssl.SSLError):
            reason = str(error.reason)
        elif isinstance(error, ConnectionResetError):
            reason = _HUNG_UP
        else:
            reason = str(error) or "no handshake in time"
        reported = {"listener": self._listener, "host": host, "reason": reason}
        if reason in _DO:
            reported["do"] = _DO[reason]
        if reason in _OF_CERTIFICATE:
            detail = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else "no certificate"
            self._server.on_certificate_refused(self._listener, host, detail)
        self._server.limited_log.warn("tls_handshake_failed", **reported)


def _done(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)


def _peer(sock: socket.socket) -> str:
    try:
        return str(sock.getpeername()[0])
    except OSError:
        return ""
