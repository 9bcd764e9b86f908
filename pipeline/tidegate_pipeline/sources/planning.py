"""Plan how much of each partition a micro-batch reads, and in which tasks.

Every partition that is behind gets a fair share of the limit; what one partition does not need goes to the others.
At least one entry of each is read, so that an entry larger than the limit cannot block the query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Protocol

from tidegate.records.segments import Segment
from tidegate.store.keys import LogKeys
from tidegate_pipeline.redis_access import retry_while_unavailable
from tidegate_pipeline.sources.access import Access
from tidegate_pipeline.sources.offset_ranges import OffsetRange, PartitionRange
from tidegate_pipeline.sources.tiers import PartitionTiers, Tier, TierRange, arrange
from tidegate_pipeline.sources.walking import UNLIMITED, Limits, Step

UNPLANNED: Final = -1


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """The offsets that one task reads: `start` to `end` (exclusive) of a partition, all in one tier.

    `first` is the base offset of the entry that holds the start, `last_end` the end of the last entry; `entries` and
    `records` are what the planner counted, -1 where it did not; `size` is in bytes, about.
    """

    topic: str
    topic_id: str
    partition: int
    tier: Tier
    start: int
    end: int
    first: int
    last_end: int
    entries: int
    records: int
    size: int


def covered_ranges(ranges: Sequence[PlannedRange]) -> tuple[PartitionRange, ...]:
    """What ranges that are read together cover of each partition."""
    found: dict[tuple[str, int], PartitionRange] = {}
    for range_ in ranges:
        place = range_.topic, range_.partition
        known = found.get(place, PartitionRange(range_.start, range_.end, *place))
        found[place] = PartitionRange(min(known.start, range_.start), max(known.end, range_.end), *place)
    return tuple(found.values())


class Cursor(Protocol):
    """The position in one partition while `share_out` distributes the limit."""

    @property
    def done(self) -> bool:
        """Whether it has reached its end."""

    def advance(self, share: int, at_least_one: bool) -> int:
        """Advance by at most `share`, or by one entry of any size; returns the bytes or records advanced."""


def share_out(cursors: Sequence[Cursor], limit: int) -> None:
    """Advance every cursor by its share of `limit`, and by the shares that others do not use."""
    left, at_least_one, behind = limit, True, [cursor for cursor in cursors if not cursor.done]
    while behind and (left > 0 or at_least_one):
        share = max(left, 0) // len(behind)
        taken = sum(cursor.advance(share, at_least_one) for cursor in behind)
        if not taken:
            break
        left, at_least_one, behind = left - taken, False, [cursor for cursor in behind if not cursor.done]


@dataclass(frozen=True, slots=True)
class PartitionPlanner:
    """Walks one partition over its tiers."""

    access: Access
    keys: LogKeys
    topic: str
    topic_id: str
    partition: int

    def tiers(self, start: int = 0) -> PartitionTiers:
        """The offsets of each tier now, from `start` on. Raises LogGone, PipelineError."""
        return self.access.tiers(self.keys, start)

    def walk(self, tier_range: TierRange, limits: Limits) -> tuple[int, list[Step]]:
        """Walk a range within the limits; returns the offset where the walk stopped, and the steps that it passed."""
        if tier_range.tier is Tier.LOST:
            return tier_range.end, []
        if tier_range.tier is Tier.REDIS:
            walked = self.access.walker(self.keys).walk(tier_range.start, tier_range.end, limits)
            return walked.position, walked.steps
        segments = retry_while_unavailable(
            lambda: self.access.index(self.keys).segments(tier_range.start), self.access.options.retry_s
        )
        return walk_segments(segments, tier_range, limits)

    def ranges(
        self, tier_range: TierRange, grain_size: int = UNLIMITED, grain_records: int = UNLIMITED
    ) -> Iterator[PlannedRange]:
        """A whole range as planned ranges of at most a grain, or of one entry."""
        limits = Limits(grain_size=grain_size, grain_records=grain_records)
        steps: list[Step] = []
        position = tier_range.start
        while position < tier_range.end:
            before = position
            position, passed = self.walk(replace(tier_range, start=before), limits)
            for step in passed:
                joined = steps[-1].join(step) if steps else None
                if joined and joined.size <= grain_size and joined.records <= grain_records:
                    steps[-1] = joined
                else:
                    steps.append(step)
            if position == before:
                break  # trimmed since it was planned: the task that reads it detects that
        for i, step in enumerate(steps or [Step(tier_range.start, tier_range.start, 0, 0, 0, -1)]):
            start = tier_range.start if i == 0 else steps[i - 1].end
            end = tier_range.end if i >= len(steps) - 1 else step.end
            yield self.range(tier_range.tier, start, end, step)

    def range(self, tier: Tier, start: int, end: int, step: Step) -> PlannedRange:
        """A planned range of this partition, with the counts of a step."""
        return PlannedRange(
            self.topic, self.topic_id, self.partition, tier, start, end,
            step.first, step.end, step.entries, step.records, step.size,
        )  # fmt: skip


class PartitionCursor:
    """The position in a partition between `start` and `stop`; the limit counts bytes or records."""

    def __init__(
        self, planner: PartitionPlanner, start: int, stop: int, tiers: PartitionTiers, by_records: bool
    ) -> None:
        self.planner = planner
        self.position = start
        self.stop = stop
        self._start = start
        self._passed: Step | None = None
        self._tiers_read: set[Tier] = set()
        self._tiers = tiers
        self._by_records = by_records

    @property
    def done(self) -> bool:
        """Whether it has reached its end."""
        return self.position >= self.stop

    @property
    def size(self) -> int:
        """Bytes passed."""
        return self._passed.size if self._passed else 0

    @property
    def whole(self) -> tuple[TierRange, Step] | None:
        """The range passed and its counts, if all of it is in Redis."""
        if self._passed is None or self._tiers_read != {Tier.REDIS}:
            return None
        return TierRange(self._start, self.position, Tier.REDIS), self._passed

    def advance(self, share: int, at_least_one: bool) -> int:
        """Advance by at most `share`, or by one entry of any size; returns the bytes or records advanced."""
        taken = 0
        for tier_range in arrange(self.position, self.stop, self._tiers):
            while self.position < tier_range.end:
                left = share - taken
                limits = Limits(
                    size=UNLIMITED if self._by_records else left,
                    records=left if self._by_records else UNLIMITED,
                    at_least_one=at_least_one and taken == 0,
                )
                position, steps = self.planner.walk(replace(tier_range, start=self.position), limits)
                if position == self.position:
                    return taken
                self.position = position
                self._tiers_read.add(tier_range.tier)
                for step in steps:
                    taken += step.records if self._by_records else step.size
                    self._passed = self._passed.join(step) if self._passed else step
        return taken


def walk_segments(segments: Sequence[Segment], tier_range: TierRange, limits: Limits) -> tuple[int, list[Step]]:
    """A walk through segments of the archive, which may stop at any offset within a segment."""
    position, steps, size, records = tier_range.start, list[Step](), 0, 0
    for segment in segments:
        segment_range = SegmentRange(position, min(tier_range.end, segment.end_offset), segment)
        left = min(
            segment_range.offsets_of(limits.size - size, segment.size),
            segment_range.offsets_of(limits.records - records, segment.records),
        )
        if left < 1 and limits.at_least_one and not steps:
            left = 1
        segment_range = replace(segment_range, end=min(segment_range.end, segment_range.start + left))
        if segment_range.end <= segment_range.start:
            break
        cut = segment_range.steps(limits.grain_size, limits.grain_records)
        steps += cut
        size, records = size + sum(step.size for step in cut), records + sum(step.records for step in cut)
        position = segment_range.end
        if position < segment.end_offset:
            break
    return position, steps


@dataclass(frozen=True, slots=True)
class SegmentRange(OffsetRange):
    """Offsets of a segment. Its bytes and records are assumed to be spread evenly over its offsets."""

    segment: Segment

    @property
    def offsets(self) -> int:
        """The number of offsets of the whole segment."""
        return self.segment.end_offset - self.segment.from_offset

    def offsets_of(self, amount: int, whole: int) -> int:
        """The number of offsets that hold `amount`, where the whole segment holds `whole`."""
        return amount * self.offsets // max(whole, 1)

    def steps(self, grain_size: int, grain_records: int) -> list[Step]:
        """Steps of about a grain."""
        size, records = self._estimate(self.start, self.end)
        count = min(self.end - self.start, max(1, -(-size // grain_size), -(-records // grain_records)))
        ends = [self.start + (self.end - self.start) * i // count for i in range(count + 1)]
        return [
            Step(first, end, UNPLANNED, records, size, self.segment.max_timestamp)
            for first, end in pairwise(ends)
            for size, records in [self._estimate(first, end)]
        ]

    def _estimate(self, start: int, end: int) -> tuple[int, int]:
        return self.segment.size * (end - start) // self.offsets, self.segment.records * (end - start) // self.offsets
