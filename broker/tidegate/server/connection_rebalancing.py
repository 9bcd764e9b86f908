"""When connections are closed so that their clients move to brokers that joined.

The first rebalance after a quiet period is immediate. Later ones are delayed and combined, with exponential back-off:
otherwise a broker that restarts repeatedly would close a share of the connections each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from tidegate.cluster.broker_lease import BrokerIdentity

REBALANCE_WINDOW_MS: Final = 60_000
"""Time over which a share of the connections is closed, and the shortest delay between two rebalances. With 0, in tests
whose clients do not connect again, none is closed."""
PAUSE_FACTOR_MAX: Final = 16
"""The delay between two rebalances starts at `pause_ms` and grows to this multiple while brokers join and leave."""
_CALM_PAUSES: Final = 4
"""After this many delays without a rebalance the delay returns to its minimum."""


class ConnectionRebalancer:
    """Calls `shed_connections(share)` after brokers joined; `share` is the part of the connections to close.

    `serving` returns all serving brokers: one that restarted has left and joined.
    """

    def __init__(
        self, shed_connections: Callable[[float], None], serving: Callable[[], set[BrokerIdentity]], pause_ms: int
    ) -> None:
        self._shed_connections, self._serving = shed_connections, serving
        self._pause_min_s = self._pause_s = pause_ms / 1000
        self._spread_s: float | None = None
        """Time of the last rebalance, by the event loop's clock."""
        self._served: set[BrokerIdentity] = set()
        """Brokers that were serving at the last rebalance."""
        self._pending: set[BrokerIdentity] = set()
        self._timer: asyncio.TimerHandle | None = None

    def on_broker_joined(self, joined: Iterable[BrokerIdentity]) -> None:
        """Schedule a rebalance for brokers that started to serve."""
        loop = asyncio.get_running_loop()
        self._pending |= set(joined)
        if self._timer is not None:
            return
        wait_s = 0.0 if self._spread_s is None else self._spread_s + self._pause_s - loop.time()
        if wait_s > 0:
            self._timer = loop.call_later(wait_s, self._spread)
        else:
            self._spread()

    def close(self) -> None:
        """Cancel a scheduled rebalance."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _spread(self) -> None:
        serving, now_s = self._serving(), asyncio.get_running_loop().time()
        joined, left = self._pending & serving, (self._served | self._pending) - serving
        self._pending, self._timer, self._served = set(), None, serving
        if self._spread_s is None or now_s - self._spread_s > _CALM_PAUSES * self._pause_s:
            self._pause_s = self._pause_min_s
        elif left:
            self._pause_s = min(self._pause_s * 2, self._pause_min_s * PAUSE_FACTOR_MAX)
        self._spread_s = now_s
        if joined:
            self._shed_connections(len(joined) / len(serving))
