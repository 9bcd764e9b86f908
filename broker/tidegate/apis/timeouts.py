"""Time out waiting requests, without a timer for each."""

from __future__ import annotations

import asyncio
from itertools import takewhile
from typing import Final, Protocol

import structlog

logger = structlog.get_logger()

STEP_MS: Final = 100
"""Timeouts are rounded up to it, so that requests which all differ in theirs share few timers."""
_STEP_S: Final = STEP_MS / 1000
LONGEST_MS: Final = 600_000


class Waiting(Protocol):
    """A request that is answered at the latest at its timeout; it removes itself from `watched` when it is."""

    watched: dict[Waiting, None] | None
    deadline_s: float

    def time_out(self) -> None:
        """Answer with the results so far."""


class Timeouts:
    """Requests by their timeout: equal timeouts expire in the order they began, so one timer serves a queue."""

    def __init__(self) -> None:
        self._queues: dict[int, dict[Waiting, None]] = {}

    def watch(self, request: Waiting, timeout_ms: int) -> None:
        """Call `request.time_out` if it is not answered within `timeout_ms`, rounded up, of 0.1 s to 10 minutes."""
        steps = -(-timeout_ms // STEP_MS)
        queue = self._queues.get(steps)
        if queue is None:
            steps = min(max(steps, 1), LONGEST_MS // STEP_MS)
            queue = self._queue(steps)
        request.deadline_s = asyncio.get_running_loop().time() + steps * _STEP_S
        queue[request] = None
        request.watched = queue

    def _queue(self, steps: int) -> dict[Waiting, None]:
        if steps not in self._queues:
            self._queues[steps] = {}
            asyncio.get_running_loop().call_later(steps * _STEP_S, self._expire, steps)
        return self._queues[steps]

    def _expire(self, steps: int) -> None:
        loop, queue = asyncio.get_running_loop(), self._queues[steps]
        now_s = loop.time() + 0.0005  # uvloop's timers count whole milliseconds
        for request in list(takewhile(lambda one: one.deadline_s <= now_s, queue)):
            if request not in queue:
                continue  # the answer to another one answered it
            try:
                request.time_out()
            except Exception:  # the other requests time out, too
                logger.exception("time_out_failed")
            queue.pop(request, None)
        if queue:
            loop.call_at(next(iter(queue)).deadline_s, self._expire, steps)
        else:
            del self._queues[steps]
