"""What one cold read of about 1 MiB takes: a Fetch's round trip, the reader of segments alone, and a plain `pread`.

`pread` and the reader take turns on the same row groups, so that neighbours slow them alike.
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Final

from pyarrow import parquet

from bench.kafka_wire import FETCH, MeasureFailed, Wire, decode, encode, request
from bench.processes import percentiles
from tidegate.records.segment_file import SegmentFile, open_archive
from tidegate.records.segments import Segment
from tidegate_pipeline.archive.index import ArchiveIndex
from tidegate_pipeline.redis_access import connect
from tidegate_pipeline.topics import read_topics

_FETCH_BYTES: Final = 1 << 20
_KEPT: Final = 32


@dataclass(frozen=True, slots=True)
class Place:
    """One row group: where in which file, and what it holds."""

    partition: int
    path: str
    index: int
    base_offset: int
    start: int
    size: int


def places(redis_url: str, root: str, topic: str) -> list[Place]:
    """Every row group of a topic that only the archive holds."""
    client = connect(redis_url)
    found = read_topics(client, "tidegate", "default")[topic]
    listed = []
    for partition in range(found.partition_count):
        keys = found.keys("tidegate", partition)
        local_start = int(client.hget(keys.meta, "local_start") or 0)
        for segment in ArchiveIndex(client, keys).all_segments():
            listed += [one for one in _row_groups(partition, root, segment) if one[1] < local_start]
    client.close()
    return [place for place, _ in listed]


def _row_groups(partition: int, root: str, segment: Segment) -> list[tuple[Place, int]]:
    path = f"{root}/{segment.file}"
    footer, found = parquet.read_metadata(path), []
    filesystem, _ = open_archive(root)
    for index, group in enumerate(SegmentFile(filesystem, path).row_groups):
        columns = [footer.row_group(index).column(at) for at in range(footer.num_columns)]
        start = min(column.data_page_offset for column in columns)
        size = sum(column.total_compressed_size for column in columns)
        found.append((Place(partition, path, index, group.base_offset, start, size), group.last_offset))
    return found


async def fetches(address: str, topic: str, listed: list[Place], root: str, count: int) -> dict[str, Any]:
    """p50 and p99, ms, of `count` reads in random order, and the ratio of the reader to `pread`."""
    chance = random.Random(1)
    chosen = chance.sample(listed, min(count, len(listed)))
    filesystem, _ = open_archive(root)
    files = {path: SegmentFile(filesystem, path) for path in {one.path for one in chosen}}
    descriptors = {path: os.open(path, os.O_RDONLY) for path in files}
    wire = await Wire.connect(address)
    for path in files:  # footers are kept from here on
        first = next(one for one in listed if one.path == path)
        await _fetch(wire, topic, first)
    seconds: dict[str, list[float]] = defaultdict(list)
    kept: list[Any] = []  # as a broker keeps what it read
    ratios: list[float] = []
    for number, one in enumerate([*chosen[:_KEPT], *chosen]):
        if number == _KEPT:  # from here on memory is used again, as in a broker that has run for a while
            seconds.clear()
            ratios.clear()
        began = time.perf_counter()
        kept.append(os.pread(descriptors[one.path], one.size, one.start))
        seconds["pread"].append(time.perf_counter() - began)
        began = time.perf_counter()
        kept.append(files[one.path].read(one.index))
        seconds["reader"].append(time.perf_counter() - began)
        ratios.append(seconds["reader"][-1] / seconds["pread"][-1])
        del kept[: -2 * _KEPT]
    sizes: list[int] = []
    for one in chosen:
        for name in ("fetch", "fetch again"):
            began = time.perf_counter()
            sizes.append(await _fetch(wire, topic, one))
            seconds[name].append(time.perf_counter() - began)
    wire.close()
    for descriptor in descriptors.values():
        os.close(descriptor)
    reported: dict[str, Any] = {name: percentiles(values) for name, values in seconds.items()}
    return {
        "reads": len(chosen),
        "mean_fetch_bytes": sum(sizes) // len(sizes),
        "ratio_p50": round(reported["reader"]["p50_ms"] / reported["pread"]["p50_ms"], 2),
        "ratio_each_p50": round(sorted(ratios)[len(ratios) // 2], 2),
        **reported,
    }


async def _fetch(wire: Wire, topic: str, place: Place) -> int:
    """Fetch from where a row group begins; the bytes of records that came. Raises MeasureFailed."""
    part = {
        "partition": place.partition, "fetch_offset": place.base_offset, "partition_max_bytes": _FETCH_BYTES,
    }  # fmt: skip
    frame = encode(request(
        FETCH, max_wait=5_000, min_bytes=1, max_bytes=_FETCH_BYTES, topics=[{"topic": topic, "partitions": [part]}],
        forgotten_topics_data=[],
    ))  # fmt: skip
    payload = await wire.send(frame)
    if len(payload) < _FETCH_BYTES // 8:
        answer = decode(FETCH, payload).responses[0].partitions[0]
        if not answer.records:
            raise MeasureFailed(f"Fetch at {place.base_offset}: {answer.error_code.name}, no records")
    return len(payload)
