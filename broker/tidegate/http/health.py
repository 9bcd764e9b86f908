"""The conditions of liveness and readiness.

Live: the event loop runs, so the process can answer. Nothing else counts: restarting brokers because Redis is
unavailable would not help.

Ready: a client that connects now is served. Redis is connected on every link, the lease is held, the listener is open,
large requests are admitted, the event loop has not stalled recently, and no drain has started. A broker that is not
ready continues to serve connected clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

NOT_READY_STALL_S: Final = 2.0
"""Delay of the event loop after which new clients are better served elsewhere. It counts for 10 s, so a broker that
stalls again and again stays out; clients that are connected are served all the time."""

STALLED: Final = f"the event loop stood still for {NOT_READY_STALL_S:g} s or longer in the last 10 s"


@dataclass(slots=True)
class Health:
    """The state behind the probes: `app.py` sets the flags, the callbacks are evaluated at each probe."""

    store_up: Callable[[], bool]
    lease_held: Callable[[], bool]
    requests_admitted: Callable[[], bool] = lambda: True
    loop_lag_s: Callable[[], float] = lambda: 0.0
    """Longest delay of the event loop in the last 10 s."""
    others_not_ready: Callable[[], list[str]] = list
    """What else is not ready where this process's admin HTTP answers for several."""
    runs_functions: Callable[[], bool] = lambda: False
    """Whether every primary of Redis runs the scripts of groups as functions; some run them by EVALSHA otherwise."""
    listening: bool = False
    draining: bool = False

    def reasons(self) -> list[str]:
        """Why this broker, or another that its admin HTTP answers for, is not ready; empty when all are."""
        return self.own_reasons() + self.others_not_ready()

    def own_reasons(self) -> list[str]:
        """Why this broker is not ready; empty when it is."""
        checks = (
            (self.store_up(), "redis is not reachable"),
            (self.lease_held(), "no lease is held"),
            (self.requests_admitted(), "no memory is left for requests (memory_max)"),
            (self.loop_lag_s() < NOT_READY_STALL_S, STALLED),
            (self.listening, "the listener is not open"),
            (not self.draining, "draining"),
        )
        return [reason for fine, reason in checks if not fine]

    @property
    def ready(self) -> bool:
        """Whether a new client would be served."""
        return not self.reasons()
