"""Time out waiting requests, without a timer for each."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

import structlog

logger = structlog.get_logger()


class Waiting(Protocol):
    """A request that is answered at the latest at its timeout."""

    answered: bool
    deadline_s: float

    def time_out(self) -> None:
        """Answer with the results so far."""


class Timeouts:
    """Requests by their timeout: equal timeouts expire in the order they began, so one timer serves a queue."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[Waiting]] = {}

    def watch(self, request: Waiting, timeout_ms: int) -> None:
        """Call `request.time_out` if it is not answered within `timeout_ms`."""
        loop = asyncio.get_running_loop()
        timeout_ms = max(timeout_ms, 0)
        request.deadline_s = loop.time() + timeout_ms / 1000
        queue = self._queues.get(timeout_ms)
        if queue is None:
            queue = self._queues[timeout_ms] = deque()
            loop.call_at(request.deadline_s, self._expire, timeout_ms)
        while queue and queue[0].answered:
            queue.popleft()
        queue.append(request)

    def _expire(self, timeout_ms: int) -> None:
        loop, queue = asyncio.get_running_loop(), self._queues[timeout_ms]
        now_s = loop.time() + 0.0005  # uvloop's timers count whole milliseconds
        while queue and (queue[0].answered or queue[0].deadline_s <= now_s):
            request = queue.popleft()
            if not request.answered:
                try:
                    request.time_out()
                except Exception:  # the other requests time out, too
                    logger.exception("time_out_failed")
        if queue:
            loop.call_at(queue[0].deadline_s, self._expire, timeout_ms)
        else:
            del self._queues[timeout_ms]
