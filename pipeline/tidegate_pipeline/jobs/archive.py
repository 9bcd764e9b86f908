"""The job `archive`: batches of topics, as they are stored, into segments that brokers serve when Redis is trimmed."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import translate
from typing import TYPE_CHECKING

from pyarrow import parquet

from tidegate.records.segments import Segment
from tidegate.store.keys import LogKeys
from tidegate_pipeline.archive.index import ArchiveIndex, Archiver, ArchiveState
from tidegate_pipeline.archive.place import Place
from tidegate_pipeline.archive.segment_writer import ArchiveFolder
from tidegate_pipeline.archive.selection import COPIED, chosen, highest_fence, places
from tidegate_pipeline.jobs.job import Job, JobContext
from tidegate_pipeline.jobs.topic_options import sink_options, topic_options
from tidegate_pipeline.jobs.writable import check_writable
from tidegate_pipeline.sources.walking import LogWalker
from tidegate_pipeline.topics import Topic, read_topics, with_configs

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class ArchiveJob(Job):
    """Archives the topics that `topics` names (names or patterns); where it is empty, those that are configured so.

    With `source.fail_on_data_loss` off, offsets that are gone leave a hole in the archive, noted in quarantine/gaps.
    """

    name = "archive"
    row_name = "ranges"

    def __init__(self, topics: Sequence[str] = (), org: str = "default") -> None:
        self._topics = [topic.strip() for topic in topics]
        self._org = org
        self._before: dict[Place, ArchiveState] = {}
        self._by_id: dict[str, Topic] = {}

    def plan(self, context: JobContext) -> list[dict[str, object]]:
        """What lies between the end of the archive and the end of the log."""
        retry_s, rows = context.settings.redis.retry_s, list[dict[str, object]]()
        for place in self._places(context):
            index, keys = self._index(context, place), self._keys(context, place)
            log, end = LogWalker(context.client, keys, retry_s).offsets(), index.state().end
            start = log.redis_start if end < 0 else end
            rows.append(
                {"topic": place.topic, "partition": place.partition, "from": start, "to": log.end,
                 "offsets": log.end - start}
            )  # fmt: skip
        return rows

    def check(self, context: JobContext) -> None:
        """The topics that are named, and the archive."""
        self._places(context)
        ArchiveFolder.open(context.settings.archive.path)
        check_writable("archive.path", context.settings.archive.path)

    def start(self, context: JobContext) -> StreamingQuery:
        """Fence whoever archives these partitions now, then begin. Topics may come later: see `_subscription`."""
        archive, source = context.settings.archive, context.settings.source
        ArchiveFolder.open(archive.path)
        prefix = context.settings.redis.key_prefix
        archiver = Archiver.after(highest_fence(context.client, prefix, self._org))
        for place in self._places(context):
            self._before[place] = self._index(context, place).fence(archiver)
        options = topic_options(context.settings, self._org)
        rows = (
            context.spark.readStream.format("tidegate")
            .options(**options)
            .option("mode", "ranges")
            .options(**self._subscription())
            .option("startingOffsets", "archive")
            .option("maxBytesPerTrigger", source.max_bytes_per_trigger)
            .option("minBytesPerPartition", archive.segment_bytes)
            .option("maxTriggerDelay", f"{archive.segment_seconds}s")
            .load()
        )
        return (
            rows.writeStream.format("tidegate-archive")
            .options(**sink_options(context.settings, self._org))
            .option("archiver", str(archiver))
            .option("segmentBytes", archive.segment_bytes)
            .option("rowGroupBytes", archive.row_group_bytes)
            .option("recompress", archive.recompress)
            .option("checkpointLocation", str(context.checkpoint))
            .queryName(self.query_name)
            .trigger(**context.trigger)
            .start()
        )

    def finish(self, context: JobContext) -> dict[str, object]:
        """What was published since the start, how much smaller it is stored, and up to where Redis may be trimmed."""
        archive = ArchiveFolder.open(context.settings.archive.path)
        trim_points, segments = {}, []
        for place, before in self._before.items():
            index = self._index(context, place)
            segments += list(index.all_segments(max(before.end, 0)))
            trim_points[str(place)] = index.state().end
        size = sum(segment.size for segment in segments)
        infos = archive.filesystem.get_file_info([archive.path(segment.file) for segment in segments])
        file_size = sum(info.size or 0 for info in infos)
        return {
            "segments": len(segments),
            "batches": sum(_batches(archive, segment) for segment in segments),
            "records": sum(segment.records for segment in segments),
            "batch_bytes": size,
            "file_bytes": file_size,
            "ratio": size / file_size if file_size else 0.0,
            "trim_points": {name: end for name, end in trim_points.items() if end >= 0},
        }

    def _places(self, context: JobContext) -> list[Place]:
        prefix = context.settings.redis.key_prefix
        topics = read_topics(context.client, prefix, self._org)
        self._by_id = {topic.topic_id: topic for topic in topics.values()}
        if self._topics:
            return places(chosen(topics, self._topics))
        return places(with_configs(context.client, prefix, topics.values(), COPIED))

    def _keys(self, context: JobContext, place: Place) -> LogKeys:
        return self._by_id[place.topic_id].keys(context.settings.redis.key_prefix, place.partition)

    def _subscription(self) -> dict[str, str]:
        """As options of the source: topics that come while it runs are found by it."""
        if self._topics:
            return {"subscribePattern": "|".join(translate(topic) for topic in self._topics)}
        conditions = (f"{one.name}{'' if one.wanted else '!'}={one.value}" for one in COPIED)
        return {"subscribeConfig": ",".join(conditions)}

    def _index(self, context: JobContext, place: Place) -> ArchiveIndex:
        return ArchiveIndex(context.client, place.keys(context.settings.redis.key_prefix))


def _batches(archive: ArchiveFolder, segment: Segment) -> int:
    """By the footer of its file; 0 where a compaction has replaced it meanwhile."""
    try:
        return int(parquet.read_metadata(archive.path(segment.file), filesystem=archive.filesystem).num_rows)
    except FileNotFoundError:
        return 0
