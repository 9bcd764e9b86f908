"""Limits how much large work of one kind is done at a time, by its bytes."""

from __future__ import annotations

import asyncio
from collections import deque


class Admission:
    """Of one large thing."""

    __slots__ = ("_all", "_size")

    def __init__(self, all_of_them: Admissions, size: int) -> None:
        self._all, self._size = all_of_them, size

    def end(self) -> None:
        """Let others be admitted. May be called again."""
        size, self._size = self._size, 0
        if size:
            self._all.leave(size)


class Admissions:
    """Those at work: one, or more that together have `bytes_max` bytes."""

    __slots__ = ("_bytes_max", "_waiting", "held")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.held = 0

    async def admit(self, size: int) -> Admission:
        """Wait until one of `size` bytes may begin; in order of arrival."""
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
        """One of `size` bytes is done."""
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
