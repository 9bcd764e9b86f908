"""What a batch query reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from tidegate_pipeline.sources import starting
from tidegate_pipeline.sources.access import Access
from tidegate_pipeline.sources.filters import Pushed
from tidegate_pipeline.sources.planning import PartitionPlanner, PlannedRange
from tidegate_pipeline.sources.reads import Planning
from tidegate_pipeline.sources.record_time import at_timestamp
from tidegate_pipeline.sources.splitting import Planned, arranged, split
from tidegate_pipeline.sources.tiers import DELETED, Tier, TierRange


def plan_ranges(access: Access, pushed: Pushed | None = None, *, with_empty: bool = False) -> list[PlannedRange]:
    """The ranges of a query, of what filters leave. Raises UsageError, DataLoss.

    `with_empty`: a partition that has nothing to read has an empty range.
    """
    options, places, pushed = access.options, starting.select(access), pushed or Pushed()
    start = starting.initial_offsets(access, "earliest")
    end = starting.ending_offsets(access)
    planned: list[Planned] = []
    planners = {place: starting.planner_of(access, place, topic) for place, topic in places.items()}
    for (place, planner), tiers in zip(planners.items(), starting.tiers_of(access, planners.values()), strict=True):
        starting.check_within(place, start.next[place], tiers.end, "startingOffsets")
        starting.check_within(place, end.next[place], tiers.end, "endingOffsets")
        first, last = max(start.next[place], pushed.start), min(end.next[place], pushed.end)
        if pushed.from_ms is not None:
            first = max(first, at_timestamp(planner, tiers, pushed.from_ms))
        if pushed.holds(place):
            planned += arranged(planner, first, last, tiers)
            if with_empty and first >= last:
                planned.append((planner, TierRange(last, last, Tier.REDIS)))
    return split(planned, options)


def grown(access: Access, tails: Sequence[PlannedRange]) -> list[PlannedRange]:
    """What partitions have by now behind the last range that was planned of each. Raises LogGone, DataLoss.

    Spark keeps one plan for all queries of a DataFrame, so that the second one would not find new records.
    """
    planners = [PartitionPlanner.of_range(access, tail) for tail in tails]
    plans = [_growing(planner, tail) for planner, tail in zip(planners, tails, strict=True)]
    return split(list(chain.from_iterable(access.plan(plans))), access.options)


def _growing(planner: PartitionPlanner, tail: PlannedRange) -> Planning[list[Planned]]:
    tiers = yield from planner.reading_tiers_left(tail.end)
    return [] if tiers is DELETED else list(arranged(planner, tail.end, tiers.end, tiers))


def appeared(access: Access, known: Mapping[str, int]) -> list[PlannedRange]:
    """All of the partitions that are to be read beyond `known`, topic id -> number of partitions."""
    if access.options.assign or access.options.starting_offsets not in (None, "earliest"):
        return []
    places = starting.select(access, strict=False)
    new = [starting.planner_of(access, place, topic) for place, topic in places.items()
           if place[1] >= known.get(topic.topic_id, 0)]  # fmt: skip
    tiers = starting.tiers_of(access, new)
    planned = [one for planner, found in zip(new, tiers, strict=True)
               for one in arranged(planner, found.start, found.end, found)]  # fmt: skip
    return split(planned, access.options)
