"""`format("tidegate-archive")`: rows of whole batches -> segments, published exactly once.

Executors write files; the driver publishes them in Redis, a partition's of one micro-batch all at once and in order
of offset. What is not published does not count and is removed by gc: a failed task, a speculative one, a driver that
died. It takes the rows of `format("tidegate")` with `mode=ranges`, a few bytes each, and reads the batches where
it writes them: so they cross no pipe to the JVM and back. It also takes batches, `mode=raw` and `includeRange=true`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final, cast, get_args

import pyarrow as pa
from pyarrow import fs
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tidegate.records.segments import Segment
from tidegate_pipeline import settings
from tidegate_pipeline.addresses import check_option
from tidegate_pipeline.archive.index import ArchiveIndex, Archiver, Outcome
from tidegate_pipeline.archive.place import Place
from tidegate_pipeline.archive.segment_writer import ArchiveFolder, Recompress, Shape, write_segment
from tidegate_pipeline.archive.slicing import slice_segments
from tidegate_pipeline.decode.schema import RANGES_ARROW, RAW_RANGE_ARROW
from tidegate_pipeline.errors import ArchiveConflict, PipelineError, UsageError
from tidegate_pipeline.format_options import FormatOptions
from tidegate_pipeline.redis_access import Client, connect_by_option, kept_client, replids, retry_while_unavailable
from tidegate_pipeline.spark_errors import reports_one_line
from tidegate_pipeline.worker_heap import freeze_gc

OPTIONS: Final = (
    "path", "archive.path", "archiver", "redis.url", "redis.passwordVariable", "redis.keyPrefix", "redis.retry", "org",
    "segmentBytes", "rowGroupBytes", "recompress",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where segments go and who publishes them; without secrets, for tasks carry it."""

    path: str
    archiver: Archiver
    url: str
    password_variable: str
    prefix: str
    retry_s: float
    org: str
    shape: Shape

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """From the query's options; what is not given comes from the settings of the pipeline. Raises UsageError."""
        given = FormatOptions("tidegate-archive", OPTIONS, options)
        configured = settings.load()
        archive = configured.archive
        found = cls(
            given.text("path") or given.text("archive.path", archive.path),
            _archiver(given.text("archiver")),
            check_option(given.text("redis.url", configured.redis.option_url)),
            given.text("redis.passwordVariable", configured.redis.password_variable),
            given.text("redis.keyPrefix", configured.redis.key_prefix),
            given.number("redis.retry", configured.redis.retry_s),
            given.text("org", "default"),
            Shape(
                given.integer("segmentBytes", 1) or archive.segment_bytes,
                given.integer("rowGroupBytes", 1) or archive.row_group_bytes,
                cast(Recompress, given.one_of("recompress", archive.recompress, get_args(Recompress))),
            ),
        )
        ArchiveFolder.open(found.path)
        return found

    def connect(self) -> Client:
        """To Redis."""
        return connect_by_option(self.url, self.password_variable)


def _archiver(text: str) -> Archiver:
    try:
        return Archiver.parse(text)
    except ValueError:
        raise UsageError("tidegate-archive needs the option archiver: <number>:<token> of this start") from None


@dataclass(frozen=True, slots=True)
class WrittenSegments(WriterCommitMessage):
    """The files that one task wrote, and `master_replid` of the primaries before it read their batches."""

    segments: tuple[tuple[Place, Segment], ...]
    read_from: frozenset[str]


@reports_one_line
class ArchiveSink(DataSource):
    """The data source; it can only be written to, by a stream."""

    @classmethod
    def name(cls) -> str:
        """As `format` takes it."""
        return "tidegate-archive"

    def streamWriter(self, schema: StructType, overwrite: bool) -> ArchiveWriter:
        """For one query. Raises UsageError."""
        reads = schema.names == RANGES_ARROW.names
        missing = [name for name in RAW_RANGE_ARROW.names if name not in schema.names]
        if missing and not reads:
            raise UsageError(
                "tidegate-archive takes rows of tidegate with mode=ranges, or with mode=raw and includeRange=true; "
                f"no {', '.join(missing)}"
            )
        freeze_gc()
        return ArchiveWriter(SinkOptions.parse(self.options), reads)


@reports_one_line
class ArchiveWriter(DataSourceStreamArrowWriter):
    """Pickled into tasks; keeps nothing between micro-batches."""

    def __init__(self, options: SinkOptions, reads: bool) -> None:
        """`reads`: its rows are ranges, whose batches it reads itself."""
        self._options = options
        self._reads = reads

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenSegments:
        """One task's rows to files, on an executor; done again from the start where a task failed."""
        from tidegate_pipeline.sources.tasks import (
            unread_rows,  # decodes: the driver, where this is imported too, does not
        )

        options = self._options
        archive = ArchiveFolder.open(options.path)
        client = kept_client(options.url, options.password_variable)
        read_from = retry_while_unavailable(lambda: replids(client), options.retry_s)
        rows = unread_rows(iterator) if self._reads else iterator
        slices = slice_segments(rows, options.org, options.shape.segment_bytes)
        written = WrittenSegments(
            tuple(
                (segment_slice.place, write_segment(archive, segment_slice, options.shape)) for segment_slice in slices
            ),
            read_from,
        )
        freeze_gc()
        return written

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Publish, on the driver. Raises ArchiveConflict, PipelineError."""
        by_place: defaultdict[Place, list[Segment]] = defaultdict(list)
        read_from: dict[Place, frozenset[str]] = {}
        for message in messages:
            if isinstance(message, WrittenSegments):
                for place, segment in message.segments:
                    by_place[place].append(segment)
                    read_from[place] = read_from.get(place, message.read_from) & message.read_from
        if by_place:
            self._check_files(segment for segments in by_place.values() for segment in segments)
            with closing(self._options.connect()) as client:
                for place, segments in sorted(by_place.items()):
                    segments.sort(key=lambda segment: segment.from_offset)
                    index = ArchiveIndex(client, place.keys(self._options.prefix))
                    self._publish(index, place, segments, read_from[place])

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: files that nobody published are gc's."""

    def _check_files(self, segments: Iterable[Segment]) -> None:
        """Brokers trim what is published; of a micro-batch that slept for longer than gc waits, no file may be left."""
        archive = ArchiveFolder.open(self._options.path)
        infos = archive.filesystem.get_file_info([archive.path(segment.file) for segment in segments])
        gone = [info.path for info in infos if info.type != fs.FileType.File]
        if gone:
            raise PipelineError(f"{gone[0]}: it is gone before it was published, and {len(gone) - 1} more: start again")

    def _publish(self, index: ArchiveIndex, place: Place, segments: list[Segment], read_from: frozenset[str]) -> None:
        reported = retry_while_unavailable(
            lambda: index.publish(self._options.archiver, segments, read_from), self._options.retry_s
        )
        here = f"{place}: offsets {segments[0].from_offset} to {segments[-1].last_offset}"
        if reported.outcome is Outcome.CONFLICT:
            raise ArchiveConflict(
                f"{here} do not follow the archive, which holds {reported.start} to {reported.end - 1}: "
                "remove the query's checkpoint, it continues at the end of the archive"
            )
        if reported.outcome is Outcome.STALE:
            raise PipelineError(
                f"{here} are not published: Redis failed over or restarted after they were read, "
                "and may have lost them: start again"
            )
        if reported.outcome is Outcome.FENCED:
            raise ArchiveConflict(f"{here} are not published: a newer start of the archive query has taken over")
