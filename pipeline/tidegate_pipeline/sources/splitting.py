"""Split a query's ranges into tasks: one for each range, or more if the options ask for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from tidegate_pipeline.sources.loss import lost
from tidegate_pipeline.sources.options import TopicOptions
from tidegate_pipeline.sources.planning import PartitionPlanner, PlannedRange
from tidegate_pipeline.sources.tiers import PartitionTiers, Tier, TierRange, arrange
from tidegate_pipeline.sources.walking import UNLIMITED

_TASK_BYTES_MIN: Final = 1 << 20
_TASK_BYTES_MAX: Final = 8 << 20
"""Stored bytes up to which neighbours share a task. A task costs as much as 2 to 3 MiB of records."""
_TASKS_SHARED_MIN: Final = 16
"""So many tasks, for as many cores, before they grow beyond the least size."""
_TASK_RANGES_MAX: Final = 64
"""Bounds the bytes of a task, and the work that one failure repeats."""

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
    ranges = _ranges(planned, UNLIMITED, most)
    if options.min_partitions is None or _filled(ranges) >= options.min_partitions:
        return ranges
    grain = max(sum(range_.size for range_ in ranges) // options.min_partitions, 1)
    return _ranges(planned, grain, most)


def pack(ranges: Sequence[PlannedRange], options: TopicOptions) -> list[tuple[PlannedRange, ...]]:
    """Tasks: neighbours share one until it has enough to read, within what the options ask for. Order stays."""
    tasks: list[list[PlannedRange]] = []
    surplus = _filled(ranges) - (options.min_partitions or 1)
    records_max = options.records_per_partition or UNLIMITED
    share = sum(range_.size for range_ in ranges) // _TASKS_SHARED_MIN
    bytes_max = min(max(share, _TASK_BYTES_MIN), _TASK_BYTES_MAX)
    size = records = 0
    for range_ in ranges:
        fits = size + range_.size <= bytes_max and records + range_.records <= records_max
        filled = _filled([range_])
        if tasks and fits and (surplus > 0 or not filled) and len(tasks[-1]) < _TASK_RANGES_MAX:
            tasks[-1].append(range_)
            surplus -= filled
        else:
            tasks.append([range_])
            size = records = 0
        size, records = size + range_.size, records + range_.records
    return [tuple(task) for task in tasks]


def _filled(ranges: Iterable[PlannedRange]) -> int:
    """The number of ranges that have offsets: partitions without any are no tasks that somebody asked for."""
    return sum(range_.start < range_.end for range_ in ranges)


def _ranges(planned: Sequence[Planned], grain_size: int, grain_records: int) -> list[PlannedRange]:
    if not planned:
        return []
    plans = [planner.planning_ranges(tier_range, grain_size, grain_records) for planner, tier_range in planned]
    return list(chain.from_iterable(planned[0][0].access.plan(plans)))
