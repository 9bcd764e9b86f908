"""Decodes a Produce request, v0-13, without copying its records: they are memoryviews of the frame.

v0-2 have no transactional id; v0-8 have classic lengths; v9+ compact lengths and tagged fields; v13 names topics by
id. Records are length-prefixed bytes, null as -1 (compact: 0).
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct, error
from typing import Final

from tidegate.protocol.primitives import DecodeError, read_uvarint, skip_tags

_INT16: Final = Struct(">h").unpack_from
_INT32: Final = Struct(">i").unpack_from
_ACKS_TIMEOUT: Final = Struct(">hi").unpack_from
_INDEX_SIZE: Final = Struct(">ii").unpack_from
_TOPIC_ID_BYTES: Final = 16
PARTITIONS_MAX: Final = 1 << 15
"""Maximum topics and partitions of one request; as single-record batches they are 2 MB, twice a producer's limit."""
_TRANSACTIONAL_ID_FROM: Final = 3
_FLEXIBLE_FROM: Final = 9
_TOPIC_IDS_FROM: Final = 13

Partition = tuple[int, memoryview | None]
"""Partition index and its records as received."""


@dataclass(slots=True)
class ProduceRequest:
    """A Produce request. A topic is its name; in v13 the 16 bytes of its id. `timeout_ms` as the client sent it."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[str | bytes, list[Partition]]]


def read_produce(version: int, body: memoryview) -> ProduceRequest:
    """Decode a whole body. Raises DecodeError."""
    try:
        return _read_flexible(version, body) if version >= _FLEXIBLE_FROM else _read_classic(version, body)
    except (error, IndexError, UnicodeDecodeError) as failure:
        raise DecodeError(f"a Produce request that is cut or malformed: {failure}") from failure


def _left(left: int, count: int) -> int:
    """The remaining element budget of the request after an array of `count`. Raises DecodeError."""
    if count > left:
        raise DecodeError(f"more than {PARTITIONS_MAX} topics and partitions")
    return left - max(count, 0)


def _end(body: memoryview, position: int, size: int) -> int:
    end = position + size
    if end > len(body):
        raise DecodeError("a field that ends beyond its frame")
    return end


def _read_classic(version: int, body: memoryview) -> ProduceRequest:
    transactional_id, position = None, 0
    if version >= _TRANSACTIONAL_ID_FROM:
        (size,) = _INT16(body, 0)
        position = 2
        if size >= 0:
            position = _end(body, 2, size)
            transactional_id = str(body[2:position], "utf-8")
    acks, timeout_ms = _ACKS_TIMEOUT(body, position)
    (topic_count,) = _INT32(body, position + 6)
    left = _left(PARTITIONS_MAX, topic_count)
    position += 10
    topics: list[tuple[str | bytes, list[Partition]]] = []
    for _ in range(topic_count):
        (size,) = _INT16(body, position)
        end = _end(body, position + 2, max(size, 0))
        name = str(body[position + 2 : end], "utf-8")
        (partition_count,) = _INT32(body, end)
        left = _left(left, partition_count)
        position = end + 4
        partitions: list[Partition] = []
        for _ in range(partition_count):
            index, size = _INDEX_SIZE(body, position)
            position += 8
            if size < 0:
                partitions.append((index, None))
            else:
                end = _end(body, position, size)
                partitions.append((index, body[position:end]))
                position = end
        topics.append((name, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _read_flexible(version: int, body: memoryview) -> ProduceRequest:
    limit = len(body)
    size, position = read_uvarint(body, 0, limit)
    transactional_id = None
    if size:
        end = _end(body, position, size - 1)
        transactional_id, position = str(body[position:end], "utf-8"), end
    acks, timeout_ms = _ACKS_TIMEOUT(body, position)
    topic_count, position = read_uvarint(body, position + 6, limit)
    left = _left(PARTITIONS_MAX, topic_count - 1)
    topics: list[tuple[str | bytes, list[Partition]]] = []
    for _ in range(topic_count - 1):
        topic: str | bytes
        if version >= _TOPIC_IDS_FROM:
            end = _end(body, position, _TOPIC_ID_BYTES)
            topic = bytes(body[position:end])
        else:
            size, position = read_uvarint(body, position, limit)
            end = _end(body, position, max(size - 1, 0))
            topic = str(body[position:end], "utf-8")
        partition_count, position = read_uvarint(body, end, limit)
        left = _left(left, partition_count - 1)
        partitions: list[Partition] = []
        for _ in range(partition_count - 1):
            (index,) = _INT32(body, position)
            size, position = read_uvarint(body, position + 4, limit)
            if size:
                end = _end(body, position, size - 1)
                partitions.append((index, body[position:end]))
                position = end
            else:
                partitions.append((index, None))
            if body[position]:
                left = _left(left, body[position])
                position = skip_tags(body, position, limit)
            else:
                position += 1
        position = skip_tags(body, position, limit)
        topics.append((topic, partitions))
    position = skip_tags(body, position, limit)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)
