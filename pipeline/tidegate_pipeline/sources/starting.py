"""What a query reads, and from where to where: its partitions, and what `earliest`, `latest` and the like mean now."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.redis_access import retry_while_unavailable
from tidegate_pipeline.sources.access import Access
from tidegate_pipeline.sources.offsets import IDS, RESERVED, Offsets, Place
from tidegate_pipeline.sources.options import EARLIEST, LATEST
from tidegate_pipeline.sources.planning import PartitionPlanner
from tidegate_pipeline.sources.tiers import PartitionTiers, Tier, TierRange
from tidegate_pipeline.sources.walking import Limits
from tidegate_pipeline.topics import Topic


def select(access: Access, strict: bool = True) -> dict[Place, Topic]:
    """The partitions that the options name, in order. `strict`: Raises UsageError for one that there is not."""
    topics, options = access.topics(), access.options
    for name in topics.keys() & RESERVED:
        raise UsageError(f"a topic called {name} cannot be read: offsets keep something else under that name")
    if options.pattern:
        pattern = re.compile(options.pattern)
        names = [name for name in topics if pattern.fullmatch(name)]
    elif options.config:
        names = [topic.name for topic in access.configured(topics.values(), options.config)]
    else:
        names = sorted(options.subscribe or options.assign)
    missing = [name for name in names if name not in topics]
    if missing and strict:
        raise UsageError(f"no such topic in organisation {options.org}: {', '.join(missing)}")
    places = {
        (name, partition): topics[name]
        for name in names
        if name in topics
        for partition in (sorted(options.assign[name]) if options.assign else range(topics[name].partition_count))
    }
    beyond = [place for place, topic in places.items() if place[1] not in range(topic.partition_count)]
    if beyond and strict:
        raise UsageError(f"no such partition: {', '.join(f'{name} {partition}' for name, partition in beyond)}")
    return {place: topic for place, topic in places.items() if place not in beyond}


def planner_of(access: Access, place: Place, topic: Topic) -> PartitionPlanner:
    """What walks a partition."""
    name, partition = place
    return PartitionPlanner(access, access.keys(name, topic.topic_id, partition), name, topic.topic_id, partition)


def resolve(
    access: Access, wanted: str | Mapping[str, Mapping[str, Any]], places: Mapping[Place, Topic], option: str
) -> Offsets:
    """Offsets for `earliest`, `latest`, `archive` or JSON. Raises UsageError where JSON does not fit the partitions."""
    if isinstance(wanted, str):
        return _offsets(access, places, lambda planner, tiers: offset_of(planner, tiers, wanted))
    _check_json(wanted, places, option)
    return _offsets(
        access,
        places,
        lambda planner, tiers: offset_of(planner, tiers, wanted[planner.topic][str(planner.partition)]),
    )


def _offsets(
    access: Access, places: Mapping[Place, Topic], find: Callable[[PartitionPlanner, PartitionTiers], int]
) -> Offsets:
    found, epochs = {}, {}
    for place, topic in places.items():
        planner = planner_of(access, place, topic)
        tiers = planner.tiers()
        found[place] = find(planner, tiers)
        epochs[place] = tiers.epoch_before(found[place])
    return Offsets(found, {topic.name: topic.topic_id for topic in places.values()}, epochs)


def initial_offsets(access: Access, default: str) -> Offsets:
    """Where a query begins that never ran. Raises UsageError."""
    options, places = access.options, select(access)
    if options.starting_timestamp is not None:
        timestamp_ms = options.starting_timestamp
        return _offsets(access, places, lambda planner, tiers: at_timestamp(planner, tiers, timestamp_ms))
    return resolve(access, options.starting_offsets or default, places, "startingOffsets")


def first_of_new(planner: PartitionPlanner, tiers: PartitionTiers) -> int:
    """The first offset of a partition created while the query runs: its start, or the end of its archive."""
    is_archiving = planner.access.options.starting_offsets == "archive"
    return offset_of(planner, tiers, "archive" if is_archiving else "earliest")


def _check_json(wanted: Mapping[str, Mapping[str, Any]], places: Mapping[Place, Topic], option: str) -> None:
    given = {(name, int(number)) for name, offsets in wanted.items() if name not in RESERVED for number in offsets}
    for problem, wrong in (
        ("has no offset for", places.keys() - given),
        ("is for what is not read:", given - places.keys()),
    ):
        if wrong:
            named = ", ".join(f"{name} {partition}" for name, partition in sorted(wrong))
            raise UsageError(f"{option} {problem} {named}")
    for topic in places.values():
        if wanted.get(IDS, {}).get(topic.name, topic.topic_id) != topic.topic_id:
            raise UsageError(f"{option} is of another topic {topic.name}: it was made again since")


def offset_of(planner: PartitionPlanner, tiers: PartitionTiers, wanted: str | int) -> int:
    """An offset for one that is given, or for `earliest`, `latest`, `archive`."""
    if wanted in ("latest", LATEST):
        return tiers.end
    if wanted in ("earliest", EARLIEST):
        return tiers.start
    if wanted == "archive":
        end = retry_while_unavailable(planner.access.index(planner.keys).state, planner.access.options.retry_s).end
        return tiers.start if end < 0 else end
    return int(wanted)


def at_timestamp(planner: PartitionPlanner, tiers: PartitionTiers, timestamp_ms: int) -> int:
    """The offset of the first entry that has a record of that time or later; the end where none has."""
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
