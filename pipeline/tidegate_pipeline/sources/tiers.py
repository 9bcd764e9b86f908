"""Choose the tier that a range is read from: Redis if it has the offsets, else the archive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from tidegate_pipeline.sources.offset_ranges import OffsetRange


class Tier(StrEnum):
    """Where offsets are stored."""

    REDIS = "redis"
    ARCHIVE = "archive"
    LOST = "lost"
    """In none of the tiers that the query reads."""


class PartitionTiers(NamedTuple):
    """The offsets that each tier has of a partition; None for a tier that is empty or not read.

    `log_start` is Kafka's: the archive may begin below it. `epochs` are (leader epoch, start offset) in order.
    `log_end` is Kafka's too, -1 where Redis is not read: what `redis` shows may end at an open transaction before.
    """

    log_start: int
    redis: OffsetRange | None
    archive: OffsetRange | None
    epochs: tuple[tuple[int, int], ...] = ()
    log_end: int = -1

    @property
    def start(self) -> int:
        """The first readable offset: the archive's if it reaches Redis's start, else Redis's."""
        if self.redis is None:
            return self.archive.start if self.archive else 0
        if self.archive and self.archive.start < self.redis.start <= self.archive.end:
            return self.archive.start
        return self.redis.start

    @property
    def end(self) -> int:
        """The end of the readable offsets, exclusive."""
        if self.redis is None:
            return self.archive.end if self.archive else 0
        return self.redis.end

    def epoch_before(self, offset: int) -> int:
        """The leader epoch of the record before an offset."""
        return max((epoch for epoch, start in self.epochs if start < offset), default=0)

    def truncated_to(self, offset: int, epoch: int) -> int | None:
        """The offset that the log was truncated to since `offset` was read under `epoch`; None if it was not."""
        if 0 <= self.log_end < offset:
            return self.log_end
        return min((start for later, start in self.epochs if later > epoch and start < offset), default=None)


DELETED: Final = PartitionTiers(-1, None, None)
"""Of a partition whose topic was deleted: no tier has anything."""


@dataclass(frozen=True, slots=True)
class TierRange(OffsetRange):
    """Offsets of a partition that are in one tier, or in none."""

    tier: Tier


def arrange(start: int, end: int, tiers: PartitionTiers) -> Iterator[TierRange]:
    """A range as ranges of one tier each, in order. Redis is preferred: it needs no file."""
    while start < end:
        tier_range = _next_range(start, end, tiers)
        yield tier_range
        start = tier_range.end


def _next_range(start: int, end: int, tiers: PartitionTiers) -> TierRange:
    redis, archive = tiers.redis, tiers.archive
    if redis and start in redis:
        return TierRange(start, min(end, redis.end), Tier.REDIS)
    ends = [end, *(held.start for held in (redis, archive) if held and start < held.start < held.end)]
    if archive and start in archive:
        return TierRange(start, min(archive.end, *ends), Tier.ARCHIVE)
    return TierRange(start, min(ends), Tier.LOST)
