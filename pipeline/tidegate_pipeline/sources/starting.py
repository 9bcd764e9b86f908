"""What a query reads, and from where to where: its partitions, and what `earliest`, `latest` and the like mean now."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.redis_access import retry_while_unavailable
from tidegate_pipeline.sources.access import Access
from tidegate_pipeline.sources.offsets import IDS, RESERVED, Offsets, Place
from tidegate_pipeline.sources.options import EARLIEST, LATEST
from tidegate_pipeline.sources.planning import PartitionPlanner
from tidegate_pipeline.sources.record_time import first_record_at
from tidegate_pipeline.sources.tiers import PartitionTiers
from tidegate_pipeline.topics import Topic


def select(access: Access, strict: bool = True) -> dict[Place, Topic]:
    """The partitions that the options name, in order. `strict`: Raises UsageError for one that does not exist."""
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
        raise no_such_topic(options.org, missing)
    places = {
        (name, partition): topics[name]
        for name in names
        if name in topics
        for partition in (sorted(options.assign[name]) if options.assign else range(topics[name].partition_count))
    }
    beyond = [place for place, topic in places.items() if place[1] not in range(topic.partition_count)]
    if beyond and strict:
        raise no_such_partition(beyond)
    return {place: topic for place, topic in places.items() if place not in beyond}


def no_such_topic(org: str, names: Iterable[str]) -> UsageError:
    """For topics that the options name."""
    return UsageError(f"no such topic in organisation {org}: {', '.join(names)}")


def no_such_partition(places: Iterable[Place]) -> UsageError:
    """For partitions that `assign` names."""
    return UsageError(f"no such partition: {', '.join(f'{name} {partition}' for name, partition in places)}")


def planner_of(access: Access, place: Place, topic: Topic) -> PartitionPlanner:
    """What walks a partition."""
    name, partition = place
    keys = access.keys(name, topic.topic_id, partition, topic.bits)
    return PartitionPlanner(access, keys, name, topic.topic_id, partition)


Snapshot = Mapping[Place, tuple[PartitionPlanner, PartitionTiers]]
"""Partitions, and what each tier holds of them, read once: a plan that read them twice could find others."""


def snapshot(access: Access) -> Snapshot:
    """The partitions that the options name. Raises UsageError, LogGone, PipelineError."""
    planners = {place: planner_of(access, place, topic) for place, topic in select(access).items()}
    return dict(zip(planners, zip(planners.values(), tiers_of(access, planners.values()), strict=True), strict=True))


def tiers_of(access: Access, planners: Iterable[PartitionPlanner]) -> list[PartitionTiers]:
    """What each tier that is read holds of many partitions now. Raises LogGone, PipelineError."""
    return access.plan([access.reading_tiers(planner.keys) for planner in planners])


def resolve(partitions: Snapshot, wanted: str | Mapping[str, Mapping[str, Any]], option: str) -> Offsets:
    """Offsets for `earliest`, `latest`, `archive` or JSON. Raises UsageError where JSON does not fit the partitions."""
    if isinstance(wanted, str):
        return _offsets(partitions, lambda planner, tiers: offset_of(planner, tiers, wanted))
    _check_json(wanted, partitions, option)

    def given(planner: PartitionPlanner, tiers: PartitionTiers) -> int:
        offset = offset_of(planner, tiers, wanted[planner.topic][str(planner.partition)])
        check_within((planner.topic, planner.partition), offset, tiers.end, option)
        return offset

    return _offsets(partitions, given)


def _offsets(partitions: Snapshot, find: Callable[[PartitionPlanner, PartitionTiers], int]) -> Offsets:
    found, epochs = {}, {}
    for place, (planner, tiers) in partitions.items():
        found[place] = find(planner, tiers)
        epochs[place] = tiers.epoch_before(found[place])
    return Offsets(found, {place[0]: planner.topic_id for place, (planner, _) in partitions.items()}, epochs)


def initial_offsets(access: Access, default: str, partitions: Snapshot | None = None) -> Offsets:
    """Where a query begins that never ran; of the options the first counts that is given. Raises UsageError."""
    options, partitions = access.options, snapshot(access) if partitions is None else partitions
    if options.starting_timestamp is not None or options.starting_by_timestamp is not None:
        named = "startingTimestamp" if options.starting_timestamp is not None else "startingOffsetsByTimestamp"
        wanted = _times(options.starting_timestamp, options.starting_by_timestamp, partitions, named)

        def first(planner: PartitionPlanner, tiers: PartitionTiers) -> int:
            place = (planner.topic, planner.partition)
            found = first_record_at(planner, tiers, wanted[place])
            if found is None and options.timestamp_strategy == "error":
                raise UsageError(
                    f"{named}: topic {place[0]} partition {place[1]} has no record of {wanted[place]} ms or later;"
                    " startingOffsetsByTimestampStrategy=latest begins at its end"
                )
            return tiers.end if found is None else found

        return _offsets(partitions, first)
    return resolve(partitions, options.starting_offsets or default, "startingOffsets")


def ending_offsets(access: Access, partitions: Snapshot | None = None) -> Offsets:
    """Where a batch query ends; of the options the first counts that is given. Raises UsageError."""
    options, partitions = access.options, snapshot(access) if partitions is None else partitions
    if options.ending_timestamp is not None or options.ending_by_timestamp is not None:
        named = "endingTimestamp" if options.ending_timestamp is not None else "endingOffsetsByTimestamp"
        wanted = _times(options.ending_timestamp, options.ending_by_timestamp, partitions, named)

        def end(planner: PartitionPlanner, tiers: PartitionTiers) -> int:
            found = first_record_at(planner, tiers, wanted[planner.topic, planner.partition])
            return tiers.end if found is None else found

        return _offsets(partitions, end)
    given = options.ending_offsets
    in_json = given.values() if isinstance(given, dict) else ()
    if given in ("earliest", "archive") or any(EARLIEST in of_topic.values() for of_topic in in_json):
        raise UsageError("endingOffsets is latest, or JSON with offsets or -1 (latest)")
    return resolve(partitions, options.ending_offsets or "latest", "endingOffsets")


def _times(
    for_all: int | None, by_place: Mapping[str, Mapping[str, int]] | None, places: Snapshot, option: str
) -> dict[Place, int]:
    """The time of each partition in ms. Raises UsageError where JSON does not fit the partitions."""
    if for_all is not None:
        return dict.fromkeys(places, for_all)
    times = by_place or {}
    _check_json(times, places, option)
    return {(topic, partition): times[topic][str(partition)] for topic, partition in places}


def check_within(place: Place, offset: int, end: int, option: str) -> None:
    """Raises UsageError for an offset of an option that the log has not reached."""
    if offset > end:
        raise UsageError(f"{option}: topic {place[0]} partition {place[1]} ends at {end}, {offset} is beyond")


def first_of_new(planner: PartitionPlanner, tiers: PartitionTiers) -> int:
    """The first offset of a partition created while the query runs: its start, or the end of its archive."""
    is_archiving = planner.access.options.starting_offsets == "archive"
    return offset_of(planner, tiers, "archive" if is_archiving else "earliest")


def _check_json(wanted: Mapping[str, Mapping[str, Any]], places: Snapshot, option: str) -> None:
    given = {(name, int(number)) for name, offsets in wanted.items() if name not in RESERVED for number in offsets}
    for problem, wrong in (
        ("has no offset for", places.keys() - given),
        ("is for what is not read:", given - places.keys()),
    ):
        if wrong:
            named = ", ".join(f"{name} {partition}" for name, partition in sorted(wrong))
            raise UsageError(f"{option} {problem} {named}")
    for planner, _ in places.values():
        if wanted.get(IDS, {}).get(planner.topic, planner.topic_id) != planner.topic_id:
            raise UsageError(f"{option} is of another topic {planner.topic}: it was created again since then")


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
