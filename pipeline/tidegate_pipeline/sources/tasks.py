"""What one task does: a range read, its rows, and what was found wrong with it quarantined."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from tidegate_pipeline.archive.quarantine import Quarantine
from tidegate_pipeline.decode.decoder import CorruptBatch, StoredBatch
from tidegate_pipeline.errors import CorruptLimit, PipelineError, UsageError
from tidegate_pipeline.sources.access import Access
from tidegate_pipeline.sources.loss import lost
from tidegate_pipeline.sources.options import TopicOptions
from tidegate_pipeline.sources.planning import PartitionPlanner, PlannedRange
from tidegate_pipeline.sources.reading import read_range
from tidegate_pipeline.sources.rows import rows_of, without_aborted
from tidegate_pipeline.sources.tiers import Tier


def arrow_rows(access: Access, range_: PlannedRange, plan: str) -> Iterator[pa.RecordBatch]:
    """The rows of a range; `plan` names all that is read with it. Raises DataLoss, CorruptLimit, PipelineError."""
    options, rows, batches = access.options, rows_of(access, range_), _batches(access, range_)
    if options.isolation == "read_committed" and not range_.bits:
        batches = without_aborted(access, range_, batches)
    corrupt_max = options.corrupt_limit if options.on_corrupt == "quarantine" else 0
    for batch in rows.make(batches):
        if len(rows.corrupt) > corrupt_max:
            break  # the query fails: what is left of the range is not read, nor kept in memory
        yield batch
    if rows.corrupt:
        _quarantine(access, range_, rows.corrupt, plan)


def unread_rows(ranges: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The raw rows of rows of `RANGES_ARROW`, read here. Raises DataLoss, CorruptLimit, PipelineError."""
    for batch in ranges:
        for row in batch.column("range").to_pylist():
            options, range_, plan = pickle.loads(row)  # noqa: S301 - written by our source, as Spark pickles its tasks
            yield from arrow_rows(Access.kept(options), range_, plan)


def _batches(access: Access, range_: PlannedRange) -> Iterator[StoredBatch]:
    for part_range, replies in read_range(access, range_):
        if part_range.tier is Tier.LOST:
            _lost(access, part_range)
        for batches in replies:
            yield from batches


def _lost(access: Access, part_range: PlannedRange) -> None:
    options = access.options
    if options.fail_on_data_loss:
        planner = PartitionPlanner.of_range(access, part_range)
        raise lost(part_range.topic, part_range.partition, part_range.start, part_range.end, planner.tiers_left())
    _warn("pipeline_lost_offsets", part_range, offset=part_range.start, log_start=part_range.end)
    if options.archive_path:
        gap = {"wanted_offset": part_range.start, "log_start": part_range.end}
        Quarantine.open(options.archive_path).add_gaps([{**_place(options, part_range), **gap}])


def _warn(event: str, range_: PlannedRange, **fields: Any) -> None:
    import structlog  # with what it brings it takes longer than the rest of this module

    structlog.get_logger().warning(event, topic=range_.topic, partition=range_.partition, **fields)


def _place(options: TopicOptions, range_: PlannedRange) -> dict[str, Any]:
    return {
        "ts": int(time.time() * 1000), "org": options.org, "topic": range_.topic, "topic_id": range_.topic_id,
        "partition": range_.partition,
    }  # fmt: skip


def _quarantine(access: Access, range_: PlannedRange, corrupt: Sequence[CorruptBatch], plan: str) -> None:
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
    quarantine, place = Quarantine.open(options.archive_path), _place(options, range_)
    quarantine.add([{**place, **asdict(batch)} for batch in corrupt[: options.corrupt_limit + 1]], plan)
    count = quarantine.count(plan)
    _warn("pipeline_corrupt_batches", range_, offset=first.base_offset, count=len(corrupt), reason=first.reason)
    if max(count, len(corrupt)) > options.corrupt_limit:
        raise CorruptLimit(f"{count} corrupt batches, corruptLimit is {options.corrupt_limit}: {reported_text}")
