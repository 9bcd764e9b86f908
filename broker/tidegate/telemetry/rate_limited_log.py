"""Warnings that external peers can trigger: one line per event and interval, with the number of suppressed lines."""

from __future__ import annotations

from time import perf_counter
from typing import Any, Final

import structlog

logger = structlog.get_logger()

EVERY_S: Final = 10.0


class RateLimitedLogger:
    """Rate-limited warnings of one component, by event."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[float, int]] = {}

    def warn(self, event: str, **fields: Any) -> None:
        """Log the event unless it was logged in the last ten seconds; the field `more` counts the suppressed lines."""
        now_s = perf_counter()
        logged_at_s, untold = self._kinds.get(event, (now_s - EVERY_S, 0))
        if now_s - logged_at_s < EVERY_S:
            self._kinds[event] = logged_at_s, untold + 1
            return
        self._kinds[event] = now_s, 0
        if untold:
            fields["more"] = untold
        logger.warning(event, **fields)
