"""What *live* and *ready* mean.

Live: the event loop turns, so this process can answer. Nothing else counts, or an orchestrator would
restart brokers because Redis is away, which helps nobody.

Ready: a client that connects now is served. Redis is up on every link, the broker's lease is held, the
listener is open, large requests find room, and no drain has begun. A broker that is not ready keeps serving the
clients it has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Health:
    """The state that the probes read: `app.py` sets the flags, the rest is asked each time."""

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
