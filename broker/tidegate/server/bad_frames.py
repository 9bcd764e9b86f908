"""Frames that become no request: their bytes are released, and the connection is closed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import structlog

from tidegate.apis.call import Client
from tidegate.protocol.framing import Frame, FrameError, TlsHandshake
from tidegate.protocol.primitives import DecodeError

logger = structlog.get_logger()


class ClosingConnection(Protocol):
    """What `refuse_frame` uses of a connection."""

    @property
    def server(self) -> Any:
        """The server of the connection, with its `request_bytes`."""

    def close_after_replies(self, reason: str, pending: None) -> None:
        """Take no more requests; close after the replies."""


class TakingConnection(ClosingConnection, Protocol):
    """What `not_taken` uses of a connection."""

    client: Client

    @property
    def pipeline(self) -> Sequence[Any]:
        """Requests without a reply, in order of arrival."""

    def abort(self, reason: str | None = None) -> None:
        """Close at once, and log the reason if any."""


def refuse_frame(connection: ClosingConnection, reason: str, frame: Frame) -> None:
    """Release a frame that becomes no request; close after all replies."""
    data, start, end = frame
    if type(data) is memoryview:
        connection.server.request_bytes.release(end - start)
    connection.close_after_replies(reason, None)


def not_taken(connection: TakingConnection, frame: Frame | None, error: Exception) -> None:
    """Close: this frame could not be taken, or the next one not be received."""
    if isinstance(error, TlsHandshake):
        connection.server.on_tls_handshake(connection)
        return
    if isinstance(error, FrameError):
        connection.abort(str(error))
        return
    if isinstance(error, DecodeError):
        refuse_frame(connection, f"malformed header: {error}", cast(Frame, frame))
        return
    logger.error("frame_failed", host=connection.client.host, exc_info=error)
    if frame is not None and not (connection.pipeline and connection.pipeline[-1].held):
        refuse_frame(connection, "a request that could not be started", frame)
    connection.abort()
