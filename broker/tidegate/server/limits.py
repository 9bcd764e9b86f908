"""Limits shared by all connections: the bytes of unanswered requests, and of those that are decoded."""

from __future__ import annotations

import asyncio
import math
import socket
from collections import deque
from collections.abc import Callable, Hashable
from time import perf_counter
from typing import Final

REQUEST_BYTES_MAX: Final = 100 << 20
"""Largest request, in a process with memory for it: Kafka's default of `socket.request.max.bytes`."""
FRAME_TIMEOUT_S: Final = 30.0
"""Maximum time without a byte inside a request, or for a TLS handshake, before the connection is closed. After this
time a request must have arrived at `sweeping.FRAME_BYTES_PER_S_MIN` at least."""
IN_FLIGHT_MAX: Final = 1_024
"""Unanswered requests per connection; at this number the broker pauses reading from the connection."""
OUT_BYTES_MAX: Final = 64 << 20
"""Unsent reply bytes per connection; at this number the broker pauses reading from the connection."""
WRITE_BUFFER_MAX: Final = 1 << 20
"""Reply bytes in a connection's write buffer; above this number none of its requests starts until the client reads."""
HOST_SHARE: Final = 8
"""One address may hold 1/HOST_SHARE of the limit in partial large requests; its oldest one is exempt from this."""
EXHAUSTED_S: Final = 5.0
"""After this time without capacity for another large request the broker reports itself as not ready."""
JOINED_BYTES_MAX: Final = 128 * 1024
"""Replies of one tick up to this many bytes are joined; larger ones are passed to `writelines`."""
DECODED_FACTOR: Final = 20
"""Bytes that a large request takes while it is handled, for each byte of its frame: its elements, and those of its
answer, are objects."""
LOGGED_ID_MAX: Final = 100
"""Characters of a client id that are logged."""


def tune(sock: socket.socket) -> None:
    """Set TCP_NODELAY and keep-alive: small replies are sent at once, and dead peers are detected."""
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class RequestBytes:
    """Bytes of requests that are received or being received, and not yet answered.

    A large request reserves the bytes received plus one step, never the announced size. Above the limit no connection
    starts or continues a large request; it waits for `wake`. Two exceptions guarantee progress, until the request's
    time-out: when only partial requests hold the limit, the oldest of them may exceed it; and the oldest partial
    request of each address may exceed the address's share.
    """

    __slots__ = ("_bytes_max", "_full_since_s", "_hosts", "_receiving", "_receiving_bytes", "_waiting", "held")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: deque[Callable[[], None]] = deque()
        self._receiving: dict[Hashable, None] = {}
        self._hosts: dict[str, dict[Hashable, int]] = {}
        self._receiving_bytes = 0
        self._full_since_s = math.inf
        self.held = 0

    @property
    def exhausted(self) -> bool:
        """Whether large requests have been refused for `EXHAUSTED_S`."""
        return perf_counter() - self._full_since_s > EXHAUSTED_S

    def reserve(self, host: str, receiver: Hashable, size: int) -> bool:
        """Reserve `size` more bytes for the large request of `receiver` at `host`; False when it must wait."""
        own = self._hosts.get(host, {})
        if own and next(iter(own)) != receiver and sum(own.values()) + size > self._bytes_max // HOST_SHARE:
            return False
        if self.held + size > self._bytes_max and not self._may_exceed(receiver):
            self._full_since_s = min(self._full_since_s, perf_counter())
            return False
        self.held += size
        self._receiving_bytes += size
        self._receiving.setdefault(receiver)
        self._hosts.setdefault(host, own)[receiver] = own.get(receiver, 0) + size
        return True

    def _may_exceed(self, receiver: Hashable) -> bool:
        return self.held == self._receiving_bytes and next(iter(self._receiving), receiver) == receiver

    def received(self, host: str, receiver: Hashable) -> None:
        """The large request is complete; it stays counted until `release`."""
        self._end(host, receiver)
        self._wake()

    def abandon(self, host: str, receiver: Hashable) -> None:
        """Release a large request that will not be completed."""
        self.release(self._end(host, receiver))

    def _end(self, host: str, receiver: Hashable) -> int:
        own = self._hosts.get(host, {})
        size = own.pop(receiver, 0)
        if not own:
            self._hosts.pop(host, None)
        self._receiving.pop(receiver, None)
        self._receiving_bytes -= size
        return size

    def count_small(self, size: int) -> None:
        """Count a small request."""
        self.held += size

    def release(self, size: int) -> None:
        """Release the bytes of a request; wake the waiting connections once half of the limit is free."""
        self.held -= size
        if self._full_since_s != math.inf and self.held * 2 <= self._bytes_max:
            self._full_since_s = math.inf
        if self._waiting and (self.held * 2 <= self._bytes_max or self.held == self._receiving_bytes):
            self._wake()

    def wait(self, wake: Callable[[], None]) -> None:
        """Call `wake` once when capacity may be available again."""
        self._waiting.append(wake)

    def _wake(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, deque()
            for wake in waiting:
                wake()


class Admission:
    """Of one large request."""

    __slots__ = ("_requests", "_size")

    def __init__(self, requests: LargeRequests, size: int) -> None:
        self._requests, self._size = requests, size

    def end(self) -> None:
        """Let others be admitted. May be called again."""
        size, self._size = self._size, 0
        if size:
            self._requests.leave(size)


class LargeRequests:
    """Large requests that are decoded and not yet answered: one, or more that together have `bytes_max` bytes."""

    __slots__ = ("_bytes_max", "_waiting", "held")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.held = 0

    async def admit(self, size: int) -> Admission:
        """Wait until a request of `size` bytes may be handled; in order of arrival."""
        if not self._waiting and self._fits(size):
            self.held += size
            return Admission(self, size)
        admitted = asyncio.get_running_loop().create_future()
        self._waiting.append((size, admitted))
        try:
            await admitted
        except asyncio.CancelledError:
            if not admitted.cancelled():
                self.leave(size)
            raise
        return Admission(self, size)

    def leave(self, size: int) -> None:
        """A request of `size` bytes is handled."""
        self.held -= size
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, admitted = self._waiting.popleft()
            if not admitted.cancelled():
                self.held += size
                admitted.set_result(None)

    def _fits(self, size: int) -> bool:
        return not self.held or self.held + size <= self._bytes_max
