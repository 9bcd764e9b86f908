"""Partitions and micro-batches that wait until it is worth it: until there is so much to read, or for so long.

Both are forgotten at a restart.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tidegate_pipeline.sources.offsets import Place


class Waiting:
    """Which partitions wait, and since when; `bytes_min` 0 means none ever does.

    For sinks that write a file a micro-batch and partition, as the archive does.
    """

    def __init__(self, bytes_min: int, delay_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._bytes_min, self._delay_s, self._clock = bytes_min, delay_s, clock
        self._since: dict[Place, float] = {}

    def holds(self, place: Place, size: int) -> bool:
        """Whether a partition that has `size` bytes to read, and no more, waits now."""
        if 0 < size < self._bytes_min and self._clock() - self._since.setdefault(place, self._clock()) < self._delay_s:
            return True
        self._since.pop(place, None)
        return False


class TriggerDelay:
    """Whether a micro-batch waits: minOffsetsPerTrigger and maxTriggerDelay, as of Spark's Kafka connector.

    The first one after a start does not. `offsets_min` 0 means none ever does.
    """

    def __init__(self, offsets_min: int, delay_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._offsets_min, self._delay_s, self._clock = offsets_min, delay_s, clock
        self._last_at: float | None = None

    def holds(self, behind: int) -> bool:
        """Whether a micro-batch that would have so many offsets to read waits now."""
        now = self._clock()
        if 0 < behind < self._offsets_min and self._last_at is not None and now - self._last_at < self._delay_s:
            return True
        if behind:
            self._last_at = now
        return False
