"""What a batch query reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from tidegate_pipeline.sources import starting
from tidegate_pipeline.sources.access import Access
from tidegate_pipeline.sources.filters import Pushed
from tidegate_pipeline.sources.planning import PartitionPlanner, PlannedRange
from tidegate_pipeline.sources.reads import Planning
from tidegate_pipeline.sources.record_time import at_timestamp, first_record_at
from tidegate_pipeline.sources.splitting import Planned, arranged, split
from tidegate_pipeline.sources.tiers import DELETED, Tier, TierRange


def plan_ranges(access: Access, pushed: Pushed | None = None, *, with_empty: bool = False) -> list[PlannedRange]:
    """The ranges of a query, of what filters leave. Raises UsageError, DataLoss.

    `with_empty`: a partition that has nothing to read has an empty range.
    """
    options, partitions, pushed = access.options, starting.snapshot(access), pushed or Pushed()
    start = starting.initial_offsets(access, "earliest", partitions)
    end = starting.ending_offsets(access, partitions)
    planned: list[Planned] = []
    for place, (planner, tiers) in partitions.items():
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
    options = access.options
    if options.assign or options.starting_offsets not in (None, "earliest") or options.starting_by_timestamp:
        return []
    places = starting.select(access, strict=False)
    new = [starting.planner_of(access, place, topic) for place, topic in places.items()
           if place[1] >= known.get(topic.topic_id, 0)]  # fmt: skip
    tiers = starting.tiers_of(access, new)
    planned: list[Planned] = []
    for planner, found in zip(new, tiers, strict=True):
        start = found.start
        if options.starting_timestamp is not None:
            first = first_record_at(planner, found, options.starting_timestamp)
            start = found.end if first is None else first
        planned += arranged(planner, start, found.end, found)
    return split(planned, options)
