"""Where a partition has its first record of a time or later: `startingTimestamp` and its like, to the record."""

from __future__ import annotations

from dataclasses import replace

from tidegate_pipeline.redis_access import retry_while_unavailable
from tidegate_pipeline.sources.access import Access
from tidegate_pipeline.sources.planning import PartitionPlanner, PlannedRange
from tidegate_pipeline.sources.tiers import PartitionTiers, Tier, TierRange, arrange
from tidegate_pipeline.sources.walking import Limits


def first_record_at(planner: PartitionPlanner, tiers: PartitionTiers, timestamp_ms: int) -> int | None:
    """The offset of the first record whose timestamp is at least `timestamp_ms`; None where there is none.

    The same as Kafka's ListOffsets gives. Raises PipelineError.
    """
    if planner.bits:
        return _first_appended_at(planner, tiers, timestamp_ms)
    position = at_timestamp(planner, tiers, timestamp_ms)
    while position < tiers.end:
        tier_range = next(iter(arrange(position, tiers.end, tiers)))
        walked, steps = planner.walk(tier_range, Limits(grain_records=1))
        for step in steps if tier_range.tier is not Tier.LOST else ():
            if step.max_timestamp >= timestamp_ms:
                start = max(step.first, position)
                found = _first_in(planner.access, planner.range(tier_range.tier, start, step.end, step), timestamp_ms)
                if found is not None:
                    return found
        if walked <= position:
            break
        position = walked
    return None


def _first_appended_at(planner: PartitionPlanner, tiers: PartitionTiers, timestamp_ms: int) -> int | None:
    """Of format record, as ListOffsets: the first record that was appended at that time or later; ids are times."""
    position = max(timestamp_ms << planner.bits, tiers.start)
    while position < tiers.end:
        tier_range = next(iter(arrange(position, tiers.end, tiers)))
        walked, steps = planner.walk(tier_range, Limits(records=1))
        if tier_range.tier is Tier.REDIS and steps:
            return steps[0].first
        if tier_range.tier is Tier.ARCHIVE or walked <= position:
            return position  # a reader continues to the next record
        position = walked
    return None


def _first_in(access: Access, range_: PlannedRange, timestamp_ms: int) -> int | None:
    from tidegate.records.batch import Batch  # with the archive's reader: few queries begin at a time
    from tidegate.records.record import read_records
    from tidegate_pipeline.sources.reading import read_range

    for _, replies in read_range(access, range_):
        for stored in (stored for batches in replies for stored in batches):
            batch = Batch.parse(stored.buffer)
            for record in () if batch.is_control else read_records(batch, access.options.decoded_batch_max):
                offset = record.offset - batch.base_offset + stored.base_offset
                if offset >= range_.start and record.timestamp >= timestamp_ms:
                    return offset
    return None


def at_timestamp(planner: PartitionPlanner, tiers: PartitionTiers, timestamp_ms: int) -> int:
    """The offset of the first entry that has a record of that time or later; the end where none has.

    Of format record the start: a record's own time says nothing about its id.
    """
    if planner.bits:
        return tiers.start
    if tiers.archive and tiers.start < (tiers.redis.start if tiers.redis else tiers.archive.end):
        found = _first_archived_at(planner, timestamp_ms)
        if found is not None:
            return max(found, tiers.start)
    if tiers.redis is None:
        return tiers.end
    return _first_stored_at(planner, timestamp_ms, TierRange(tiers.redis.start, tiers.redis.end, Tier.REDIS))


def _first_archived_at(planner: PartitionPlanner, timestamp_ms: int) -> int | None:
    from tidegate.records.segment_file import SegmentFile  # with pyarrow's Parquet: few queries begin in the archive

    for segment in planner.access.index(planner.keys).all_segments():
        if segment.max_timestamp >= timestamp_ms:
            filesystem, root = planner.access.archive()
            file = SegmentFile(filesystem, f"{root}/{segment.file}")
            at = next(at for at, group in enumerate(file.row_groups) if group.max_timestamp >= timestamp_ms)
            rows = file.table(at, ["from_offset", "max_timestamp"]).to_pylist()
            return next(int(row["from_offset"]) for row in rows if row["max_timestamp"] >= timestamp_ms)
    return None


def _first_stored_at(planner: PartitionPlanner, timestamp_ms: int, tier_range: TierRange) -> int:
    """From the time index, which is about one entry a second, entry by entry."""
    client, keys = planner.access.client, planner.keys
    below = retry_while_unavailable(
        lambda: client.zrevrangebyscore(keys.times, f"({timestamp_ms}", "-inf", start=0, num=1),
        planner.access.options.retry_s,
    )
    position = max(int(below[0]) if below else 0, tier_range.start)
    while position < tier_range.end:
        next_position, steps = planner.walk(replace(tier_range, start=position), Limits(grain_records=1))
        for step in steps:
            if step.max_timestamp >= timestamp_ms:
                return max(step.first, tier_range.start)
        if next_position == position:
            break
        position = next_position
    return tier_range.end
