"""Segments for tests of readers, written by pyarrow alone."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from tests.support.logs import TOPIC, batch_bytes, read_all
from tidegate.log.entries import Buffer
from tidegate.log.partition import PartitionLog
from tidegate.records.batch import Batch
from tidegate.records.segments import (
    COLUMNS,
    FORMAT_VERSION,
    METADATA_KEY,
    STATISTICS,
    Segment,
    new_file_name,
    partition_folder,
)

SCHEMA = pa.schema([pa.field(name, getattr(pa, kind)(), nullable=False) for name, kind in COLUMNS])


def placed(batch: Buffer, base_offset: int, leader_epoch: int = 0) -> bytes:
    """A batch as it is served: base offset and leader epoch in place."""
    length = bytes(batch[8:12])
    return struct.pack(">q", base_offset) + length + struct.pack(">i", leader_epoch) + bytes(batch[16:])


def batches_from(base_offset: int, counts: Sequence[int], **fields: Any) -> list[bytes]:
    """Placed batches that follow each other, of so many records each."""
    batches = []
    for count in counts:
        batches.append(placed(batch_bytes(count, **fields), base_offset))
        base_offset += count
    return batches


def write_segment(
    root: Path,
    batches: Sequence[bytes],
    *,
    topic: Any = TOPIC,
    index: int = 0,
    from_offset: int | None = None,
    offsets: tuple[int, int] | None = None,
    row_group_batches: int = 4,
    compression: str = "none",
    version: int = FORMAT_VERSION,
) -> Segment:
    """A file with these placed batches below `root`, and what the index says of it.

    `offsets` is the range that it stands for, end exclusive, where some batches are missing, or all.
    """
    heads = [Batch.parse(batch) for batch in batches]
    if offsets is None:
        start = heads[0].base_offset if from_offset is None else from_offset
        offsets = start, heads[-1].base_offset + heads[-1].last_offset_delta + 1
    start, end = offsets
    expected, first = start, heads[0].base_offset if heads else start
    rows = []
    for head, batch in zip(heads, batches, strict=True):
        last_offset = head.base_offset + head.last_offset_delta
        values = (
            expected, head.base_offset, last_offset, head.record_count, head.max_timestamp, head.attributes,
            head.producer_id, head.producer_epoch, head.base_sequence, head.crc, batch,
        )  # fmt: skip
        rows.append(dict(zip(SCHEMA.names, values, strict=True)))
        expected = last_offset + 1
    folder = partition_folder(topic.org, topic.name, topic.topic_hex, index)
    file = f"{folder}/{new_file_name(first, end - 1)}"
    segment = Segment(
        start, first, end - 1, sum(head.record_count for head in heads),
        sum(map(len, batches)), max((head.max_timestamp for head in heads), default=-1), file,
    )  # fmt: skip
    fields = {"org": topic.org, "topic": topic.name, "topic_id": topic.topic_hex, "partition": index}
    metadata = {METADATA_KEY: json.dumps({**fields, "version": version})}
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    with parquet.ParquetWriter(
        path, SCHEMA.with_metadata(metadata), compression=compression, use_dictionary=False,
        write_statistics=list(STATISTICS),
    ) as writer:  # fmt: skip
        for at in range(0, len(rows), row_group_batches):
            writer.write_table(pa.Table.from_pylist(rows[at : at + row_group_batches], schema=writer.schema))
    return segment


async def publish(log: PartitionLog, *segments: Segment, start: int = 0) -> None:
    """Name segments in a partition's index; the archive then ends where the last one does."""
    keys, store = log.keys, log.store
    for segment in segments:
        await store.command("ZADD", keys.segments, segment.last_offset, segment.to_json())
    await store.command("HSET", keys.archive, "start", start, "end", max(segment.end_offset for segment in segments))


async def archive(
    log: PartitionLog, root: Path, end: int, *, segment_batches: int = 8, row_group_batches: int = 4, topic: Any = TOPIC
) -> list[Segment]:
    """Copy the batches below `end` into segments, and publish them."""
    batches = [placed(item.buffer, item.base_offset) for item in await read_all(log) if item.base_offset < end]
    segments = [
        write_segment(
            root, batches[at : at + segment_batches], row_group_batches=row_group_batches, topic=topic, index=log.index
        )
        for at in range(0, len(batches), segment_batches)
    ]
    await publish(log, *segments)
    return segments
