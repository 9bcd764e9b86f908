"""Redis's time as estimated by this broker. Decisions about data use this clock, not the broker's own (promise P11).

Each lease renewal returns Redis's time; between renewals the broker's monotonic clock extrapolates. In Redis Cluster
each node has a clock: `RedisClock` is the one of the node that has the cluster's keys; the others are asked each second
(`Node.ask_time`), so that a node can compare a time in a script with its own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Final

import structlog

logger = structlog.get_logger()

DIFFERENCE_MAX_MS: Final = 5_000
"""Above this difference the broker does no retention: one clock is wrong, and which one is unknown."""
_ROUND_TRIP_MAX_S: Final = 0.5
"""Replies with a longer round trip are ignored."""


def time_ms(reply: Sequence[Any]) -> int:
    """Milliseconds since 1970 of a reply to TIME: seconds and microseconds, as numbers or as bytes."""
    seconds, microseconds = reply
    return int(seconds) * 1000 + int(microseconds) // 1000


class ServerClock:
    """The time of one Redis server.

    `offset_s` is that time minus `perf_counter`; before the first observation, this broker's time minus it.
    `difference_ms` is how far this broker's clock is ahead of the server's; None before the first observation.
    """

    def __init__(self) -> None:
        self.is_known = False
        self.difference_ms: int | None = None
        self.offset_s = time.time() - perf_counter()

    def observe(self, now_ms: int, round_trip_s: float) -> bool:
        """Take the time from a reply, which just arrived, to what was sent `round_trip_s` ago. False: too long ago."""
        if self.is_known and round_trip_s > _ROUND_TRIP_MAX_S:
            return False
        self.offset_s = now_ms / 1000 - (perf_counter() - round_trip_s / 2)
        self.is_known = True
        self.difference_ms = round(time.time() * 1000) - self.now_ms()
        return True

    def now_ms(self) -> int:
        """The server's time."""
        return int((perf_counter() + self.offset_s) * 1000)

    @property
    def agrees(self) -> bool:
        """Whether the clocks are known to differ by at most DIFFERENCE_MAX_MS; checked before deletions by time."""
        return self.difference_ms is not None and abs(self.difference_ms) <= DIFFERENCE_MAX_MS


class RedisClock(ServerClock):
    """The clock of the server that has the leases, which is logged when it begins or ceases to agree."""

    def observe(self, now_ms: int, round_trip_s: float) -> bool:
        """The same; logs when the clocks begin or cease to differ."""
        agreed, known = self.agrees, self.is_known
        if not super().observe(now_ms, round_trip_s):
            return False
        agrees = self.agrees
        if agrees and known and not agreed:
            logger.info("clock_agrees", difference_ms=self.difference_ms)
        elif not agrees and (agreed or not known):
            logger.warning("clock_differs", difference_ms=self.difference_ms, allowed_ms=DIFFERENCE_MAX_MS)
        return True
