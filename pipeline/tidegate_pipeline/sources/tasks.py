"""What one task does: a range read, its rows, and what was found wrong with it put aside."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict

import pyarrow as pa

from tidegate_pipeline.archive.quarantine import Quarantine
from tidegate_pipeline.decode.decoder import CorruptBatch, StoredBatch
from tidegate_pipeline.errors import CorruptLimit, PipelineError, UsageError
from tidegate_pipeline.sources.access import Access
from tidegate_pipeline.sources.loss import lost
from tidegate_pipeline.sources.offset_ranges import PartitionRange
from tidegate_pipeline.sources.planning import PlannedRange
from tidegate_pipeline.sources.reading import read_range
from tidegate_pipeline.sources.rows import rows_of
from tidegate_pipeline.sources.tiers import Tier


def arrow_rows(access: Access, range_: PlannedRange, together: Sequence[PartitionRange]) -> Iterator[pa.RecordBatch]:
    """The rows of a range; `together` is all that is read with it. Raises DataLoss, CorruptLimit, PipelineError."""
    rows = rows_of(access, range_)
    yield from rows.make(_batches(access, range_))
    if rows.corrupt:
        _quarantine(access, range_, rows.corrupt, together)


def unread_rows(ranges: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The raw rows of rows of `RANGES_ARROW`, read here. Raises DataLoss, CorruptLimit, PipelineError."""
    for batch in ranges:
        for row in batch.column("range").to_pylist():
            options, range_, together = pickle.loads(row)  # noqa: S301 - written by our source, as Spark pickles its tasks
            with closing(Access(options)) as access:
                yield from arrow_rows(access, range_, together)


def _batches(access: Access, range_: PlannedRange) -> Iterator[StoredBatch]:
    for part_range, replies in read_range(access, range_):
        if part_range.tier is Tier.LOST:
            _lost(access, part_range)
        for batches in replies:
            yield from batches


def _lost(access: Access, part_range: PlannedRange) -> None:
    options = access.options
    if options.fail_on_data_loss:
        tiers = access.tiers(access.keys(part_range.topic, part_range.topic_id, part_range.partition))
        raise lost(part_range.topic, part_range.partition, part_range.start, part_range.end, tiers)
    import structlog  # with what it brings it takes longer than the rest of this module

    structlog.get_logger().warning(
        "pipeline_lost_offsets",
        topic=part_range.topic,
        partition=part_range.partition,
        offset=part_range.start,
        log_start=part_range.end,
    )
    if options.archive_path:
        row = {"ts": _now_ms(), "topic": part_range.topic, "partition": part_range.partition}
        Quarantine.open(options.archive_path).add_gaps(
            [{**row, "wanted_offset": part_range.start, "log_start": part_range.end}]
        )


def _quarantine(
    access: Access, range_: PlannedRange, corrupt: Sequence[CorruptBatch], together: Sequence[PartitionRange]
) -> None:
    """Corrupt batches into the quarantine, where a range's are once, however often the task runs.

    Each task puts its own there, then counts those of all: the last one sees whether they are too many.
    """
    options, first = access.options, corrupt[0]
    here = f"topic {range_.topic} partition {range_.partition}"
    reported_text = (
        f"{here}: the batch at offsets {first.base_offset} to {first.last_offset} is corrupt: {first.reason}"
    )
    if options.on_corrupt == "fail":
        raise PipelineError(
            f"{reported_text}; onCorrupt=quarantine stores such batches in the quarantine and continues"
        )
    if not options.archive_path:
        raise UsageError(f"{reported_text}; onCorrupt=quarantine needs archive.path, to put it there")
    named = {"ts": _now_ms(), "topic": range_.topic, "partition": range_.partition}
    quarantine = Quarantine.open(options.archive_path)
    quarantine.add([{**named, **asdict(batch)} for batch in corrupt[: options.corrupt_limit + 1]])
    count = quarantine.count(together)
    if max(count, len(corrupt)) > options.corrupt_limit:
        raise CorruptLimit(f"{count} corrupt batches, corruptLimit is {options.corrupt_limit}: {reported_text}")


def _now_ms() -> int:
    return int(time.time() * 1000)
