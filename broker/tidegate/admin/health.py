"""The conditions of liveness and readiness.

Live: the event loop runs, so the process can answer. Nothing else counts: restarting brokers because Redis is
unavailable would not help.

Ready: a client that connects now is served. Redis is connected on every link, the lease is held, the listener is open,
large requests are admitted, and no drain has started. A broker that is not ready continues to serve connected clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Health:
    """The state behind the probes: `app.py` sets the flags, the callbacks are evaluated at each probe."""

    store_up: Callable[[], bool]
    lease_held: Callable[[], bool]
    requests_admitted: Callable[[], bool] = lambda: True
    listening: bool = False
    draining: bool = False

    def reasons(self) -> list[str]:
        """Why this broker is not ready; empty when it is."""
        checks = (
            (self.store_up(), "redis is not reachable"),
            (self.lease_held(), "no lease is held"),
            (self.requests_admitted(), "no memory is left for requests (requests_in_flight_bytes_max)"),
            (self.listening, "the listener is not open"),
            (not self.draining, "draining"),
        )
        return [reason for fine, reason in checks if not fine]

    @property
    def ready(self) -> bool:
        """Whether a new client would be served."""
        return not self.reasons()
