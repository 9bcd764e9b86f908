"""Redis's time as estimated by this broker. Decisions about data use this clock, not the broker's own (promise P11).

Each lease renewal returns Redis's time; between renewals the broker's monotonic clock extrapolates. In Redis Cluster
each node has a clock: this is the one of the node that has the cluster's keys.
"""

from __future__ import annotations

import time
from time import perf_counter
from typing import Final

import structlog

logger = structlog.get_logger()

DIFFERENCE_MAX_MS: Final = 5_000
"""Above this difference the broker does no retention: one clock is wrong, and which one is unknown."""
_ROUND_TRIP_MAX_S: Final = 0.5
"""Replies with a longer round trip are ignored."""


class RedisClock:
    """`difference_ms` is how far this broker's clock is ahead of Redis's; None before the first observation.

    `offset_s` is Redis's time minus `perf_counter`; before the first observation, this broker's time minus it.
    """

    def __init__(self) -> None:
        self.difference_ms: int | None = None
        self.offset_s = time.time() - perf_counter()

    def observe(self, now_ms: int, round_trip_s: float) -> None:
        """Take Redis's time from the reply, which just arrived, of a script that was sent `round_trip_s` ago."""
        known = self.difference_ms is not None
        if known and round_trip_s > _ROUND_TRIP_MAX_S:
            return
        self.offset_s = now_ms / 1000 - (perf_counter() - round_trip_s / 2)
        agreed = self.agrees
        self.difference_ms = round(time.time() * 1000) - self.now_ms()
        if self.agrees and known and not agreed:
            logger.info("clock_agrees", difference_ms=self.difference_ms)
        elif not self.agrees and (agreed or not known):
            logger.warning("clock_differs", difference_ms=self.difference_ms, allowed_ms=DIFFERENCE_MAX_MS)

    @property
    def agrees(self) -> bool:
        """Whether the clocks are known to differ by at most DIFFERENCE_MAX_MS; checked before deletions by time."""
        return self.difference_ms is not None and abs(self.difference_ms) <= DIFFERENCE_MAX_MS

    def now_ms(self) -> int:
        """Redis's time."""
        return int((perf_counter() + self.offset_s) * 1000)
