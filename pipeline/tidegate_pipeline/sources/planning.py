"""How much of each partition a micro-batch takes, and in which tasks it is read.

A micro-batch takes a fair share of every partition that is behind, what one does not need goes to the others, and
at least one entry of each, so that one larger than the limit does not hold the query up for good.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

from tidegate.records.segments import Segment
from tidegate.store.keys import LogKeys
from tidegate_pipeline.redis_access import retry_unavailable
from tidegate_pipeline.sources.access import Access
from tidegate_pipeline.sources.tiers import Piece, Spans, Tier, arrange
from tidegate_pipeline.sources.walking import UNLIMITED, Limits, Step

UNPLANNED: Final = -1


@dataclass(frozen=True, slots=True)
class Range:
    """What one task reads: offsets `start` to `end` (exclusive) of a partition, all in one tier.

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


class Cursor(Protocol):
    """One partition that is behind, while shares are given out."""

    @property
    def done(self) -> bool:
        """Whether it stands where it may at most."""

    def advance(self, share: int, at_least_one: bool) -> int:
        """Go on by at most `share`, or by one entry whatever its size; returns what that was."""


def share_out(cursors: Sequence[Cursor], limit: int) -> None:
    """Advance every cursor by its share of `limit`, and by what others leave."""
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

    def spans(self, start: int = 0) -> Spans:
        """What each tier holds now, from `start` on. Raises LogGone, PipelineError."""
        return self.access.spans(self.keys, start)

    def walk(self, piece: Piece, limits: Limits) -> tuple[int, list[Step]]:
        """Where a walk through a piece stands, and what it passed: within the limits, and not always all of it."""
        if piece.tier is Tier.LOST:
            return piece.end, []
        if piece.tier is Tier.REDIS:
            walked = self.access.walker(self.keys).walk(piece.start, piece.end, limits)
            return walked.stands, walked.steps
        segments = retry_unavailable(
            lambda: self.access.index(self.keys).segments(piece.start), self.access.options.retry_s
        )
        return walk_segments(segments, piece, limits)

    def ranges(self, piece: Piece, grain_size: int = UNLIMITED, grain_records: int = UNLIMITED) -> Iterator[Range]:
        """A whole piece as ranges of at most a grain, or of one entry."""
        limits = Limits(grain_size=grain_size, grain_records=grain_records)
        steps: list[Step] = []
        stands = piece.start
        while stands < piece.end:
            before = stands
            stands, passed = self.walk(piece._replace(start=before), limits)
            for step in passed:
                joined = steps[-1].join(step) if steps else None
                if joined and joined.size <= grain_size and joined.records <= grain_records:
                    steps[-1] = joined
                else:
                    steps.append(step)
            if stands == before:
                break  # cut since it was planned: the task that reads it finds out
        for i, step in enumerate(steps or [Step(piece.start, piece.start, 0, 0, 0, -1)]):
            start = piece.start if i == 0 else steps[i - 1].end
            end = piece.end if i >= len(steps) - 1 else step.end
            yield self.range(piece.tier, start, end, step)

    def range(self, tier: Tier, start: int, end: int, step: Step) -> Range:
        """A range of this partition that a step was counted for."""
        return Range(
            self.topic, self.topic_id, self.partition, tier, start, end,
            step.first, step.end, step.entries, step.records, step.size,
        )  # fmt: skip


class PartitionCursor:
    """A partition while shares are given out, of bytes or of records: between `start` and `stop`."""

    def __init__(self, planner: PartitionPlanner, start: int, stop: int, spans: Spans, by_records: bool) -> None:
        self.planner = planner
        self.position = start
        self.stop = stop
        self._start = start
        self._passed: Step | None = None
        self._tiers: set[Tier] = set()
        self._spans = spans
        self._by_records = by_records

    @property
    def done(self) -> bool:
        """Whether it stands where it may at most."""
        return self.position >= self.stop

    @property
    def size(self) -> int:
        """Bytes that it passed."""
        return self._passed.size if self._passed else 0

    @property
    def whole(self) -> tuple[Piece, Step] | None:
        """All that it passed, where that is of Redis and may be read as it is."""
        if self._passed is None or self._tiers != {Tier.REDIS}:
            return None
        return Piece(Tier.REDIS, self._start, self.position), self._passed

    def advance(self, share: int, at_least_one: bool) -> int:
        """Go on by at most `share`, or by one entry whatever its size; returns what that was."""
        taken = 0
        for piece in arrange(self.position, self.stop, self._spans):
            while self.position < piece.end:
                left = share - taken
                limits = Limits(
                    size=UNLIMITED if self._by_records else left,
                    records=left if self._by_records else UNLIMITED,
                    at_least_one=at_least_one and taken == 0,
                )
                stands, steps = self.planner.walk(piece._replace(start=self.position), limits)
                if stands == self.position:
                    return taken
                self.position = stands
                self._tiers.add(piece.tier)
                for step in steps:
                    taken += step.records if self._by_records else step.size
                    self._passed = self._passed.join(step) if self._passed else step
        return taken


def walk_segments(segments: Sequence[Segment], piece: Piece, limits: Limits) -> tuple[int, list[Step]]:
    """A walk through segments of the archive. One may be cut at any offset: whoever reads takes what it was told."""
    stands, steps, size, records = piece.start, list[Step](), 0, 0
    for segment in segments:
        part = Part(segment, stands, min(piece.end, segment.end_offset))
        left = min(
            part.offsets_of(limits.size - size, segment.size),
            part.offsets_of(limits.records - records, segment.records),
        )
        if left < 1 and limits.at_least_one and not steps:
            left = 1
        part = part._replace(end=min(part.end, part.start + left))
        if part.end <= part.start:
            break
        cut = part.steps(limits.grain_size, limits.grain_records)
        steps += cut
        size, records = size + sum(step.size for step in cut), records + sum(step.records for step in cut)
        stands = part.end
        if stands < segment.end_offset:
            break
    return stands, steps


class Part(NamedTuple):
    """Offsets `start` to `end` of a segment; what they hold is taken to be even over its offsets."""

    segment: Segment
    start: int
    end: int

    @property
    def offsets(self) -> int:
        """How many the whole segment has."""
        return self.segment.end_offset - self.segment.from_offset

    def offsets_of(self, amount: int, whole: int) -> int:
        """How many offsets hold that much of what the whole segment has."""
        return amount * self.offsets // max(whole, 1)

    def steps(self, grain_size: int, grain_records: int) -> list[Step]:
        """Steps of about a grain."""
        size, records = self._holds(self.start, self.end)
        count = min(self.end - self.start, max(1, -(-size // grain_size), -(-records // grain_records)))
        bounds = [self.start + (self.end - self.start) * i // count for i in range(count + 1)]
        return [
            Step(first, end, UNPLANNED, records, size, self.segment.max_timestamp)
            for first, end in pairwise(bounds)
            for size, records in [self._holds(first, end)]
        ]

    def _holds(self, start: int, end: int) -> tuple[int, int]:
        return self.segment.size * (end - start) // self.offsets, self.segment.records * (end - start) // self.offsets
