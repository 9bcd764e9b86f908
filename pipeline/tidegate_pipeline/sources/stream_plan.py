"""Plan the micro-batches of a stream from their offsets alone.

The state between calls is the target of availableNow, the partitions that wait for more data, figures for the query's
progress, and the ranges walked last, which saves a second walk of the same range.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.sources import starting
from tidegate_pipeline.sources.access import Access
from tidegate_pipeline.sources.loss import deleted, made_again, moved_back
from tidegate_pipeline.sources.offsets import Offsets, Place, name_of_micro_batch
from tidegate_pipeline.sources.planning import (
    PartitionCursor,
    PartitionPlanner,
    PlannedRange,
    share_out,
)
from tidegate_pipeline.sources.reads import Planning
from tidegate_pipeline.sources.splitting import Planned, arranged, split
from tidegate_pipeline.sources.tiers import DELETED, PartitionTiers, Tier, TierRange, arrange
from tidegate_pipeline.sources.waiting import TriggerDelay, Waiting
from tidegate_pipeline.sources.walking import Step
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
        self._planned = Offsets()
        self._corrupt = 0
        self._plan = self._counted = ""
        self._topics: dict[str, Topic] = {}
        """By id, those that were read of late: planning a range needs their formats."""
        options = access.options
        self._waiting = Waiting(options.bytes_per_partition, options.trigger_delay_s)
        self._trigger_delay = TriggerDelay(options.offsets_per_trigger_min or 0, options.trigger_delay_s)

    def fix_target(self) -> None:
        """Fix the end of the query at the present ends of the logs."""
        self._target = _ends(self._observe(Offsets()))

    def progress(self) -> dict[str, Any] | None:
        """The ends of the logs at the last planning, and figures: how far behind them the query is, as Spark's Kafka
        connector has them, and the lost offsets and corrupt batches since the query started.
        """
        if self._ends is None:
            return None
        behind = [max(end - self._planned.next.get(place, end), 0) for place, end in self._ends.next.items()] or [0]
        figures = {
            "avgOffsetsBehindLatest": sum(behind) / len(behind),
            "maxOffsetsBehindLatest": max(behind),
            "minOffsetsBehindLatest": min(behind),
            "pipeline_corrupt_batches_total": self._corrupt,
            "pipeline_lost_offsets_total": sum(self._lost.values()),
        }
        return {**self._ends.to_json(), "_metrics": figures}

    def count_corrupt(self) -> None:
        """Of the micro-batch that ended: what its tasks put into the quarantine."""
        options = self._access.options
        if self._plan != self._counted and options.archive_path and options.on_corrupt == "quarantine":
            from tidegate_pipeline.archive.quarantine import Quarantine

            self._corrupt += Quarantine.open(options.archive_path).count(self._plan)
            self._counted = self._plan

    def next_offsets(self, start: Offsets, most: int | None, by_records: bool) -> Offsets:
        """Where the next micro-batch ends, which takes at most so many bytes or records; None is all there is.

        A partition that is new is there with its first offset, and read the next time; one that is not subscribed any
        more stays as it is, and one that was deleted goes. Raises DataLoss, UsageError for a topic that does not exist.
        """
        if foreign := {topic for topic, _ in start.next} - start.ids.keys():
            raise UsageError(
                f"the checkpoint is of another source: its offsets have no id of topic {min(foreign)}, and could be"
                " those of another cluster. Start the query with a new checkpoint"
            )
        observed = self._observe(start)
        self._ends = _ends(observed)
        ids = {**start.ids, **self._ends.ids}
        start = self._without_those_made_again(start, ids)
        positions, epochs = dict(start.next), dict(start.epochs)
        self._pass_deleted(observed, start, positions)
        cursors = self._cursors(observed, start, by_records)
        if most is not None and self._target is None and self._trigger_delay.holds(_behind(cursors)):
            cursors = {}
        positions.update(self._first_offsets(observed, start))
        if most is not None:
            share_out(list(cursors.values()), most, self._advance)
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
        epochs = {place: epoch for place, epoch in epochs.items() if place in positions}
        self._planned = Offsets(positions, {topic: ids[topic] for topic, _ in positions}, epochs)
        return self._planned

    def _pass_deleted(self, observed: StreamEnds, start: Offsets, positions: dict[Place, int]) -> None:
        """Take deleted partitions out of `positions`; first their end is the end of a range, if it was not read.

        Raises DataLoss unless the options allow it, UsageError for a topic or partition that the options name.
        """
        access, options = self._access, self._access.options
        missing = sorted(start.next.keys() - observed.keys())
        unknown = {*options.subscribe, *options.assign} - start.ids.keys() - {topic for topic, _ in observed}
        assigned = {(name, partition) for name, numbers in options.assign.items() for partition in numbers}
        absent = sorted(assigned - observed.keys())
        topics = access.topics() if missing or unknown or absent else {}
        for place in missing:
            topic, topic_id = place[0], start.ids[place[0]]
            if topic in topics and topics[topic].topic_id == topic_id:
                continue  # it is not subscribed any more
            end = starting.planner_of(access, place, self._topic(topic, topic_id)).end_of_deleted()
            if end == start.next[place]:
                del positions[place]
            elif options.fail_on_data_loss:
                raise deleted(*place, start.next[place], end)
            elif end < 0:
                del positions[place]
            else:
                positions[place] = end
        misspelt = sorted({*options.subscribe, *options.assign} - topics.keys()) if missing or unknown else []
        if misspelt and options.fail_on_data_loss:
            raise starting.no_such_topic(options.org, misspelt)
        beyond = [place for place in absent if place[0] in topics and place[1] >= topics[place[0]].partition_count]
        if beyond and options.fail_on_data_loss:
            raise starting.no_such_partition(beyond)

    def _cursors(self, observed: StreamEnds, start: Offsets, by_records: bool) -> dict[Place, PartitionCursor]:
        """The partitions to continue. Raises DataLoss for a truncated log."""
        cursors = {}
        for place, (planner, tiers) in observed.items():
            stop, position = self._stop(place, planner, tiers), start.next.get(place)
            if stop is None or position is None:
                continue
            ended = tiers.truncated_to(position, start.epochs.get(place, 0))
            if ended is not None:
                raise moved_back(*place, position, ended)
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
        planned: list[Planning[list[Planned]]] = []
        ranges: list[PlannedRange] = []
        for place, stop in sorted(end.next.items()):
            topic, topic_id = place[0], end.ids[place[0]]
            planner = starting.planner_of(self._access, place, self._topic(topic, topic_id))
            begin = start.next.get(place, stop)
            walked = self._walked.get((place, TierRange(begin, stop, Tier.REDIS)))
            if start.ids.get(topic, topic_id) != topic_id:
                ranges.append(planner.range(Tier.LOST, begin, stop, Step(begin, stop, 0, 0, 0, -1)))
            elif walked and not self._access.options.splits:
                ranges.append(planner.range(Tier.REDIS, begin, stop, walked))
            elif begin < stop:
                planned.append(self._arranging(planner, begin, stop))
        ranges += split(list(chain.from_iterable(self._access.plan(planned))), self._access.options)
        for range_ in ranges:
            self._note_lost((range_.topic, range_.partition), [TierRange(range_.start, range_.end, range_.tier)])
        self._plan = name_of_micro_batch(start, end)
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
        places = starting.select(self._access, strict=False)
        self._topics.update({topic.topic_id: topic for topic in places.values()})
        planners = [starting.planner_of(self._access, place, topic) for place, topic in places.items()]
        reading = [
            planner.reading_tiers_left(start.next.get(place, 0) if start.ids.get(place[0]) == topic.topic_id else 0)
            for (place, topic), planner in zip(places.items(), planners, strict=True)
        ]
        return {
            place: (planner, tiers)
            for place, planner, tiers in zip(places, planners, self._access.plan(reading), strict=True)
            if tiers is not DELETED  # it is being deleted
        }

    def _topic(self, name: str, topic_id: str) -> Topic:
        """A topic that offsets name: of one that was deleted nothing more is known."""
        if topic_id not in self._topics:
            self._topics.update({topic.topic_id: topic for topic in self._access.topics().values()})
        unknown = Topic(self._access.options.org, name, topic_id, 0)
        return self._topics.setdefault(topic_id, unknown)

    def _advance(self, cursors: Sequence[PartitionCursor], share: int, at_least_one: bool) -> list[int]:
        return self._access.plan([cursor.advancing(share, at_least_one) for cursor in cursors])

    def _stop(self, place: Place, planner: PartitionPlanner, tiers: PartitionTiers) -> int | None:
        """Where reading ends at the latest; None for what availableNow does not read."""
        if self._target is None:
            return tiers.end
        if self._target.ids.get(place[0]) != planner.topic_id or place not in self._target.next:
            return None
        return min(self._target.next[place], tiers.end)

    def _arranging(self, planner: PartitionPlanner, start: int, end: int) -> Planning[list[Planned]]:
        """A range that a plan names, by tiers; where the topic is gone, all of it is lost. Raises DataLoss."""
        tiers = yield from planner.reading_tiers_left(start)
        if 0 <= tiers.log_end < end:
            raise moved_back(planner.topic, planner.partition, end, tiers.log_end)
        return list(arranged(planner, start, end, tiers))


def _behind(cursors: dict[Place, PartitionCursor]) -> int:
    return sum(max(cursor.stop - cursor.position, 0) for cursor in cursors.values())


def _ends(observed: StreamEnds) -> Offsets:
    return Offsets(
        {place: tiers.end for place, (_, tiers) in observed.items()},
        {place[0]: planner.topic_id for place, (planner, _) in observed.items()},
    )
