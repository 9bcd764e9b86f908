"""A connection continues behind a pause of reading: with what it had received, then with its socket."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from tidegate.server.stalls import STALL_S, peer_has_closed


class ReadingOn:
    """Part of a connection."""

    server: Any
    transport: Any
    last_active_s: float
    half_since_s: float
    _paused_s: float
    _paused: bool
    _resuming: bool
    _ended: bool
    _closing: bool
    _draining: bool

    def resume(self) -> None:
        """Read again, if nothing else prevents it."""
        raise NotImplementedError

    def abort(self, reason: str | None = None) -> None:
        """Close at once."""
        raise NotImplementedError

    def _take_frames(self) -> None:
        """Start what was received."""
        raise NotImplementedError

    def _read_on(self) -> None:
        """Take what was received before the pause, unless its client has left; read more if this reaches no limit.

        It is judged like what is read now: the process may have stood still meanwhile, or the lease have ended; and it
        counts in what one iteration of the event loop takes.
        """
        self._resuming = False
        server, self.last_active_s = self.server, perf_counter()
        if self.last_active_s > server.trusted_until_s:
            server.check_trust(self.last_active_s)
        if self._ended or self._closing or self._draining:
            return
        if self.last_active_s - self._paused_s > STALL_S and peer_has_closed(self):  # type: ignore[arg-type]
            self.abort()
            return
        if server.tick.is_full():
            self.resume()
            return
        self._paused = False
        self.half_since_s += self.last_active_s - self._paused_s
        self._take_frames()
        if not (self._paused or self._ended or self._closing):
            self.transport.resume_reading()
