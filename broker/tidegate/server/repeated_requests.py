"""Requests that equal the one before them but for the correlation id: answered without being decoded.

A member's heartbeats do, until its generation changes. The connection compares the bytes of the frame; whether the
answer is still the same, the handler's `Repeat` decides.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import Final, Protocol

from tidegate.apis.call import Body, Client, Repeat
from tidegate.server.pending_request import PendingRequest
from tidegate.server.routes import Route

_CORRELATION_ID: Final = 4
"""Position of the correlation id in a frame, behind API key and version; it has 4 bytes."""
_REST: Final = 8
_REPEATED_BYTES_MAX: Final = 1_024
"""Longer requests are not remembered: each connection remembers one."""


class RepeatingConnection(Protocol):
    """What a repeated request uses of its connection."""

    client: Client
    pipeline: deque[PendingRequest]
    out: list[Body]
    unsent: int
    last_active_s: float
    repeated: RepeatedRequest | None


class RepeatedRequest:
    """The bytes of the request that a connection sent last, and of its reply, around their correlation ids."""

    __slots__ = ("_head", "_permitted", "_reply_head", "_reply_rest", "_rest", "_route")

    def __init__(self, route: Route, repeat: Repeat, frame: bytes) -> None:
        self._route, self._permitted = route, repeat.permitted
        self._head, self._rest = frame[:_CORRELATION_ID], frame[_REST:]
        header = route.pack(len(repeat.body) + route.header_size, 0)
        self._reply_head, self._reply_rest = header[:4], header[8:] + repeat.body

    def answer(self, connection: RepeatingConnection, data: bytes | memoryview, start: int, end: int) -> bool:
        """Reply to a frame that repeats the request; False: take it as any other."""
        if (
            data[start + _REST : end] != self._rest
            or data[start : start + _CORRELATION_ID] != self._head
            or connection.pipeline  # replies are sent in order
            or not self._permitted()
        ):
            return False
        reply = self._reply_head + data[start + _CORRELATION_ID : start + _REST] + self._reply_rest
        connection.client.software.requests += 1
        connection.unsent += len(reply)
        connection.out.append(reply)
        self._route.meter.observe(perf_counter() - connection.last_active_s)
        return True


def note_repeated(
    connection: RepeatingConnection, pending: PendingRequest, data: bytes | memoryview, start: int, end: int
) -> None:
    """Remember the request just answered, if its handler set `Client.repeat`; traced requests are not."""
    repeat, connection.client.repeat = connection.client.repeat, None
    if (
        repeat is not None
        and repeat.call is pending
        and type(pending) is PendingRequest
        and end - start <= _REPEATED_BYTES_MAX
    ):
        connection.repeated = RepeatedRequest(pending.route, repeat, bytes(data[start:end]))
