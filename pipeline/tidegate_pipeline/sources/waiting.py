"""Partitions that wait until it is worth it: until they have so many bytes to read, or have waited for so long.

For sinks that write a file a micro-batch and partition, as the archive does. It is forgotten at a restart, which only
makes a partition wait anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tidegate_pipeline.sources.offsets import Place


class Waiting:
    """Which partitions wait, and since when; `bytes_min` 0 means none ever does."""

    def __init__(self, bytes_min: int, delay_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._bytes_min, self._delay_s, self._clock = bytes_min, delay_s, clock
        self._since: dict[Place, float] = {}

    def holds(self, place: Place, size: int) -> bool:
        """Whether a partition that has `size` bytes to read, and no more, waits now."""
        if 0 < size < self._bytes_min and self._clock() - self._since.setdefault(place, self._clock()) < self._delay_s:
            return True
        self._since.pop(place, None)
        return False
