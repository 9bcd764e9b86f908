"""Time until lag is 0, extrapolated from the last minute."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from typing import Final

WINDOW_MS: Final = 60_000


class DrainEstimates:
    """Lag samples of the last minute by key; `end` drops keys that a round did not report."""

    def __init__(self) -> None:
        self._lags: dict[Hashable, deque[tuple[int, int]]] = {}
        self._reported: dict[Hashable, deque[tuple[int, int]]] = {}

    def estimate(self, key: Hashable, now_ms: int, lag: int) -> float | None:
        """Seconds until `lag` is 0: infinite if it does not shrink, None without an earlier sample.

        Lag shrinks at the rate of consumption less the rate of production.
        """
        lags = self._reported[key] = self._lags.get(key) or deque()
        lags.append((now_ms, lag))
        while len(lags) > 2 and lags[1][0] <= now_ms - WINDOW_MS:
            lags.popleft()
        if lag == 0:
            return 0.0
        since_ms, before = lags[0]
        took_ms = now_ms - since_ms
        if took_ms <= 0:
            return None
        shrunk = before - lag
        return lag * took_ms / shrunk / 1000 if shrunk > 0 else math.inf

    def end(self) -> None:
        """Complete a round."""
        self._lags, self._reported = self._reported, {}
