"""When the session of a member was renewed last: it cannot end before one timeout after that."""

from __future__ import annotations

from typing import Final

from tidegate.groups.session_renewals import RENEWED_AGAIN_S

LOST_S: Final = 0.1
"""Renewals of heartbeats answered by a broker so shortly before it was killed are lost (decision 0050: 75 ms). The
renewal of one that follows the one before more closely than RENEWED_AGAIN_S waits for as long."""


class Contact:
    """`last_s` is when the last request was sent that renewed the session."""

    def __init__(self) -> None:
        self.last_s = self._before_s = self._answered_s = -1e9
        self._port = 0

    def answered(self, sent_s: float, now_s: float, port: int) -> None:
        """A request that renews was answered by the broker on a port."""
        self._answered_s, self._port = now_s, port
        if sent_s > self.last_s:
            self._before_s, self.last_s = self.last_s, sent_s

    def broker_killed(self, port: int, now_s: float) -> None:
        """If it answered the last one a moment ago, the one before counts."""
        waits_s = RENEWED_AGAIN_S if self.last_s - self._before_s < RENEWED_AGAIN_S + LOST_S else 0.0
        if port == self._port and now_s - self._answered_s < LOST_S + waits_s:
            self.last_s = self._before_s
