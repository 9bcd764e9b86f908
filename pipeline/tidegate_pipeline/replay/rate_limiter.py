"""A rate limit in records per second, without a burst after a pause."""

from __future__ import annotations

import time
from collections.abc import Callable


class RateLimiter:
    """Delays its caller to `records_per_s`; 0 is unlimited."""

    def __init__(
        self,
        records_per_s: float,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._records_per_s = records_per_s
        self._now_s = now_s
        self._sleep = sleep
        self._free_at_s = now_s()
        self.records_max = max(1, int(records_per_s)) if records_per_s > 0 else 1 << 31
        """What should be taken at once: a second's worth."""

    def take(self, records: int) -> None:
        """Wait until what was taken before is due; then these are taken."""
        if self._records_per_s <= 0:
            return
        now_s = self._now_s()
        if self._free_at_s > now_s:
            self._sleep(self._free_at_s - now_s)
        self._free_at_s = max(self._free_at_s, now_s) + records / self._records_per_s
