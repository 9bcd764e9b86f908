"""The cheapest way to record: plain integers without locks; an event loop has one thread."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

BOUNDS_S: Final = (0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
"""Upper bounds of the latency buckets, s; one more bucket has no bound."""
BARRIER_BOUNDS_S: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
"""Upper bounds of the buckets for rebalance barriers, s, which last as long as the slowest member."""


class Meter:
    """Count and duration of one kind of operation. Callers keep a reference to it; `observe` is on the hot path."""

    __slots__ = ("bounds_s", "counts", "total_s")

    def __init__(self, bounds_s: tuple[float, ...] = BOUNDS_S) -> None:
        self.bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        self.total_s = 0.0

    def observe(self, seconds: float) -> None:
        """Record one operation of `seconds`."""
        self.counts[bisect_left(self.bounds_s, seconds)] += 1
        self.total_s += seconds

    @property
    def count(self) -> int:
        """Number of operations."""
        return sum(self.counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bound -> cumulative count, the form that Prometheus expects."""
        cumulative, buckets = 0, []
        for bound, count in zip((*map(str, self.bounds_s), "+Inf"), self.counts, strict=True):
            cumulative += count
            buckets.append((bound, float(cumulative)))
        return buckets


class ApiMeter:
    """Meters of one API: one per version in use, and the error codes of its replies."""

    __slots__ = ("errors", "versions")

    def __init__(self) -> None:
        self.versions: dict[int, Meter] = {}
        self.errors: dict[int, int] = {}

    def version(self, version: int) -> Meter:
        """The meter of a served version."""
        found = self.versions.get(version)
        if found is None:
            found = self.versions[version] = Meter()
        return found

    def error(self, code: int) -> None:
        """Count one reply, or one element of a reply, with this Kafka error code (not NONE)."""
        self.errors[code] = self.errors.get(code, 0) + 1

    @property
    def together(self) -> Meter:
        """The sum over all versions."""
        return added(self.versions.values())


def added(meters: Iterable[Meter]) -> Meter:
    """The sum of meters with equal bounds."""
    whole = Meter()
    for meter in meters:
        whole.total_s += meter.total_s
        whole.counts = [one + other for one, other in zip(whole.counts, meter.counts, strict=True)]
    return whole
