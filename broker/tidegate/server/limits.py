"""Limits shared by all connections: the bytes of unanswered requests, and of those that are decoded."""

from __future__ import annotations

import math
import socket
from collections import OrderedDict
from collections.abc import Callable, Hashable
from time import perf_counter
from typing import Final

from tidegate.protocol.framing import LARGE_BYTES

REQUEST_BYTES_MAX: Final = 100 << 20
"""Largest request, in a process with memory for it: Kafka's default of `socket.request.max.bytes`."""
FRAME_TIMEOUT_S: Final = 30.0
"""Maximum time without a byte inside a request, or for a TLS handshake, before the connection is closed. After this
time a request must have arrived at `sweeping.FRAME_BYTES_PER_S_MIN` at least."""
IN_FLIGHT_MAX: Final = 1_024
"""Unanswered requests per connection; at this number the broker pauses reading from the connection."""
FRAMES_AT_ONCE: Final = 500
"""Requests of one read that start in one iteration of the event loop; the rest start in the next ones."""
OUT_BYTES_MAX: Final = 64 << 20
"""Unsent reply bytes per connection; at this number the broker pauses reading from the connection."""
WRITE_BUFFER_MAX: Final = 1 << 20
"""Reply bytes in a connection's write buffer; above this number none of its requests starts until the client reads."""
PENDING_BYTES: Final = 256
"""Bytes of a small request that waits or is handled, beside its frame."""
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


class PendingBytes:
    """Bytes that a large request waits for; `reserved` is called when they are reserved."""

    __slots__ = ("reserved", "size")

    def __init__(self, size: int, reserved: Callable[[], None]) -> None:
        self.size, self.reserved = size, reserved


class HostBytes:
    """Partial large requests of one address: the bytes that its share counts, and those that wait for the share."""

    __slots__ = ("counted", "receiving", "waiting")

    def __init__(self) -> None:
        self.receiving: OrderedDict[Hashable, int] = OrderedDict()
        self.waiting: OrderedDict[Hashable, PendingBytes] = OrderedDict()
        self.counted = 0

    def is_oldest(self, receiver: Hashable) -> bool:
        """Whether the share does not limit this request."""
        return next(iter(self.receiving), receiver) == receiver

    def takes(self, receiver: Hashable, size: int, bytes_max: int) -> bool:
        """Whether the share has capacity for `size` more bytes of a request that does not wait."""
        return self.is_oldest(receiver) or (not self.waiting and self.counted + size <= bytes_max)

    def count(self, receiver: Hashable, size: int) -> None:
        """Count `size` more bytes of a request."""
        self.receiving[receiver] = self.receiving.get(receiver, 0) + size
        self.counted += size

    def end(self, receiver: Hashable) -> None:
        """A request is complete, or will never be."""
        self.waiting.pop(receiver, None)
        self.counted -= self.receiving.pop(receiver, 0)

    def next_taken(self, bytes_max: int) -> tuple[Hashable, PendingBytes] | None:
        """Remove the next waiting request that the share has capacity for: the oldest one, then in order."""
        oldest = next(iter(self.receiving), None)
        receiver = oldest if oldest in self.waiting else next(iter(self.waiting), None)
        if receiver is None:
            return None
        if self.counted + self.waiting[receiver].size > bytes_max and not self.is_oldest(receiver):
            return None
        return receiver, self.waiting.pop(receiver)


class RequestBytes:
    """Bytes of requests that are received or being received, and not yet answered.

    A large request reserves the bytes received plus one step, never the announced size. It waits first for capacity in
    its address's share, then for the limit of all connections, each in order of arrival. Two exceptions guarantee
    progress, until the request's time-out: when only partial requests hold the limit, the oldest of them may exceed
    it; and the oldest partial request of each address may exceed the address's share.

    A small request is always counted. Above the limit a connection that has one pauses, until the limit has capacity
    or its requests are answered: each connection has one small request at least.
    """

    __slots__ = (
        "_bytes_max", "_full_since_s", "_hosts", "_paused", "_receiving", "_receiving_bytes", "_waiting", "held"
    )  # fmt: skip

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: OrderedDict[Hashable, PendingBytes] = OrderedDict()
        """Large requests that their address's share counts and that wait for the limit."""
        self._receiving: OrderedDict[Hashable, int] = OrderedDict()
        self._hosts: dict[str, HostBytes] = {}
        self._paused: OrderedDict[Hashable, Callable[[], None]] = OrderedDict()
        """Connections with unanswered small requests, and what resumes each."""
        self._receiving_bytes = 0
        self._full_since_s = math.inf
        self.held = 0

    @property
    def exhausted(self) -> bool:
        """Whether large requests wait, and none was continued for `EXHAUSTED_S`."""
        return perf_counter() - self._full_since_s > EXHAUSTED_S

    def reserve(self, host: str, receiver: Hashable, size: int, reserved: Callable[[], None]) -> bool:
        """Reserve `size` more bytes for the large request of `receiver` at `host`.

        False when it must wait: `reserved` is called later, unless `abandon` is called first.
        """
        of_host = self._hosts.setdefault(host, HostBytes())
        if receiver in self._waiting or receiver in of_host.waiting:
            return False
        wanted = PendingBytes(size, reserved)
        if not of_host.takes(receiver, size, self._bytes_max // HOST_SHARE):
            of_host.waiting[receiver] = wanted
            return False
        of_host.count(receiver, size)
        if (self._waiting or self.held + size > self._bytes_max) and not self._may_exceed(receiver):
            self._enqueue(receiver, wanted)
            return False
        self._add(receiver, size)
        return True

    def _may_exceed(self, receiver: Hashable) -> bool:
        return self.held == self._receiving_bytes and next(iter(self._receiving), receiver) == receiver

    def _enqueue(self, receiver: Hashable, wanted: PendingBytes) -> None:
        self._full_since_s = min(self._full_since_s, perf_counter())
        self._waiting[receiver] = wanted

    def _add(self, receiver: Hashable, size: int) -> None:
        self.held += size
        self._receiving_bytes += size
        self._receiving[receiver] = self._receiving.get(receiver, 0) + size

    def received(self, host: str, receiver: Hashable) -> None:
        """The large request is complete; it stays counted until `release`."""
        self._receiving_bytes -= self._receiving.pop(receiver, 0)
        self._end(host, receiver)

    def abandon(self, host: str, receiver: Hashable) -> None:
        """Release a large request that will not be completed; the connection is closed."""
        self.unpause(receiver)
        if self._waiting.pop(receiver, None) is not None and not self._waiting:
            self._full_since_s = math.inf
        size = self._receiving.pop(receiver, 0)
        self._receiving_bytes -= size
        self._end(host, receiver)
        self.release(size)

    def _end(self, host: str, receiver: Hashable) -> None:
        """Let the address's other requests have the share of one that ended."""
        of_host = self._hosts.get(host)
        if of_host is None:
            return
        of_host.end(receiver)
        while (taken := of_host.next_taken(self._bytes_max // HOST_SHARE)) is not None:
            of_host.count(taken[0], taken[1].size)
            self._enqueue(*taken)
        if not of_host.receiving:
            del self._hosts[host]
        self._continue_waiting()

    def count_small(self, size: int) -> bool:
        """Count a small request; False above the limit."""
        self.held += size
        return self.held <= self._bytes_max

    def pause(self, receiver: Hashable, resume: Callable[[], None]) -> None:
        """Call `resume` when the limit has capacity for small requests, unless `unpause` is called first."""
        self._paused[receiver] = resume

    def unpause(self, receiver: Hashable) -> None:
        """The connection reads on."""
        self._paused.pop(receiver, None)

    def release(self, size: int) -> None:
        """Release the bytes of a request; continue those that fit: first the waiting large ones."""
        self.held -= size
        if self._waiting:
            self._continue_waiting()
        if self._paused:
            self._resume_paused()

    def _resume_paused(self) -> None:
        """Resume as many connections as the limit has capacity for small requests of the largest size."""
        free = self._bytes_max - self.held
        for _ in range(min(free // LARGE_BYTES, len(self._paused))):
            _, resume = self._paused.popitem(last=False)
            resume()

    def _continue_waiting(self) -> None:
        """Reserve for waiting requests as far as the limit has capacity: for the oldest one, then in order."""
        while self._waiting:
            oldest = next(iter(self._receiving), None)
            receiver = oldest if oldest in self._waiting else next(iter(self._waiting))
            size = self._waiting[receiver].size
            if self.held + size > self._bytes_max and not self._may_exceed(receiver):
                return
            wanted = self._waiting.pop(receiver)
            self._full_since_s = perf_counter() if self._waiting else math.inf
            self._add(receiver, size)
            wanted.reserved()
