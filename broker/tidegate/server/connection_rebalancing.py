"""When room is made for brokers that have come: at once after a calm time, else for all of them together, later.

A broker that comes and goes would else have the others close a share of their connections each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

PAUSE_FACTOR_MAX: Final = 16
"""Between spreads `pause_ms` at least, 16 times that while brokers come and go."""
_CALM_PAUSES: Final = 4
"""So many pauses after a spread all is forgotten."""


class ConnectionRebalancer:
    """`on_broker_joined` gets brokers that begin to serve; `shed_connections(share)` is called for those still serving.

    `serving` tells the node ids of all that serve.
    """

    def __init__(
        self, shed_connections: Callable[[float], None], serving: Callable[[], set[int]], pause_ms: int
    ) -> None:
        self._shed_connections, self._serving = shed_connections, serving
        self._pause_min_s = self._pause_s = pause_ms / 1000
        self._spread_s: float | None = None
        """When room was made last."""
        self._served: set[int] = set()
        """Who served then."""
        self._pending: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None

    def on_broker_joined(self, node_ids: Iterable[int]) -> None:
        """These begin to serve."""
        loop = asyncio.get_running_loop()
        self._pending |= set(node_ids)
        if self._timer is not None:
            return
        wait_s = 0.0 if self._spread_s is None else self._spread_s + self._pause_s - loop.time()
        if wait_s > 0:
            self._timer = loop.call_later(wait_s, self._spread)
        else:
            self._spread()

    def close(self) -> None:
        """Make no more room."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _spread(self) -> None:
        serving, now_s = self._serving(), asyncio.get_running_loop().time()
        on_broker_joined, left = self._pending & serving, (self._served | self._pending) - serving
        self._pending, self._timer, self._served = set(), None, serving
        if self._spread_s is None or now_s - self._spread_s > _CALM_PAUSES * self._pause_s:
            self._pause_s = self._pause_min_s
        elif left:
            self._pause_s = min(self._pause_s * 2, self._pause_min_s * PAUSE_FACTOR_MAX)
        self._spread_s = now_s
        if on_broker_joined:
            self._shed_connections(len(on_broker_joined) / len(serving))
