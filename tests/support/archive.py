"""A partition with an archive, for tests: keys, meta, segments without files, rows of batches."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidegate.records.batch import Batch
from tidegate.records.segment_file import SegmentFile
from tidegate.records.segments import Segment
from tidegate.store.keys import LogKeys
from tidegate_pipeline.archive.index import ArchiveIndex, Archiver, Publication
from tidegate_pipeline.archive.segment_writer import ArchiveFolder
from tidegate_pipeline.archive.sink import ArchiveSink, ArchiveWriter
from tidegate_pipeline.decode.schema import RAW_RANGE_ARROW, raw_schema
from tidegate_pipeline.redis_access import connect, replids

TOPIC_ID = "0" * 31 + "1"


def log_keys(topic: str = "orders", partition: int = 0, topic_id: str = TOPIC_ID) -> LogKeys:
    """The keys of a partition of organisation `default`."""
    return LogKeys.of("tidegate", "default", topic, partition, topic_id)


def make_log(client: Any, keys: LogKeys, log_start: int = 0) -> None:
    """The meta of a partition that is ready."""
    client.hset(keys.meta, mapping={"state": "ready", "log_start": log_start, "epochs": "0:0"})


def fill_log(client: Any, keys: LogKeys, batches: Sequence[bytes]) -> None:
    """The placed batches in the log, an entry each."""
    for batch in batches:
        base = int.from_bytes(batch[:8], "big")
        client.execute_command("XADD", keys.log, f"{base}-1", "w", "test:1", "b", batch)


def segment(from_offset: int, end_offset: int, name: str = "a", *, base_offset: int | None = None) -> Segment:
    """A segment without a file: a record an offset, 100 bytes each."""
    base = from_offset if base_offset is None else base_offset
    count = end_offset - base
    return Segment(from_offset, base, end_offset - 1, count, 100 * count, 1_000 + end_offset, f"{name}.parquet")


class PresentIndex(ArchiveIndex):
    """Publishes segments as read from the primaries that there are now."""

    def publish(
        self, archiver: Archiver, segments: Sequence[Segment], read_from: Collection[str] | None = None
    ) -> Publication:
        """Of `read_from`, or of the present primaries."""
        return super().publish(archiver, segments, replids(self._client) if read_from is None else read_from)


def raw_rows(
    parts: Sequence[bytes | tuple[int, int]],
    *,
    topic: str = "orders",
    partition: int = 0,
    topic_id: str = TOPIC_ID,
    from_offset: int | None = None,
) -> pa.RecordBatch:
    """What the raw source hands to the archive: placed batches, and (first, last) of offsets that have none."""
    rows: list[tuple[Any, ...]] = []
    expected = from_offset
    for part in parts:
        if isinstance(part, tuple):
            values: tuple[Any, ...] = (*part, *[0] * 8, b"")
        else:
            head = Batch.parse(part)
            values = (
                head.base_offset, head.next_offset - 1, head.record_count, head.base_timestamp, head.max_timestamp,
                head.attributes, head.producer_id, head.producer_epoch, head.base_sequence, head.crc, part,
            )  # fmt: skip
        rows.append((topic, partition, *values, topic_id, values[0] if expected is None else expected))
        expected = values[1] + 1
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, column.type) for values, column in zip(columns, RAW_RANGE_ARROW, strict=True)]
    return pa.record_batch(arrays, schema=RAW_RANGE_ARROW)


class Archive:
    """An archive of topic `orders` and the ways into it."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.client = connect(url)
        self.client.flushall()
        for partition in (0, 1):
            make_log(self.client, log_keys(partition=partition))

    def index(self, partition: int = 0) -> ArchiveIndex:
        """Of one partition."""
        return ArchiveIndex(self.client, log_keys(partition=partition))

    def writer(self, archiver: str = "1:a", **options: str) -> ArchiveWriter:
        """As an executor gets it."""
        given = {
            "redis.url": self.url,
            "path": str(self.folder),
            "archiver": archiver,
            "segmentBytes": "400",
            **options,
        }
        writer = ArchiveSink(given).streamWriter(raw_schema(include_range=True), False)
        copy: ArchiveWriter = pickle.loads(pickle.dumps(writer))
        return copy

    @property
    def root(self) -> ArchiveFolder:
        """Its folder, opened."""
        return ArchiveFolder.open(str(self.folder))

    def publish(self, batches: Sequence[bytes | tuple[int, int]], partition: int = 0, **options: str) -> None:
        """What one micro-batch of one task does."""
        writer = self.writer(**options)
        writer.commit([writer.write(iter([raw_rows(batches, partition=partition)]))], 0)

    def batches(self, partition: int = 0) -> list[bytes]:
        """What the index leads to, read back."""
        archive = ArchiveFolder.open(str(self.folder))
        files = [
            SegmentFile(archive.filesystem, archive.path(one.file)) for one in self.index(partition).all_segments()
        ]
        groups = [file.read(at) for file in files for at in range(len(file.row_groups))]
        return [bytes(group.batch(at)) for group in groups for at in range(len(group))]

    def files(self) -> int:
        """How many are there, published or not."""
        return len(list(self.folder.rglob("*.parquet")))
