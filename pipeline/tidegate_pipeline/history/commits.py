"""Commits of one group, by the minute: a mean that follows them, and what differs from it.

A minute is judged once nothing of it can come any more, so the order in which samples come does not matter. What is
not usual does not make the usual: an outlier goes into the mean as the most that is not one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

SCHEMA: Final = (
    "anomaly string, since_ms long, commits double, mean double, deviation double, lag long, topic string, "
    "partition int, from_offset long, to_offset long, client_id string, times int"
)
QUIET_MAX: Final = 60
"""Buckets without a sample after which a group is forgotten."""


@dataclass(frozen=True, slots=True)
class Rules:
    """`interval_ms` is a bucket, a minute; a burst is `threshold` deviations above the mean; silence is no commit in
    `silence` buckets in which records waited all the time. Nothing is judged in the first `warmup` buckets.
    """

    interval_ms: int = 60_000
    threshold: float = 4.0
    silence: int = 3
    warmup: int = 10
    weight: float = 0.1
    """Of the newest bucket in the mean and the deviation."""


@dataclass(frozen=True, slots=True)
class Back:
    """A commit below the one before it."""

    topic: str
    partition: int
    from_offset: int
    to_offset: int
    client_id: str


@dataclass(frozen=True, slots=True)
class Sample:
    """What a broker counted in the `span_ms` before `time_ms`; or how many records waited at it (`lag`)."""

    time_ms: int
    span_ms: int = 0
    commits: int = 0
    back_count: int = 0
    back: Sequence[Back] = ()
    lag: int | None = None


@dataclass(slots=True)
class Bucket:
    """One interval until it is judged. `lags`: time of a sample, as text -> records that waited then."""

    commits: float = 0.0
    lags: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Usual:
    """What the group usually does, in commits a bucket, and what it does now."""

    mean: float = 0.0
    variance: float = 0.0
    buckets: int = 0
    silent: int = 0
    silence_reported: bool = False
    bursting: bool = False

    @property
    def deviation(self) -> float:
        """At least that of rare events, which come as they like."""
        return math.sqrt(max(self.variance, self.mean, 1.0))

    def learn(self, commits: float, weight: float) -> None:
        """One bucket more. The first ones weigh more, so that the mean does not begin at 0."""
        self.buckets += 1
        weight = max(weight, 1 / self.buckets)
        difference = commits - self.mean
        self.mean += weight * difference
        self.variance = (1 - weight) * (self.variance + weight * difference * difference)


class Commits:
    """What is remembered of a group between its samples. `text` is what `text` gave before."""

    def __init__(self, rules: Rules, text: str | None = None) -> None:
        self._rules = rules
        known = json.loads(text) if text else {}
        self._usual = Usual(**known.get("usual", {}))
        self._open = {int(start): Bucket(**one) for start, one in known.get("open", {}).items()}
        self._judged_ms: int | None = known.get("judged_ms")

    def text(self) -> str | None:
        """All of it; None where there is nothing."""
        if not self._open and not self._usual.buckets:
            return None
        return json.dumps(
            {
                "usual": asdict(self._usual),
                "open": {start: asdict(one) for start, one in sorted(self._open.items())},
                "judged_ms": self._judged_ms,
            }
        )

    @property
    def due_ms(self) -> int | None:
        """When the oldest bucket can be judged, or the group be forgotten."""
        interval_ms = self._rules.interval_ms
        if self._open:
            return min(self._open) + 2 * interval_ms  # a broker may report its count an interval later
        return None if self._judged_ms is None else self._judged_ms + QUIET_MAX * interval_ms

    def see(self, samples: Iterable[Sample]) -> Iterator[tuple[object, ...]]:
        """File samples in their buckets; the rows of commits that went back."""
        for sample in samples:
            if sample.lag is not None:
                lags = self._bucket(sample.time_ms).lags
                lags[str(sample.time_ms)] = lags.get(str(sample.time_ms), 0) + sample.lag
            elif sample.commits:
                self._spread(sample)
            yield from _moved_back(sample)

    def pass_time(self, time_ms: int) -> Iterator[tuple[object, ...]]:
        """Judge the buckets of which nothing can come any more at `time_ms`, in order."""
        interval_ms = self._rules.interval_ms
        for start in sorted(self._open):
            if start + 2 * interval_ms > time_ms:
                break
            bucket = self._open.pop(start)
            self._forget_at(start)
            if self._judged_ms is None or start >= self._judged_ms:
                self._judged_ms = start + interval_ms
                yield from self._judge(start, bucket)
        if not self._open:
            self._forget_at(time_ms)

    def _forget_at(self, time_ms: int) -> None:
        if self._judged_ms is not None and time_ms >= self._judged_ms + QUIET_MAX * self._rules.interval_ms:
            self._usual, self._judged_ms = Usual(), None

    def _bucket(self, time_ms: int) -> Bucket:
        return self._open.setdefault(time_ms - time_ms % self._rules.interval_ms, Bucket())

    def _spread(self, sample: Sample) -> None:
        """Commits of a span count in each bucket for as much of it as lies there."""
        interval_ms = self._rules.interval_ms
        begin = sample.time_ms - min(max(sample.span_ms, 1), QUIET_MAX * interval_ms)
        at = begin
        while at < sample.time_ms:
            end = min(at - at % interval_ms + interval_ms, sample.time_ms)
            self._bucket(at).commits += sample.commits * (end - at) / (sample.time_ms - begin)
            at = end

    def _judge(self, start: int, bucket: Bucket) -> Iterator[tuple[object, ...]]:
        usual, rules, commits = self._usual, self._rules, bucket.commits
        lag = bucket.lags[max(bucket.lags)] if bucket.lags else None
        waiting = bool(bucket.lags) and min(bucket.lags.values()) > 0

        def row(anomaly: str, at_ms: int = start) -> tuple[object, ...]:
            mean, deviation = round(usual.mean, 3), round(usual.deviation, 3)
            return (anomaly, at_ms, round(commits, 3), mean, deviation, lag, None, None, None, None, None, 1)

        if commits == 0:
            usual.silent = usual.silent + 1 if waiting else 0
            known = usual.buckets >= rules.warmup and usual.mean >= 1 / rules.silence
            if usual.silent >= rules.silence and known and not usual.silence_reported:
                usual.silence_reported = True
                yield row("silence", start - (rules.silence - 1) * rules.interval_ms)
            if waiting or not bucket.lags:
                return  # a stuck or unobserved group does not change the usual rate
        elif usual.silence_reported:
            yield row("silence_ended")
        if commits:
            usual.silent, usual.silence_reported = 0, False
        most = usual.mean + rules.threshold * usual.deviation
        burst = usual.buckets >= rules.warmup and commits > most
        if burst and not usual.bursting:
            yield row("burst")
        usual.bursting = burst
        usual.learn(min(commits, most) if burst else commits, rules.weight)


def _moved_back(sample: Sample) -> Iterator[tuple[object, ...]]:
    """A row for each reported one; the last row also counts those that were only counted."""
    for position, one in enumerate(sample.back, 1):
        times = 1 + (sample.back_count - len(sample.back) if position == len(sample.back) else 0)
        yield (
            "back", sample.time_ms, float(sample.commits), None, None, None, one.topic, one.partition,
            one.from_offset, one.to_offset, one.client_id, times,
        )  # fmt: skip
