"""Redis's clock as this broker knows it: what decides about data uses this one, never the broker's own (promise P11).

Each renewal of the lease says what time it is; between two of them this broker's monotonic clock counts on. In Redis
Cluster each node has a clock: this is the one of the node that has the cluster's keys.
"""

from __future__ import annotations

import time
from time import perf_counter
from typing import Final

import structlog

logger = structlog.get_logger()

DIFFERENCE_MAX_MS: Final = 5_000
"""A broker whose own clock differs by more does no upkeep: one of the two clocks is wrong, and nobody can say which."""
_ROUND_TRIP_MAX_S: Final = 0.5
"""A reply that took longer says too little about the time."""


class RedisClock:
    """`difference_ms` is how far this broker's own clock is ahead of Redis's; None until Redis was asked.

    `offset_s` is what `perf_counter` lacks to Redis's time; until Redis was asked, to this broker's own.
    """

    def __init__(self) -> None:
        self.difference_ms: int | None = None
        self.offset_s = time.time() - perf_counter()

    def observe(self, now_ms: int, asked_s: float) -> None:
        """Redis's time as a script read it, which was sent at `asked_s` by `perf_counter`."""
        known, answered_s = self.difference_ms is not None, perf_counter()
        if known and answered_s - asked_s > _ROUND_TRIP_MAX_S:
            return
        self.offset_s = now_ms / 1000 - (asked_s + answered_s) / 2
        agreed = self.agrees
        self.difference_ms = round(time.time() * 1000) - self.now_ms()
        if self.agrees and known and not agreed:
            logger.info("clock_agrees", difference_ms=self.difference_ms)
        elif not self.agrees and (agreed or not known):
            logger.warning("clock_differs", difference_ms=self.difference_ms, allowed_ms=DIFFERENCE_MAX_MS)

    @property
    def agrees(self) -> bool:
        """Whether the two clocks are known to differ by no more than is harmless: what deletes by time asks first."""
        return self.difference_ms is not None and abs(self.difference_ms) <= DIFFERENCE_MAX_MS

    def now_ms(self) -> int:
        """Redis's time."""
        return int((perf_counter() + self.offset_s) * 1000)
