"""One broker's share of a token bucket of the cluster. Pure: the caller passes the time.

The cluster's bucket in Redis gains `rate` tokens a second up to `capacity`, and every broker's use is taken from it; it
may be negative. About every 100 ms a broker reports what it used and gets the bucket's tokens and its own share of the
rate. In between it continues with its share alone, so that at most the use of one interval is not known to the others:
whatever was used too much by then is a debt in Redis, which everybody waits for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate.quotas.entities import Quota

_EAGER_S: Final = 1.0
"""Time after a debt for which a broker asks for as much as it can get."""
_SMOOTHING: Final = 0.5
"""Weight of the last interval in the estimate of demand."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a broker asks for a bucket: its demand in tokens a second, and its use as the two ends of a count."""

    demand: float
    confirmed: float
    used: float


class Bucket:
    """The share of one broker; it starts full and alone, until the first lease.

    `used` counts tokens. It begins at a count that this broker has not reported for `key` yet: what Redis has counted
    before is not counted again.
    """

    __slots__ = (
        "__weakref__",
        "_at_s",
        "_confirmed",
        "_demand",
        "_eager_until_s",
        "_reported_s",
        "_share",
        "_tokens",
        "capacity",
        "key",
        "quota",
        "rate",
        "used",
        "used_s",
    )

    def __init__(self, key: str, quota: Quota, rate: float, burst_s: float, now_s: float, used: float = 0.0) -> None:
        self.key, self.quota = key, quota
        self._share = 1.0
        self._at_s = self.used_s = self._reported_s = now_s
        self.used = self._confirmed = used
        self._demand = self._eager_until_s = 0.0
        self.change_rate(rate, burst_s)
        self._tokens = self.capacity

    def change_rate(self, rate: float, burst_s: float) -> None:
        """The quota was altered."""
        self.rate = rate
        self.capacity = max(rate * burst_s, 1.0)

    def available(self, now_s: float) -> float:
        """Tokens that this broker may spend; negative: its debt."""
        gained = self._share * self.rate * max(now_s - self._at_s, 0.0)
        return min(self._tokens + gained, self._share * self.capacity)

    def is_full(self, now_s: float) -> bool:
        """Whether this broker's share is unused; a new bucket would be the same."""
        return self.available(now_s) >= self._share * self.capacity

    def spend(self, amount: float, now_s: float) -> float:
        """Spend tokens, also more than there are; returns the time until the debt is paid, in seconds."""
        left = self._tokens = self.available(now_s) - amount
        self._at_s = self.used_s = now_s
        self.used += amount
        return self._wait_s(left, now_s)

    def wait_s(self, now_s: float) -> float:
        """Time until the debt is paid, in seconds."""
        return self._wait_s(self.available(now_s), now_s)

    def _wait_s(self, left: float, now_s: float) -> float:
        if left >= 0:
            return 0.0
        wait_s = -left / (self._share * self.rate)
        self._eager_until_s = now_s + wait_s + _EAGER_S
        return wait_s

    def report(self, now_s: float) -> Report:
        """What to ask for now."""
        elapsed_s = now_s - self._reported_s
        if elapsed_s > 0:
            recent = (self.used - self._confirmed) / elapsed_s
            self._demand += _SMOOTHING * (recent - self._demand)
        eager = now_s < self._eager_until_s
        return Report(self.rate if eager else min(self._demand, self.rate), self._confirmed, self.used)

    def lease(self, report: Report, tokens: float, share: float, now_s: float) -> None:
        """The answer to a report: the tokens of the cluster's bucket, and this broker's share of the rate."""
        self._share = share
        self._tokens = tokens * share - (self.used - report.used)
        self._confirmed = report.used
        self._at_s = self._reported_s = now_s
