"""When lag is gone, if it goes on to shrink as it did in the last minute."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from typing import Final

WINDOW_MS: Final = 60_000


class DrainEstimates:
    """The lags of the last minute. What a round does not tell is forgotten at its end."""

    def __init__(self) -> None:
        self._lags: dict[Hashable, deque[tuple[int, int]]] = {}
        self._reported: dict[Hashable, deque[tuple[int, int]]] = {}

    def estimate(self, key: Hashable, now_ms: int, lag: int) -> float | None:
        """Seconds until `lag` is 0: infinite where it does not shrink, None where there is nothing to compare with.

        How fast lag shrinks is how much more is consumed than produced.
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
        """A round is whole."""
        self._lags, self._reported = self._reported, {}
