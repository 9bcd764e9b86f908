"""Plan the micro-batches of a stream from their offsets alone.

The state between calls is the target of availableNow, the partitions that wait for more data, figures for the query's
progress, and the ranges walked last, which saves a second walk of the same range.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidegate_pipeline.sources import starting
from tidegate_pipeline.sources.access import Access
from tidegate_pipeline.sources.loss import made_again, went_back
from tidegate_pipeline.sources.offset_ranges import PartitionRange
from tidegate_pipeline.sources.offsets import Offsets, Place
from tidegate_pipeline.sources.planning import (
    PartitionCursor,
    PartitionPlanner,
    PlannedRange,
    covered_ranges,
    share_out,
)
from tidegate_pipeline.sources.splitting import Planned, arranged, split
from tidegate_pipeline.sources.tiers import PartitionTiers, Tier, TierRange, arrange
from tidegate_pipeline.sources.waiting import Waiting
from tidegate_pipeline.sources.walking import LogGone, Step
from tidegate_pipeline.topics import Topic

StreamEnds = dict[Place, tuple[PartitionPlanner, PartitionTiers]]


class StreamPlan:
    """The driver's side of one stream."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._target: Offsets | None = None
        self._ends: Offsets | None = None
        self._walked: dict[tuple[Place, TierRange], Step] = {}
        self._lost: dict[tuple[Place, int], int] = {}
        self._corrupt: dict[tuple[PartitionRange, ...], int] = {}
        self._together: tuple[PartitionRange, ...] = ()
        self._waiting = Waiting(access.options.bytes_per_partition, access.options.trigger_delay_s)

    def fix_target(self) -> None:
        """Fix the end of the query at the present ends of the logs."""
        self._target = _ends(self._observe(Offsets()))

    def progress(self) -> dict[str, Any] | None:
        """The ends of the logs at the last planning, and the lost and corrupt offsets since the query started."""
        if self._ends is None:
            return None
        figures = {
            "pipeline_corrupt_batches_total": sum(self._corrupt.values()),
            "pipeline_lost_offsets_total": sum(self._lost.values()),
        }
        return {**self._ends.to_json(), "_metrics": figures}

    def count_corrupt(self) -> None:
        """Of the micro-batch that ended: what its tasks put into the quarantine."""
        options = self._access.options
        if self._together and options.archive_path and options.on_corrupt == "quarantine":
            from tidegate_pipeline.archive.quarantine import Quarantine

            self._corrupt[self._together] = Quarantine.open(options.archive_path).count(self._together)
            self._together = ()

    def next_offsets(self, start: Offsets, most: int | None, by_records: bool) -> Offsets:
        """Where the next micro-batch ends, which takes at most so many bytes or records; None is all there is.

        A partition that is new is there with its first offset, and read the next time; one that is gone stays as it
        is. Raises DataLoss.
        """
        observed = self._observe(start)
        self._ends = _ends(observed)
        ids = {**start.ids, **self._ends.ids}
        start = self._without_those_made_again(start, ids)
        positions, epochs = dict(start.next), dict(start.epochs)
        cursors = self._cursors(observed, start, by_records)
        positions.update(self._first_offsets(observed, start))
        if most is not None:
            share_out(list(cursors.values()), most)
            cursors = {place: cursor for place, cursor in cursors.items() if not self._holds(place, cursor)}
        self._walked.clear()
        for place, cursor in cursors.items():
            begin = positions[place]
            positions[place] = cursor.position if most is not None else max(cursor.position, cursor.stop)
            self._note_lost(place, arrange(begin, positions[place], observed[place][1]))
            if cursor.whole is not None:
                self._walked[place, cursor.whole[0]] = cursor.whole[1]
        epochs.update(
            {
                place: tiers.epoch_before(positions[place])
                for place, (_, tiers) in observed.items()
                if place in positions
            }
        )
        return Offsets(positions, {topic: ids[topic] for topic, _ in positions}, epochs)

    def _cursors(self, observed: StreamEnds, start: Offsets, by_records: bool) -> dict[Place, PartitionCursor]:
        """The partitions to continue. Raises DataLoss for a truncated log."""
        cursors = {}
        for place, (planner, tiers) in observed.items():
            stop, position = self._stop(place, planner, tiers), start.next.get(place)
            if stop is None or position is None:
                continue
            ended = tiers.truncated_to(position, start.epochs.get(place, 0))
            if ended is not None:
                raise went_back(*place, position, ended)
            cursors[place] = PartitionCursor(planner, position, stop, tiers, by_records)
        return cursors

    def _first_offsets(self, observed: StreamEnds, start: Offsets) -> dict[Place, int]:
        """Where those begin that are new."""
        return {
            place: starting.first_of_new(planner, tiers)
            for place, (planner, tiers) in observed.items()
            if place not in start.next and self._stop(place, planner, tiers) is not None
        }

    def ranges(self, start: Offsets, end: Offsets) -> list[PlannedRange]:
        """The tasks of the micro-batch between two offsets. Raises DataLoss."""
        planned: list[Planned] = []
        ranges: list[PlannedRange] = []
        for place, stop in sorted(end.next.items()):
            topic, topic_id = place[0], end.ids[place[0]]
            planner = starting.planner_of(self._access, place, Topic(self._access.options.org, topic, topic_id, 0))
            begin = start.next.get(place, stop)
            walked = self._walked.get((place, TierRange(begin, stop, Tier.REDIS)))
            if start.ids.get(topic, topic_id) != topic_id:
                ranges.append(planner.range(Tier.LOST, begin, stop, Step(begin, stop, 0, 0, 0, -1)))
            elif walked and not self._access.options.splits:
                ranges.append(planner.range(Tier.REDIS, begin, stop, walked))
            elif begin < stop:
                planned += arranged(planner, begin, stop, self._tiers_of_planned(planner, begin, stop))
        ranges += split(planned, self._access.options)
        for range_ in ranges:
            self._note_lost((range_.topic, range_.partition), [TierRange(range_.start, range_.end, range_.tier)])
        self._together = covered_ranges(ranges)
        return ranges

    def _note_lost(self, place: Place, tier_ranges: Iterable[TierRange]) -> None:
        """Count what is lost of a partition, once. Of a topic that was made again nobody knows how much it was."""
        for tier_range in tier_ranges:
            if tier_range.tier is Tier.LOST:
                self._lost[place, tier_range.start] = max(tier_range.end - tier_range.start, 0)

    def _without_those_made_again(self, start: Offsets, ids: dict[str, str]) -> Offsets:
        again = {topic for topic, topic_id in start.ids.items() if ids[topic] != topic_id}
        for topic in sorted(again):
            if self._access.options.fail_on_data_loss:
                raise made_again(topic, start.ids[topic], ids[topic])
        return Offsets(
            {place: offset for place, offset in start.next.items() if place[0] not in again},
            start.ids,
            {place: epoch for place, epoch in start.epochs.items() if place[0] not in again},
        )

    def _holds(self, place: Place, cursor: PartitionCursor) -> bool:
        """Whether a partition is not read yet: all that it has is little. What availableNow found is read."""
        return self._target is None and cursor.done and self._waiting.holds(place, cursor.size)

    def _observe(self, start: Offsets) -> StreamEnds:
        """Every partition that is there, and what its tiers hold."""
        found: StreamEnds = {}
        for place, topic in starting.select(self._access, strict=False).items():
            planner = starting.planner_of(self._access, place, topic)
            same = start.ids.get(place[0]) == topic.topic_id
            try:
                found[place] = planner, planner.tiers(start.next.get(place, 0) if same else 0)
            except LogGone:
                continue  # it is being deleted
        return found

    def _stop(self, place: Place, planner: PartitionPlanner, tiers: PartitionTiers) -> int | None:
        """Where reading ends at the latest; None for what availableNow does not read."""
        if self._target is None:
            return tiers.end
        if self._target.ids.get(place[0]) != planner.topic_id or place not in self._target.next:
            return None
        return min(self._target.next[place], tiers.end)

    def _tiers_of_planned(self, planner: PartitionPlanner, start: int, end: int) -> PartitionTiers:
        """What the tiers hold of a range that a plan names; where the topic is gone, nothing: all of it is lost."""
        try:
            tiers = planner.tiers(start)
        except LogGone:
            return PartitionTiers(-1, None, None)
        if tiers.redis and tiers.redis.end < end:
            raise went_back(planner.topic, planner.partition, end, tiers.redis.end)
        return tiers


def _ends(observed: StreamEnds) -> Offsets:
    return Offsets(
        {place: tiers.end for place, (_, tiers) in observed.items()},
        {place[0]: planner.topic_id for place, (planner, _) in observed.items()},
    )
