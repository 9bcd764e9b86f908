"""Which tier a range is read from: Redis what it shows, the archive what Redis no longer holds. Plain arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple


class Tier(StrEnum):
    """Where offsets are."""

    REDIS = "redis"
    ARCHIVE = "archive"
    LOST = "lost"
    """In no tier that the query reads."""


class Span(NamedTuple):
    """Offsets `start` to `end`, exclusive."""

    start: int
    end: int


class Spans(NamedTuple):
    """What each tier holds of a partition; None for a tier that is not read, or holds nothing.

    `log_start` is Kafka's: the archive may reach below it. `epochs` are (leader epoch, start offset) in order.
    """

    log_start: int
    redis: Span | None
    archive: Span | None
    epochs: tuple[tuple[int, int], ...] = ()

    @property
    def start(self) -> int:
        """The first offset that can be read: the archive's where it leads up to Redis, else Redis's."""
        if self.redis is None:
            return self.archive.start if self.archive else 0
        if self.archive and self.archive.start < self.redis.start <= self.archive.end:
            return self.archive.start
        return self.redis.start

    @property
    def end(self) -> int:
        """The offset after the last that can be read."""
        if self.redis is None:
            return self.archive.end if self.archive else 0
        return self.redis.end

    def epoch_before(self, offset: int) -> int:
        """The leader epoch of the record before an offset."""
        return max((epoch for epoch, start in self.epochs if start < offset), default=0)

    def cut_back(self, offset: int, epoch: int) -> int | None:
        """Where the log ended once, below an offset that was read under `epoch` before: None where it never did."""
        if self.redis and self.redis.end < offset:
            return self.redis.end
        return min((start for later, start in self.epochs if later > epoch and start < offset), default=None)


class Piece(NamedTuple):
    """Offsets `start` to `end`, exclusive, that are in one tier, or in none."""

    tier: Tier
    start: int
    end: int


def arrange(start: int, end: int, spans: Spans) -> Iterator[Piece]:
    """A range as pieces that follow each other. Redis is preferred: it needs no file."""
    while start < end:
        piece = _next_piece(start, end, spans)
        yield piece
        start = piece.end


def _next_piece(start: int, end: int, spans: Spans) -> Piece:
    redis, archive = spans.redis, spans.archive
    if redis and redis.start <= start < redis.end:
        return Piece(Tier.REDIS, start, min(end, redis.end))
    ends = [end, *(span.start for span in (redis, archive) if span and start < span.start < span.end)]
    if archive and archive.start <= start < archive.end:
        return Piece(Tier.ARCHIVE, start, min(archive.end, *ends))
    return Piece(Tier.LOST, start, min(ends))
