"""Caps that all connections share: how many, and the bytes of their unanswered requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class RequestBytes:
    """Bytes of requests received, or being received, and not yet answered.

    Above the cap no connection starts another frame; whoever wants to waits in turn. A frame is always
    admitted when nothing else is held, so the cap never stops everything.
    """

    __slots__ = ("_bytes_max", "_waiting", "held")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: deque[Callable[[], None]] = deque()
        self.held = 0

    def fits(self, size: int) -> bool:
        """Whether a frame of `size` bytes may be taken now."""
        return self.held == 0 or self.held + size <= self._bytes_max

    def hold(self, size: int) -> None:
        """Count a frame."""
        self.held += size

    def release(self, size: int) -> None:
        """A frame was answered or is gone: wake those who wait, once half of the cap is free."""
        self.held -= size
        if self._waiting and self.held * 2 <= self._bytes_max:
            waiting, self._waiting = self._waiting, deque()
            for wake in waiting:
                wake()

    def wait(self, wake: Callable[[], None]) -> None:
        """Call `wake` once when there is room again."""
        self._waiting.append(wake)
