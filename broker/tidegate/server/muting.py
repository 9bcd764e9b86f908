"""A connection whose client is beyond its quota is muted: its replies are sent, but nothing more is read (KIP-219)."""

from __future__ import annotations

from time import perf_counter
from typing import Any, Final

BLOCKED_ON_WRITE: Final = 1
"""The client does not read its replies."""
MUTED: Final = 2
"""The client is beyond its quota."""
LOADING: Final = 4
"""The schemas of the next request's API are imported."""
MEMORY_FULL: Final = 8
"""The requests of all connections exceed their memory, and one of this client's is unanswered."""
_CHECK_S: Final = 1.0
"""A timer runs no longer, so that a closed connection is not kept for a long mute."""


class Muting:
    """Part of a connection."""

    blocked = 0
    """Why nothing is read, whatever the limits allow: BLOCKED_ON_WRITE, MUTED, LOADING, MEMORY_FULL."""
    closed: bool
    server: Any
    last_active_s: float
    _muted_until_s = 0.0

    def resume(self) -> None:
        """Read again, if nothing else prevents it."""
        raise NotImplementedError

    def mute(self, seconds: float) -> None:
        """Take no more requests for a while. A later call may extend it."""
        ends_s = perf_counter() + seconds
        if ends_s <= self._muted_until_s:
            return
        self._muted_until_s = ends_s
        if not self.blocked & MUTED:
            self.blocked |= MUTED
            self._await_end()

    def _await_end(self) -> None:
        left_s = self._muted_until_s - perf_counter()
        if left_s > 0 and not self.closed:
            self.server.loop.call_later(min(left_s, _CHECK_S), self._await_end)
            return
        self.blocked &= ~MUTED
        self.last_active_s = perf_counter()
        self.resume()
