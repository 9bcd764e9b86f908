"""Caps that all connections share: how many, and the bytes of their unanswered requests."""

from __future__ import annotations

import math
import socket
from collections import deque
from collections.abc import Callable, Hashable
from time import perf_counter
from typing import Final

FRAME_TIMEOUT_S: Final = 30.0
"""Time without a byte in the middle of a request, and without a TLS handshake, until the connection closes; from then
on a request must have arrived at `sweeping.FRAME_BYTES_PER_S_MIN`."""
IN_FLIGHT_MAX: Final = 1_024
"""Requests of one connection without a reply; at this number the broker stops reading from it."""
OUT_BYTES_MAX: Final = 64 << 20
"""Reply bytes that one slow client has not read; at this number the broker stops reading from it."""
HOST_SHARE: Final = 8
"""One address receives large requests into at most this part of the cap, and always into one request."""
EXHAUSTED_S: Final = 5.0
"""So long without room for another large request, and new clients are better served elsewhere."""


def tune(sock: socket.socket) -> None:
    """Small replies leave at once, and clients whose host is gone are noticed."""
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class RequestBytes:
    """Bytes of requests received, or being received, and not yet answered.

    A large request reserves what came and one step more, never what it announced. Above the cap no connection
    starts or goes on with one; who wants to waits. Where only requests that are not whole hold the cap, the oldest
    of them goes on beyond it, and likewise the oldest of each address beyond the address's share: so some request
    always comes to its end, or to its time-out.
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
        """Whether large requests have found no room for `EXHAUSTED_S`."""
        return perf_counter() - self._full_since_s > EXHAUSTED_S

    def reserve(self, host: str, receiver: Hashable, size: int) -> bool:
        """Count `size` bytes more of the large request that `receiver`, at `host`, is receiving; False: wait."""
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
        """The large request is whole: it stays counted until it is released."""
        self._end(host, receiver)
        self._wake()

    def abandon(self, host: str, receiver: Hashable) -> None:
        """The large request will not be whole."""
        self.release(self._end(host, receiver))

    def _end(self, host: str, receiver: Hashable) -> int:
        own = self._hosts.get(host, {})
        size = own.pop(receiver, 0)
        if not own:
            self._hosts.pop(host, None)
        self._receiving.pop(receiver, None)
        self._receiving_bytes -= size
        return size

    def hold(self, size: int) -> None:
        """Count a small request."""
        self.held += size

    def release(self, size: int) -> None:
        """A request was answered or is gone: wake those who wait, once half of the cap is free."""
        self.held -= size
        if self._full_since_s != math.inf and self.held * 2 <= self._bytes_max:
            self._full_since_s = math.inf
        if self._waiting and (self.held * 2 <= self._bytes_max or self.held == self._receiving_bytes):
            self._wake()

    def wait(self, wake: Callable[[], None]) -> None:
        """Call `wake` once when there may be room again."""
        self._waiting.append(wake)

    def _wake(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, deque()
            for wake in waiting:
                wake()
