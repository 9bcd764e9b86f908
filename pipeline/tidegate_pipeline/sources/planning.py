"""Plan how much of each partition a micro-batch reads, and in which tasks.

Every partition that is behind gets a fair share of the limit; what one partition does not need goes to the others.
A limit of bytes ends between entries, and at least one entry of each is read, so that an entry larger than the limit
cannot block the query. A limit of records ends at a record, and at least one of each is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise
from typing import Any, Final, Protocol, TypeVar

from tidegate.records.segments import Segment
from tidegate.store.keys import LogKeys
from tidegate_pipeline.archive.index import PAGE_SEGMENTS
from tidegate_pipeline.errors import LogGone
from tidegate_pipeline.sources.access import Access
from tidegate_pipeline.sources.offset_ranges import OffsetRange
from tidegate_pipeline.sources.reads import Planning, Read
from tidegate_pipeline.sources.tiers import DELETED, PartitionTiers, Tier, TierRange, arrange
from tidegate_pipeline.sources.walking import UNLIMITED, Limits, Step, Walked, walk_of
from tidegate_pipeline.topics import RecordKeys

UNPLANNED: Final = -1
_NAME_DIGITS: Final = 32


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
    bits: int = 0
    """Of format record: sequence bits of the offsets; 0: format batch."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Values alone: in a task, ranges share the strings of their topic."""
        return PlannedRange, tuple(getattr(self, name) for name in self.__slots__)


def keys_of_range(access: Access, range_: PlannedRange) -> LogKeys:
    """The keys of a range's partition."""
    return access.keys(range_.topic, range_.topic_id, range_.partition, range_.bits)


def name_of(ranges: Iterable[PlannedRange]) -> str:
    """A short name for what ranges that are read together cover: the same for the same offsets of the same topics."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for range_ in ranges:
        place = range_.topic_id, range_.partition
        start, end = found.get(place, (range_.start, range_.end))
        found[place] = min(start, range_.start), max(end, range_.end)
    return sha256(repr(sorted(found.items())).encode()).hexdigest()[:_NAME_DIGITS]


class Cursor(Protocol):
    """The position in one partition while `share_out` distributes the limit."""

    @property
    def done(self) -> bool:
        """Whether it has reached its end."""


CursorType = TypeVar("CursorType", bound=Cursor)


def share_out(
    cursors: Sequence[CursorType], limit: int, advance_all: Callable[[Sequence[CursorType], int, bool], Iterable[int]]
) -> None:
    """Advance every cursor by its share of `limit`, and by the shares that others do not use.

    `advance_all(cursors, share, at_least_one)` advances each by at most `share`, or by one entry or record; it returns
    the bytes or records that each advanced.
    """
    left, at_least_one, behind = limit, True, [cursor for cursor in cursors if not cursor.done]
    while behind and (left > 0 or at_least_one):
        share = max(left, 0) // len(behind)
        taken = sum(advance_all(behind, share, at_least_one))
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

    @classmethod
    def of_range(cls, access: Access, range_: PlannedRange) -> PartitionPlanner:
        """Of the partition of a range."""
        return cls(access, keys_of_range(access, range_), range_.topic, range_.topic_id, range_.partition)

    @property
    def bits(self) -> int:
        """As of Topic."""
        return self.keys.bits if isinstance(self.keys, RecordKeys) else 0

    def tiers(self, start: int = 0) -> PartitionTiers:
        """The offsets of each tier now, from `start` on. Raises LogGone, PipelineError."""
        return self.access.plan([self.access.reading_tiers(self.keys, start)])[0]

    def tiers_left(self, start: int = 0) -> PartitionTiers:
        """As `tiers`; DELETED where the topic is gone. Raises PipelineError."""
        return self.access.plan([self.reading_tiers_left(start)])[0]

    def reading_tiers_left(self, start: int = 0) -> Planning[PartitionTiers]:
        """As `tiers_left`, for many partitions at once."""
        try:
            return (yield from self.access.reading_tiers(self.keys, start))
        except LogGone:
            return DELETED

    def end_of_deleted(self) -> int:
        """The end offset that the log of a deleted topic had; -1: not known. Raises PipelineError."""
        try:
            return self.access.walker(self.keys).offsets().end
        except LogGone as gone:
            return gone.end

    def walk(self, tier_range: TierRange, limits: Limits) -> tuple[int, list[Step]]:
        """Walk a range within the limits; returns the offset where the walk stopped, and the steps that it passed."""
        return self.access.plan([self.walking(tier_range, limits)])[0]

    def walking(self, tier_range: TierRange, limits: Limits) -> Planning[tuple[int, list[Step]]]:
        """As `walk`, for many partitions at once."""
        if tier_range.tier is Tier.LOST:
            return tier_range.end, []
        if tier_range.tier is Tier.REDIS:
            walked: Walked = yield walk_of(self.keys, tier_range.start, tier_range.end, limits)
            return walked.position, walked.steps
        page = ("ZRANGEBYSCORE", self.keys.segments, tier_range.start, "+inf", "LIMIT", 0, PAGE_SEGMENTS)
        segments: list[Segment] = yield Read(page, lambda reply: [Segment.from_json(text) for text in reply])
        return walk_segments(segments, tier_range, limits)

    def ranges(self, tier_range: TierRange) -> list[PlannedRange]:
        """A whole range as planned ranges. Raises PipelineError."""
        return self.access.plan([self.planning_ranges(tier_range)])[0]

    def planning_ranges(
        self, tier_range: TierRange, grain_size: int = UNLIMITED, grain_records: int = UNLIMITED
    ) -> Planning[list[PlannedRange]]:
        """A whole range as planned ranges of at most a grain, or of one entry; for many partitions at once."""
        limits = Limits(grain_size=grain_size, grain_records=grain_records)
        steps: list[Step] = []
        position = tier_range.start
        while position < tier_range.end:
            before = position
            position, steps_of_walk = yield from self.walking(replace(tier_range, start=before), limits)
            for step in steps_of_walk:
                joined = steps[-1].join(step) if steps else None
                if joined and joined.size <= grain_size and joined.records <= grain_records:
                    steps[-1] = joined
                else:
                    steps.append(step)
            if position == before:
                break  # trimmed since it was planned: the task that reads it detects that
        steps = steps or [Step(tier_range.start, tier_range.start, 0, 0, 0, -1)]
        ends = [*(step.end for step in steps[:-1]), tier_range.end]
        return [
            self.range(tier_range.tier, start, end, step)
            for start, end, step in zip([tier_range.start, *ends], ends, steps, strict=False)
        ]

    def range(self, tier: Tier, start: int, end: int, step: Step) -> PlannedRange:
        """A planned range of this partition, with the counts of a step."""
        return PlannedRange(
            self.topic, self.topic_id, self.partition, tier, start, end,
            step.first, step.end, step.entries, step.records, step.size, self.bits,
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
        self._walked: Step | None = None
        self._is_exact = True
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
        return self._walked.size if self._walked else 0

    @property
    def whole(self) -> tuple[TierRange, Step] | None:
        """The range passed and its counts, if all of it is in Redis."""
        if self._walked is None or self._tiers_read != {Tier.REDIS} or not self._is_exact:
            return None
        return TierRange(self._start, self.position, Tier.REDIS), self._walked

    def advancing(self, share: int, at_least_one: bool) -> Planning[int]:
        """Advance by at most `share`, or by one entry or record; returns the bytes or records advanced."""
        taken = 0
        for tier_range in arrange(self.position, self.stop, self._tiers):
            while self.position < tier_range.end:
                left = share - taken
                limits = Limits(
                    size=UNLIMITED if self._by_records else left,
                    records=left if self._by_records else UNLIMITED,
                    at_least_one=at_least_one and taken == 0,
                )
                walking = self.planner.walking(replace(tier_range, start=self.position), limits)
                position, steps = yield from walking
                if position == self.position:
                    return taken
                taken += self._pass(tier_range.tier, position, steps)
        return taken

    def _pass(self, tier: Tier, position: int, steps: Sequence[Step]) -> int:
        """Continue to where a walk stopped; returns the bytes or records passed."""
        taken = 0
        for step in steps:
            records = min(step.records, step.end - max(self.position, step.first))
            taken += records if self._by_records else step.size
            self._is_exact &= self._walked is None or step.first >= self.position  # else an entry is counted twice
            self._walked = self._walked.join(step) if self._walked else step
        self.position = position
        self._tiers_read.add(tier)
        return taken


def walk_segments(segments: Sequence[Segment], tier_range: TierRange, limits: Limits) -> tuple[int, list[Step]]:
    """A walk through segments of the archive, which may stop at any offset within a segment."""
    position, steps, size, records = tier_range.start, list[Step](), 0, 0
    for segment in segments:
        whole = SegmentRange(position, min(tier_range.end, segment.end_offset), segment)
        least = int(limits.at_least_one and not steps)
        end = min(
            whole.end,
            whole.end_within(max(limits.size - size, least), segment.size),
            whole.end_within(max(limits.records - records, least), segment.records),
        )
        segment_range = replace(whole, end=max(end, position + least))
        if segment_range.end <= position:
            break
        split = segment_range.steps(limits.grain_size, limits.grain_records)
        steps += split
        size, records = size + sum(step.size for step in split), records + sum(step.records for step in split)
        position = segment_range.end
        if position < segment.end_offset:
            break
    return position, steps


@dataclass(frozen=True, slots=True)
class SegmentRange(OffsetRange):
    """Offsets of a segment. Its bytes and records are assumed to be spread evenly over its offsets.

    What is assumed of neighbouring ranges adds up to what the segment has, so that a limit is reached in the end also
    where most offsets have no record: between markers of transactions, and in topics of format record.
    """

    segment: Segment

    def end_within(self, amount: int, whole: int) -> int:
        """The greatest end with at most `amount` from the start on, where the whole segment has `whole`."""
        if not whole:
            return self.segment.end_offset
        offsets = ((self._before(self.start, whole) + amount + 1) * self._offsets - 1) // whole
        return self.segment.from_offset + offsets

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

    @property
    def _offsets(self) -> int:
        """The number of offsets of the whole segment."""
        return self.segment.end_offset - self.segment.from_offset

    def _before(self, offset: int, whole: int) -> int:
        """How much of `whole` the offsets of the segment below `offset` have."""
        return whole * (offset - self.segment.from_offset) // self._offsets

    def _estimate(self, start: int, end: int) -> tuple[int, int]:
        """Bytes and records between two offsets."""
        size, records = (self._before(end, whole) - self._before(start, whole)
                         for whole in (self.segment.size, self.segment.records))  # fmt: skip
        return size, records
