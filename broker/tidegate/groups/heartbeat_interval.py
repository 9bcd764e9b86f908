"""Learns a member's heartbeat interval from its heartbeats, and from that how long answers may be delayed.

A delayed answer must reach the member before it would send the next heartbeat, or the member's timer must not depend on
the answer. So the interval is measured first; then short delays probe whether the timer starts at the send (the next
heartbeat arrives when it would have arrived anyway) or at the answer (it arrives later by the delay). Only in the first
case are answers delayed for long. Every heartbeat checks the result again, and the result belongs to one connection.
"""

from __future__ import annotations

from typing import Final

MARGIN_S: Final = 0.15
"""An answer is sent this long before the next heartbeat is due, s."""
SESSION_SHARE: Final = 2 / 3
"""Share of the session timeout beyond one interval; clients count their session from one answer to the next."""
PROBE_S: Final = 0.5
PROBE_SHARE: Final = 0.25
DELAY_S_MIN: Final = 0.1
"""Shorter delays are not worth their bookkeeping, s."""

_FAILURES_MAX: Final = 3
_PAUSE_HEARTBEATS: Final = 100
_TOLERANCE: Final = 0.2
_SMOOTHING: Final = 0.25


class HeartbeatIntervalEstimator:
    """One member's heartbeats on one connection. Times are seconds of the event loop's clock.

    measuring: until the first gap between heartbeats; answers are sent at once.
    probing:   a short delay must leave the next heartbeat where it was.
    trusted:   answers are delayed as long as the rule allows; each delay is a probe for the next one.
    resting:   three delays in a row moved the next heartbeat: answers are sent at once for a hundred heartbeats. Either
               the timer starts at the answer, or the machine is too busy to measure.
    """

    __slots__ = (
        "_arrived_s",
        "_delay_s_max",
        "_failures",
        "_held_s",
        "_interval_s",
        "_resting",
        "_trusted",
        "session_s",
    )

    def __init__(self, delay_s_max: float) -> None:
        self.session_s: float | None = None
        """The member's session timeout, s; nothing is delayed until it is known."""
        self._delay_s_max = delay_s_max
        self._arrived_s: float | None = None
        self._held_s = 0.0
        self._interval_s: float | None = None
        self._trusted = False
        self._failures = self._resting = 0

    def arrived(self, now_s: float) -> None:
        """Record the arrival of a heartbeat."""
        before_s, self._arrived_s = self._arrived_s, now_s
        if before_s is None:
            return
        if self._resting:
            self._resting -= 1
        elif self._interval_s is None:
            self._interval_s = now_s - before_s
        else:
            self._check(now_s - before_s, self._interval_s)
        self._held_s = 0.0

    def answered(self, now_s: float) -> None:
        """Record that it was answered; the member continues to heartbeat."""
        if self._arrived_s is not None:
            self._held_s = now_s - self._arrived_s

    def interrupted(self) -> None:
        """Record an answer that makes the member rejoin: the next interval does not reflect its timer."""
        self._arrived_s = None
        self._held_s = 0.0

    def delay_s(self) -> float:
        """How long the answer to the latest heartbeat may be delayed, s; 0: not at all."""
        if self._interval_s is None or self.session_s is None:
            return 0.0
        slack_s = (self.session_s - self._interval_s) * SESSION_SHARE
        longest_s = min(self._interval_s - MARGIN_S, slack_s, self._delay_s_max)
        if longest_s < DELAY_S_MIN:
            return 0.0
        return longest_s if self._trusted else min(longest_s, self._probe_s(self._interval_s))

    @staticmethod
    def _probe_s(interval_s: float) -> float:
        return min(PROBE_S, interval_s * PROBE_SHARE)

    def _check(self, gap_s: float, interval_s: float) -> None:
        """Judge the last delay by the arrival of the next heartbeat."""
        proof = self._held_s >= 0.9 * min(self._probe_s(interval_s), self._delay_s_max)
        if proof and gap_s > interval_s + self._held_s / 2:
            self._fail()
        elif abs(gap_s - interval_s) > interval_s * _TOLERANCE:
            self._interval_s = None  # another interval, or a stall: measure again
        else:
            self._interval_s = interval_s + (gap_s - interval_s) * _SMOOTHING
            if proof:
                self._trusted, self._failures = True, 0

    def _fail(self) -> None:
        """Measure again, because the interval may have been wrong; after too many failures in a row, pause first."""
        self._interval_s, self._trusted = None, False
        self._failures += 1
        if self._failures == _FAILURES_MAX:
            self._failures, self._resting = 0, _PAUSE_HEARTBEATS
