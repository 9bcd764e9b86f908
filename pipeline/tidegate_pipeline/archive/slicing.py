"""A task's rows -> the ranges that become segments. Memory: a segment's batches, as the task received them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyarrow import compute

from tidegate_pipeline.archive.place import Place


@dataclass(slots=True)
class SegmentSlice:
    """Offsets `from_offset` to `end_offset` (exclusive) of a partition, and the rows that hold them."""

    place: Place
    from_offset: int
    end_offset: int
    size: int = 0
    batches: list[pa.RecordBatch] = field(default_factory=list)

    @property
    def rows(self) -> pa.Table:
        """Its batches; `from_offset` of each is the end of the one before, also where offsets between have no batch."""
        table = pa.Table.from_batches(self.batches)
        if compute.min(table["records"]).as_py() == 0:
            table = table.filter(compute.field("records") > 0)
        ends = compute.add(table["last_offset"], 1).to_pylist()
        starts = pa.array([self.from_offset, *ends][: len(ends)], pa.int64())
        return table.set_column(table.schema.get_field_index("from_offset"), "from_offset", starts)


def slice_segments(batches: Iterable[pa.RecordBatch], org: str, segment_bytes: int) -> Iterator[SegmentSlice]:
    """Cut rows of `RAW_RANGE_ARROW`, in order of offset for each partition, after `segment_bytes` and between ranges.

    A task may hold several partitions, and several ranges of one. What is cut is one range without a hole.
    """
    current: SegmentSlice | None = None
    for batch in batches:
        start = 0
        for at, (topic, topic_id, partition, from_offset, last_offset, size) in enumerate(_ranges(batch)):
            place = Place(org, topic, topic_id, partition)
            if current is not None and (
                current.size >= segment_bytes or current.end_offset != from_offset or current.place != place
            ):
                current.batches.append(batch.slice(start, at - start))
                yield current
                current, start = None, at
            if current is None:
                current = SegmentSlice(place, from_offset, last_offset + 1)
            current.end_offset = last_offset + 1
            current.size += size
        if current is not None:
            current.batches.append(batch.slice(start))
    if current is not None:
        yield current


def _ranges(batch: pa.RecordBatch) -> Iterator[tuple[str, str, int, int, int, int]]:
    names = ("topic", "topic_id", "partition", "from_offset", "last_offset")
    columns = [batch.column(name).to_pylist() for name in names]
    return zip(*columns, compute.binary_length(batch.column("batch")).to_pylist(), strict=True)
