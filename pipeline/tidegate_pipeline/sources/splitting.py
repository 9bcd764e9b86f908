"""A query's pieces as tasks: one for each, or more where the options ask for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidegate_pipeline.sources.loss import lost
from tidegate_pipeline.sources.options import TopicOptions
from tidegate_pipeline.sources.planning import PartitionPlanner, Range
from tidegate_pipeline.sources.tiers import Piece, Spans, Tier, arrange
from tidegate_pipeline.sources.walking import UNLIMITED

Planned = tuple[PartitionPlanner, Piece]


def arranged(planner: PartitionPlanner, start: int, end: int, spans: Spans) -> Iterable[Planned]:
    """A range by tiers. Raises DataLoss where a part is in none, unless the options allow it."""
    for piece in arrange(start, end, spans):
        if piece.tier is Tier.LOST and planner.access.options.fail_on_data_loss:
            raise lost(planner.topic, planner.partition, piece.start, piece.end, spans)
        yield planner, piece


def split(planned: Sequence[Planned], options: TopicOptions) -> list[Range]:
    """Ranges of entries that are never split: as few as there are pieces, or as many as the options ask for."""
    most = options.records_per_partition or UNLIMITED
    ranges = [range_ for planner, piece in planned for range_ in planner.ranges(piece, grain_records=most)]
    if options.min_partitions is None or len(ranges) >= options.min_partitions:
        return ranges
    grain = max(sum(range_.size for range_ in ranges) // options.min_partitions, 1)
    return [
        range_ for planner, piece in planned for range_ in planner.ranges(piece, grain_size=grain, grain_records=most)
    ]
