"""What a batch query reads."""

from __future__ import annotations

from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.sources import starting
from tidegate_pipeline.sources.access import Access
from tidegate_pipeline.sources.filters import Pushed
from tidegate_pipeline.sources.offsets import Place
from tidegate_pipeline.sources.planning import PlannedRange
from tidegate_pipeline.sources.splitting import Planned, arranged, split


def plan_ranges(access: Access, pushed: Pushed | None = None) -> list[PlannedRange]:
    """The tasks of a query, of what filters leave. Raises UsageError, DataLoss."""
    options, places, pushed = access.options, starting.select(access), pushed or Pushed()
    if options.ending_offsets in ("earliest", "archive"):
        raise UsageError("endingOffsets is latest or JSON")
    start = starting.initial_offsets(access, "earliest")
    end = starting.resolve(access, options.ending_offsets or "latest", places, "endingOffsets")
    planned: list[Planned] = []
    for place, topic in places.items():
        planner = starting.planner_of(access, place, topic)
        tiers = planner.tiers()
        _check(place, start.next[place], "startingOffsets", tiers.end)
        _check(place, end.next[place], "endingOffsets", tiers.end)
        first, last = max(start.next[place], pushed.start), min(end.next[place], pushed.end)
        if pushed.from_ms is not None:
            first = max(first, starting.at_timestamp(planner, tiers, pushed.from_ms))
        if pushed.holds(place):
            planned += arranged(planner, first, last, tiers)
    return split(planned, options)


def _check(place: Place, offset: int, option: str, end: int) -> None:
    if offset > end:
        raise UsageError(f"{option}: topic {place[0]} partition {place[1]} ends at {end}, {offset} is beyond")
