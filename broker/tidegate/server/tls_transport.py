"""The transport of a TLS connection: answers are encrypted in steps.

The event loop encrypts everything that it is given in one callback, and copies it twice: 300 ms for a Fetch answer of
55 MiB, which takes 110 MiB more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Final, Protocol

from tidegate.apis.call import Body
from tidegate.server.muting import BLOCKED_ON_WRITE
from tidegate.server.stalls import peer_has_closed

ENCRYPTED_AT_ONCE: Final = 1 << 20
"""Bytes of one connection that are encrypted in one iteration of the event loop: 5 ms."""


class EncryptedConnection(Protocol):
    """What the transport uses of its connection."""

    last_active_s: float

    def block_requests(self) -> None:
        """Start no more requests until `resume_writing`."""

    def resume_writing(self) -> None:
        """Everything is passed on."""

    def client_has_left(self) -> bool:
        """Whether the client has closed its side."""

    def abort(self) -> None:
        """Close at once."""


class TlsTransport:
    """Wraps the event loop's transport. Until everything is passed to that, the connection counts as blocked on write.

    The connection reports `pause_writing`, `resume_writing` and its end, which the event loop calls.
    """

    def __init__(self, transport: Any, connection: EncryptedConnection) -> None:
        self._transport, self._connection = transport, connection
        self._parts: deque[Body] = deque()
        """What is not yet passed on."""
        self._size = 0
        self._paused = self._scheduled = self._closing = False
        self.abort, self.get_extra_info = transport.abort, transport.get_extra_info
        self.pause_reading, self.resume_reading = transport.pause_reading, transport.resume_reading
        self.set_write_buffer_limits = transport.set_write_buffer_limits

    def write(self, data: Body) -> None:
        """As of any transport."""
        if self._parts or len(data) > ENCRYPTED_AT_ONCE:
            self._queue((data,), len(data))
        else:
            self._transport.write(data)

    def writelines(self, parts: Sequence[Body]) -> None:
        """As of any transport."""
        size = sum(map(len, parts))
        if self._parts or size > ENCRYPTED_AT_ONCE:
            self._queue(parts, size)
        else:
            self._transport.write(b"".join(parts))  # many short ones would be a TLS record each

    def get_write_buffer_size(self) -> int:
        """Bytes that are not yet sent, encrypted or not."""
        return self._size + int(self._transport.get_write_buffer_size())

    def is_closing(self) -> bool:
        return self._closing or bool(self._transport.is_closing())

    def close(self) -> None:
        """Close once everything is passed on and sent."""
        self._closing = True
        if not self._parts:
            self._transport.close()

    # -- what the event loop calls, by way of the connection

    def on_pause(self) -> None:
        """The write buffer is above its high-water mark: encrypt nothing more."""
        self._paused = True

    def on_resume(self) -> bool:
        """The write buffer is below its low-water mark; whether more is to be passed on first."""
        self._paused = False
        self._schedule()
        return bool(self._parts)

    def discard(self) -> None:
        """The client receives nothing more."""
        self._parts.clear()
        self._size = 0

    # -- steps

    def _queue(self, parts: Sequence[Body], size: int) -> None:
        first = not self._parts
        self._parts.extend(parts)
        self._size += size
        self._connection.block_requests()
        if first and not (self._paused or self._scheduled):
            self._pass_on()

    def _schedule(self) -> None:
        if self._parts and not (self._paused or self._scheduled):
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        if not self._parts:
            return
        if self._transport.is_closing() or self._connection.client_has_left():
            self.discard()
            self._connection.abort()
            return
        self._connection.last_active_s = perf_counter()
        self._pass_on()

    def _pass_on(self) -> None:
        self._transport.write(self._next_step())
        if self._parts:
            self._schedule()
        elif self._closing:
            self._transport.close()
        elif not self._paused:
            self._connection.resume_writing()

    def _next_step(self) -> Body:
        """Remove what the next step encrypts."""
        parts, capacity = self._parts, ENCRYPTED_AT_ONCE
        step = list[Body]()
        while parts and capacity:
            part = parts.popleft()
            if len(part) > capacity:
                rest = memoryview(part)
                parts.appendleft(rest[capacity:])
                part = rest[:capacity]
            step.append(part)
            capacity -= len(part)
        self._size -= ENCRYPTED_AT_ONCE - capacity
        return step[0] if len(step) == 1 else b"".join(step)


class OverTls:
    """Part of a connection."""

    tls: TlsTransport | None = None
    """The transport of a connection over TLS."""
    blocked: int
    last_active_s: float

    def _pause(self) -> None:
        """Read no more."""
        raise NotImplementedError

    def resume_writing(self) -> None:
        """The write buffer is below its low-water mark."""
        raise NotImplementedError

    def abort(self, reason: str | None = None) -> None:
        """Close at once."""
        raise NotImplementedError

    def encrypting(self, transport: Any) -> Any:
        """The transport to use: one that encrypts in steps if this one encrypts."""
        if transport.get_extra_info("sslcontext") is None:
            return transport
        self.tls = TlsTransport(transport, self)
        return self.tls

    def pause_writing(self) -> None:
        """The write buffer is above its high-water mark: stop reading from this client."""
        if self.tls is not None:
            self.tls.on_pause()
        self.block_requests()

    def block_requests(self) -> None:
        """Start no request and read nothing until `resume_writing`."""
        self.blocked |= BLOCKED_ON_WRITE
        self._pause()

    def client_has_left(self) -> bool:
        """Whether the client has closed its side, which a connection that is not read does not notice."""
        return peer_has_closed(self)  # type: ignore[arg-type]

    def discard_unencrypted(self) -> None:
        """The client receives nothing more."""
        if self.tls is not None:
            self.tls.discard()
