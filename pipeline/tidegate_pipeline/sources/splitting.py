"""Split a query's ranges into tasks: one for each range, or more if the options ask for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidegate_pipeline.sources.loss import lost
from tidegate_pipeline.sources.options import TopicOptions
from tidegate_pipeline.sources.planning import PartitionPlanner, PlannedRange
from tidegate_pipeline.sources.tiers import PartitionTiers, Tier, TierRange, arrange
from tidegate_pipeline.sources.walking import UNLIMITED

Planned = tuple[PartitionPlanner, TierRange]


def arranged(planner: PartitionPlanner, start: int, end: int, tiers: PartitionTiers) -> Iterable[Planned]:
    """A range by tiers. Raises DataLoss if some offsets are in no tier, unless the options allow it."""
    for tier_range in arrange(start, end, tiers):
        if tier_range.tier is Tier.LOST and planner.access.options.fail_on_data_loss:
            raise lost(planner.topic, planner.partition, tier_range.start, tier_range.end, tiers)
        yield planner, tier_range


def split(planned: Sequence[Planned], options: TopicOptions) -> list[PlannedRange]:
    """One task for each range, or as many as the options ask for. Entries are never split."""
    most = options.records_per_partition or UNLIMITED
    ranges = [range_ for planner, tier_range in planned for range_ in planner.ranges(tier_range, grain_records=most)]
    if options.min_partitions is None or len(ranges) >= options.min_partitions:
        return ranges
    grain = max(sum(range_.size for range_ in ranges) // options.min_partitions, 1)
    return [
        range_
        for planner, tier_range in planned
        for range_ in planner.ranges(tier_range, grain_size=grain, grain_records=most)
    ]
