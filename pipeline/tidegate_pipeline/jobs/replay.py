"""The job `replay`: records of a topic, from both tiers, into another topic, each once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.jobs.job import Job, JobContext
from tidegate_pipeline.jobs.topic_options import access_to, sink_options, topic_options
from tidegate_pipeline.jobs.writable import check_writable
from tidegate_pipeline.replay.record_filter import RecordFilter
from tidegate_pipeline.replay.sink import MAX_OFFSET, source_name
from tidegate_pipeline.replay.translation import Table
from tidegate_pipeline.sources.record_time import at_timestamp
from tidegate_pipeline.sources.starting import planner_of
from tidegate_pipeline.topics import Topic, find_batch_topic

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_PACED_S: Final = 10
"""Seconds of a micro-batch where a rate is given."""


class ReplayJob(Job):
    """Copy one topic to another. `job` names the progress in the target; a job of the same name continues."""

    name = "replay"
    row_name = "batches"

    def __init__(
        self, source: str, target: str, job: str | None = None, record_filter: RecordFilter | None = None, *,
        repartition: bool = False, records_per_s: int = 0, org: str = "default",
    ) -> None:  # fmt: skip
        if source == target:
            raise UsageError(f"{source} cannot be replayed into itself: it would never end")
        self._source = source
        self._target = target
        self._job = job or f"{source}-to-{target}"
        self._record_filter = record_filter or RecordFilter()
        self._repartition = repartition
        self._records_per_s = records_per_s
        self._org = org

    @property
    def query_name(self) -> str:
        """One query a job."""
        return f"replay-{self._job}"

    def plan(self, context: JobContext) -> list[dict[str, object]]:
        """The ranges, and how far the target is."""
        source, target = self._topics(context)
        rows = list[dict[str, object]]()
        for partition, (first, end, there) in self._offset_ranges(context, source).items():
            written = self._written(context, source, target, partition)
            rows.append(
                {"topic": source.name, "partition": partition, "from": first, "to": min(end, there),
                 "offsets": max(min(end, there) - first, 0), "written_up_to": written}
            )  # fmt: skip
        return rows

    def check(self, context: JobContext) -> None:
        """Both topics, and where the translations go."""
        source, _ = self._topics(context)
        check_writable("archive.path", self._table(context, source).root)

    def start(self, context: JobContext) -> StreamingQuery:
        """Begin. Raises UsageError."""
        source, target = self._topics(context)
        table = self._table(context, source)
        offset_range = self._offset_ranges(context, source)
        for partition, (first, *_) in offset_range.items():
            self._register(context, source, target, partition, first)
            written = self._written(context, source, target, partition)
            if written is not None:
                table.truncate(partition, written + 1)
        options = topic_options(context.settings, self._org)
        reading = (
            context.spark.readStream.format("tidegate")
            .options(**options)
            .options(subscribe=source.name, mode="raw", includeRange="true")
            .option("isolation", context.settings.source.isolation)
            .option(
                "startingOffsets", json.dumps({source.name: {str(p): first for p, (first, *_) in offset_range.items()}})
            )
        )
        if self._records_per_s:
            reading = reading.option("maxOffsetsPerTrigger", self._records_per_s * _PACED_S)
        else:
            reading = reading.option("maxBytesPerTrigger", context.settings.source.max_bytes_per_trigger)
        chosen = (
            ""
            if self._record_filter == RecordFilter()
            else ",".join(f"{p}:{a}-{b}" for p, (a, b, _) in offset_range.items())
        )
        return (
            reading.load()
            .writeStream.format("tidegate-replay")
            .options(**sink_options(context.settings, self._org))
            .options(topic=target.name, topicId=target.topic_id, job=table.job)
            .options(sourceTopic=source.name, sourceId=source.topic_id, ranges=chosen)
            .option("repartition", "true" if self._repartition else "false")
            .option("recordsPerSecond", self._records_per_s / source.partition_count)
            .option("checkpointLocation", str(context.checkpoint))
            .queryName(self.query_name)
            .trigger(**context.trigger)
            .start()
        )

    def finish(self, context: JobContext) -> dict[str, object]:
        """How far the target is, and where the translations are."""
        source, target = self._topics(context)
        written = {str(p): self._written(context, source, target, p) for p in range(source.partition_count)}
        table = self._table(context, source)
        return {"written_up_to": written, "translations": f"{table.root}/{table.folder(0).rpartition('/')[0]}"}

    def _topics(self, context: JobContext) -> tuple[Topic, Topic]:
        prefix = context.settings.redis.key_prefix
        source, target = (
            find_batch_topic(context.client, prefix, self._org, name) for name in (self._source, self._target)
        )
        if source.partition_count != target.partition_count and not self._repartition:
            raise UsageError(
                f"{source.name} has {source.partition_count} partitions, {target.name} {target.partition_count}:"
                " give both as many, or --repartition"
            )
        return source, target

    def _table(self, context: JobContext, source: Topic) -> Table:
        return Table(context.settings.archive.path, self._job, source.name, source.topic_id, self._target)

    def _offset_ranges(self, context: JobContext, source: Topic) -> dict[int, tuple[int, int, int]]:
        """By partition: the first offset, the one after the last, and where the log ends now."""
        record_filter, access = self._record_filter, access_to(context.settings, self._org, source.name)
        offset_range = {}
        for partition in range(source.partition_count):
            planner = planner_of(access, (source.name, partition), source)
            tiers = planner.tiers()
            first = (
                tiers.start if record_filter.since_ms is None else at_timestamp(planner, tiers, record_filter.since_ms)
            )
            end = MAX_OFFSET if record_filter.until_ms is None else at_timestamp(planner, tiers, record_filter.until_ms)
            if record_filter.ranges is not None:
                wanted = record_filter.ranges.get(partition, record_filter.ranges.get(None, (tiers.end, tiers.end)))
                first, end = min(max(first, wanted[0]), tiers.end), min(end, wanted[1])
            offset_range[partition] = first, end, tiers.end
        access.close()
        return offset_range

    def _register(self, context: JobContext, source: Topic, target: Topic, partition: int, first: int) -> None:
        """Store the first offset of a job before its first record: the first batch must have that offset."""
        name, hashes = self._notes(context, source, target, partition)
        for key in hashes:
            context.client.hsetnx(key, name, first - 1)

    def _written(self, context: JobContext, source: Topic, target: Topic, partition: int) -> int | None:
        """The last source offset that is in every target partition that may get it; None before the job began."""
        name, hashes = self._notes(context, source, target, partition)
        found = [context.client.hget(key, name) for key in hashes]
        return None if None in found else min(map(int, found))

    def _notes(self, context: JobContext, source: Topic, target: Topic, partition: int) -> tuple[str, list[str]]:
        """What a source partition is called in the target, and the hashes that note how far it is."""
        prefix = context.settings.redis.key_prefix
        indexes = range(target.partition_count) if self._repartition else [partition]
        name = source_name(self._job, source.name, source.topic_id, partition)
        return name, [target.keys(prefix, index).replayed for index in indexes]
