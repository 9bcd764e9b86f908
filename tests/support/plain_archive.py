"""A topic's archive made without Spark: the pipeline's own writer and index, fed from Redis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.support.segments import placed
from tidegate.log.entries import parse_entry
from tidegate.records.batch import Batch
from tidegate.records.segments import Segment
from tidegate_pipeline.archive.index import ArchiveIndex, Archiver, Outcome
from tidegate_pipeline.archive.place import Place
from tidegate_pipeline.archive.segment_writer import ArchiveFolder, Shape, write_segment
from tidegate_pipeline.archive.slicing import SegmentSlice
from tidegate_pipeline.decode.schema import RAW_RANGE_ARROW
from tidegate_pipeline.redis_access import connect, replids
from tidegate_pipeline.topics import Topic, read_topics

_READ = "return redis.call('XRANGE', KEYS[1], ARGV[1], '+')"  # as a command redis-py would make it a dict


def archive_topic(redis_url: str, name: str, root: Path | str, shape: Shape) -> dict[int, int]:
    """Copy what Redis holds of a topic behind its archive's end, and publish it; where each archive ends now."""
    client = connect(redis_url)
    topic = read_topics(client, "tidegate", "default")[name]
    ends = {}
    for partition in range(topic.partition_count):
        index = ArchiveIndex(client, topic.keys("tidegate", partition))
        read_from = replids(client)
        segments = _segments(client, topic, partition, index, root, shape)
        if segments:
            assert index.publish(Archiver(1, "plain"), segments, read_from).outcome is Outcome.ADDED
        ends[partition] = index.state().end
    client.close()
    return ends


def _segments(
    client: Any, topic: Topic, partition: int, index: ArchiveIndex, root: Path | str, shape: Shape
) -> list[Segment]:
    keys = topic.keys("tidegate", partition)
    place = Place(topic.org, topic.name, topic.topic_id, partition)
    start = max(index.state().end, 0)
    trims: list[SegmentSlice] = []
    for item in client.eval(_READ, 1, keys.log, f"{start}-0"):
        entry = parse_entry(item)
        for base, batch in zip((entry.base, *entry.ends), entry.batches, strict=False):
            head = Batch.parse(placed(batch, base))
            end = base + head.last_offset_delta + 1
            if not trims or trims[-1].size >= shape.segment_bytes:
                trims.append(SegmentSlice(place, start, start))
            trims[-1].batches.append(_row(topic, partition, head, start))
            trims[-1].end_offset, trims[-1].size = end, trims[-1].size + head.size
            start = end
    return [write_segment(ArchiveFolder.open(str(root)), cut, shape) for cut in trims]


def _row(topic: Topic, partition: int, head: Batch, from_offset: int) -> pa.RecordBatch:
    row = {
        "topic": topic.name, "partition": partition, "base_offset": head.base_offset,
        "last_offset": head.base_offset + head.last_offset_delta, "records": head.record_count,
        "first_timestamp": head.base_timestamp, "max_timestamp": head.max_timestamp, "attributes": head.attributes,
        "producer_id": head.producer_id, "producer_epoch": head.producer_epoch, "base_sequence": head.base_sequence,
        "crc": head.crc, "batch": bytes(head.buffer), "topic_id": topic.topic_id, "from_offset": from_offset,
    }  # fmt: skip
    return pa.RecordBatch.from_pylist([row], schema=RAW_RANGE_ARROW)
