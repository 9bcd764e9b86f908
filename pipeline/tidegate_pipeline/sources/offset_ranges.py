"""What ranges that are read together cover. Nothing heavy is imported here: planning needs it too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidegate_pipeline.sources.planning import Range


class Extent(NamedTuple):
    """What a micro-batch, or a query, reads of one partition: offsets `start` to `end`, exclusive."""

    topic: str
    partition: int
    start: int
    end: int


def extents(ranges: Sequence[Range]) -> tuple[Extent, ...]:
    """What ranges that are read together cover of each partition."""
    found: dict[tuple[str, int], Extent] = {}
    for range_ in ranges:
        place = range_.topic, range_.partition
        known = found.get(place, Extent(*place, range_.start, range_.end))
        found[place] = Extent(*place, min(known.start, range_.start), max(known.end, range_.end))
    return tuple(found.values())
