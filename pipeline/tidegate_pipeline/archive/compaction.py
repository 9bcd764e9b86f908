"""Small segments -> large ones: a new file, then one step in the index; the old files are left to gc.

Readers that hold the old names continue until then. Neighbours are merged up to `segment_bytes`, and only into a
segment at least twice as large as the largest of them: a byte is written again a few times at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Final

import pyarrow as pa

from tidegate.records.segment_file import SegmentFile
from tidegate.records.segments import Segment
from tidegate_pipeline.archive.index import ArchiveIndex
from tidegate_pipeline.archive.place import Place
from tidegate_pipeline.archive.segment_writer import SEGMENT_ARROW, ArchiveFolder, Shape, write_segment
from tidegate_pipeline.archive.slicing import SegmentSlice
from tidegate_pipeline.errors import PipelineError

RUN_SEGMENTS_MAX: Final = 1_000
"""What one call of a script replaces."""


@dataclass(slots=True)
class Compacted:
    """What was merged; `given_up` counts runs that somebody else changed meanwhile."""

    segments_before: int = 0
    segments_after: int = 0
    bytes: int = 0
    given_up: int = 0

    def __iadd__(self, other: Compacted) -> Compacted:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self


def runs(segments: Iterable[Segment], segment_bytes: int) -> Iterator[list[Segment]]:
    """Neighbours that are worth merging."""
    run: list[Segment] = []
    filled = 0
    for segment in segments:
        is_large = 2 * segment.size > segment_bytes
        if is_large or filled + segment.size > segment_bytes or len(run) == RUN_SEGMENTS_MAX:
            yield from _worth(run)
            run, filled = [], 0
        if not is_large:
            run.append(segment)
            filled += segment.size
    yield from _worth(run)


def _worth(run: list[Segment]) -> Iterator[list[Segment]]:
    if len(run) > 1 and sum(segment.size for segment in run) >= 2 * max(segment.size for segment in run):
        yield run


def compact(archive: ArchiveFolder, index: ArchiveIndex, place: Place, shape: Shape) -> Compacted:
    """Merge one partition's small segments. Raises SegmentUnreadable, PipelineError."""
    reported = Compacted()
    for run in runs(index.all_segments(), shape.segment_bytes):
        merged = _merge(archive, place, run, shape)
        if index.swap(merged, run):
            reported.segments_before += len(run)
            reported.segments_after += 1
            reported.bytes += merged.size
        else:
            reported.given_up += 1
    return reported


def _merge(archive: ArchiveFolder, place: Place, run: list[Segment], shape: Shape) -> Segment:
    segment_slice = SegmentSlice(
        place, run[0].from_offset, run[-1].end_offset, batches=[pa.RecordBatch.from_pylist([], SEGMENT_ARROW)]
    )
    for segment in run:
        file = SegmentFile(archive.filesystem, archive.path(segment.file))
        for at in range(len(file.row_groups)):
            segment_slice.batches += file.table(at).to_batches()
    merged = write_segment(archive, segment_slice, shape)
    for name in ("records", "size", "max_timestamp"):
        reported = [getattr(segment, name) for segment in run]
        if getattr(merged, name) != (max(reported) if name == "max_timestamp" else sum(reported)):
            raise PipelineError(f"{run[0].file} and what follows hold other {name} than the index says: run verify")
    return merged
