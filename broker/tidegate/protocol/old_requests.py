"""Decodes the request versions of Kafka 0.8-0.10 that Kafka 4.0 removed and kio does not define.

The result has the fields of the newest version, as `shapes.py` gives to the other versions. Produce is decoded by
`produce_request.py`, which needs no copy of its records. Source: Kafka's "A Guide To The Kafka Protocol".

| API | versions | |
|---|---|---|
| Produce | 0-2 | no transactional id |
| Fetch | 0-2, 3 | v3: `max_bytes` of the response |
| ListOffsets | 0 | `max_num_offsets` instead of one offset |
| OffsetCommit | 0, 1 | v0: no member; v1: a timestamp for each partition |
| OffsetFetch | 0 | as v1 |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from struct import Struct, error
from typing import ClassVar, Final, TypeVar

from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.primitives import Buffer, DecodeError
from tidegate.protocol.produce_request import read_produce
from tidegate.protocol.schema_walk import ELEMENTS_MAX

T = TypeVar("T")

FETCH_MAX_BYTES: Final = 0x7FFF_FFFF
"""The response limit of Fetch v0-2, which have no such field."""
NO_TIMESTAMP: Final = -1
_MILLISECOND: Final = timedelta(milliseconds=1)
_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")


class _Reader:
    """A position in a body. Every method raises DecodeError or struct.error at the end of the frame."""

    __slots__ = ("_data", "_elements_left", "_end", "_position")

    def __init__(self, data: Buffer, start: int, end: int) -> None:
        self._data = memoryview(data)[:end]
        self._position = start
        self._end = end
        self._elements_left = ELEMENTS_MAX

    def _number(self, form: Struct) -> int:
        (value,) = form.unpack_from(self._data, self._position)
        self._position += form.size
        return int(value)

    def int16(self) -> int:
        return self._number(_INT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def nullable_string(self) -> str | None:
        size = self.int16()
        if size == -1:
            return None
        start = self._position
        self._position += size
        if size < 0 or self._position > self._end:
            raise DecodeError("a string that ends beyond its frame")
        return str(self._data[start : self._position], "utf-8")

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise DecodeError("null where the schema has none")
        return text

    def array(self, element: Callable[[_Reader], T]) -> tuple[T, ...]:
        count = self.int32()
        self._elements_left -= count
        if count < 0 or self._elements_left < 0:
            raise DecodeError(f"an array of {count} elements")
        return tuple(element(self) for _ in range(count))

    def finish(self) -> None:
        if self._position > self._end:
            raise DecodeError("ends too early")


# -- Produce: for error responses only


@dataclass(frozen=True, slots=True)
class PartitionIndex:
    """A partition of a Produce or OffsetFetch request."""

    index: int


@dataclass(frozen=True, slots=True)
class ProduceTopic:
    """A topic of a Produce request, without its records."""

    name: str
    partition_data: tuple[PartitionIndex, ...]


@dataclass(frozen=True, slots=True)
class ProduceRequest:
    """Produce v0-2."""

    __version__: ClassVar[int] = 3
    acks: int
    topic_data: tuple[ProduceTopic, ...]


def _produce(data: Buffer, start: int, end: int, version: int) -> ProduceRequest:
    request = read_produce(version, memoryview(data)[start:end])
    topics = [
        ProduceTopic(str(name), tuple(PartitionIndex(index) for index, _ in partitions))
        for name, partitions in request.topics
    ]
    return ProduceRequest(request.acks, tuple(topics))


# -- Fetch


@dataclass(frozen=True, slots=True)
class FetchPartition:
    """A partition to read."""

    partition: int
    fetch_offset: int
    partition_max_bytes: int
    current_leader_epoch: ClassVar[int] = -1
    last_fetched_epoch: ClassVar[int] = -1


@dataclass(frozen=True, slots=True)
class FetchTopic:
    """A topic to read."""

    topic: str
    partitions: tuple[FetchPartition, ...]


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Fetch v0-3."""

    __version__: ClassVar[int] = 3
    replica_id: int
    max_wait: timedelta
    min_bytes: int
    max_bytes: int
    topics: tuple[FetchTopic, ...]
    isolation_level: ClassVar[int] = 0
    session_id: ClassVar[int] = 0
    session_epoch: ClassVar[int] = -1


def _fetch(reader: _Reader, version: int) -> FetchRequest:
    replica_id, max_wait_ms, min_bytes = reader.int32(), reader.int32(), reader.int32()
    max_bytes = reader.int32() if version >= 3 else FETCH_MAX_BYTES
    topics = reader.array(_fetch_topic)
    return FetchRequest(replica_id, max_wait_ms * _MILLISECOND, min_bytes, max_bytes, topics)


def _fetch_topic(reader: _Reader) -> FetchTopic:
    return FetchTopic(reader.string(), reader.array(lambda one: FetchPartition(one.int32(), one.int64(), one.int32())))


# -- ListOffsets


@dataclass(frozen=True, slots=True)
class ListOffsetsPartition:
    """A partition whose positions are asked for. `timestamp` in ms, -1: latest, -2: earliest."""

    partition_index: int
    timestamp: int
    max_num_offsets: int
    current_leader_epoch: ClassVar[int] = -1


@dataclass(frozen=True, slots=True)
class ListOffsetsTopic:
    """A topic whose positions are asked for."""

    name: str
    partitions: tuple[ListOffsetsPartition, ...]


@dataclass(frozen=True, slots=True)
class ListOffsetsRequest:
    """ListOffsets v0."""

    replica_id: int
    topics: tuple[ListOffsetsTopic, ...]
    isolation_level: ClassVar[int] = 0


def _list_offsets(reader: _Reader, version: int) -> ListOffsetsRequest:
    return ListOffsetsRequest(reader.int32(), reader.array(_list_offsets_topic))


def _list_offsets_topic(reader: _Reader) -> ListOffsetsTopic:
    return ListOffsetsTopic(
        reader.string(), reader.array(lambda one: ListOffsetsPartition(one.int32(), one.int64(), one.int32()))
    )


# -- OffsetCommit


@dataclass(frozen=True, slots=True)
class CommitPartition:
    """A partition's commit. `commit_timestamp` in ms, -1: the time of arrival."""

    partition_index: int
    committed_offset: int
    commit_timestamp: int
    committed_metadata: str | None
    committed_leader_epoch: ClassVar[int] = -1


@dataclass(frozen=True, slots=True)
class CommitTopic:
    """A topic's commits."""

    name: str
    partitions: tuple[CommitPartition, ...]


@dataclass(frozen=True, slots=True)
class OffsetCommitRequest:
    """OffsetCommit v0-1. v0 has no member; it is a commit of a client that is in no group's generation."""

    group_id: str
    generation_id_or_member_epoch: int
    member_id: str
    topics: tuple[CommitTopic, ...]
    group_instance_id: ClassVar[str | None] = None
    retention_time: ClassVar[timedelta] = -_MILLISECOND


def _offset_commit(reader: _Reader, version: int) -> OffsetCommitRequest:
    group_id = reader.string()
    generation, member_id = (reader.int32(), reader.string()) if version >= 1 else (-1, "")

    def partition(one: _Reader) -> CommitPartition:
        index, offset = one.int32(), one.int64()
        timestamp = one.int64() if version >= 1 else NO_TIMESTAMP
        return CommitPartition(index, offset, timestamp, one.nullable_string())

    topics = reader.array(lambda one: CommitTopic(one.string(), one.array(partition)))
    return OffsetCommitRequest(group_id, generation, member_id, topics)


# -- OffsetFetch


@dataclass(frozen=True, slots=True)
class OffsetFetchTopic:
    """A topic whose commits are read."""

    name: str
    partition_indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OffsetFetchGroup:
    """A group whose commits are read."""

    group_id: str
    topics: tuple[OffsetFetchTopic, ...]
    member_id: ClassVar[str | None] = None
    member_epoch: ClassVar[int] = -1


@dataclass(frozen=True, slots=True)
class OffsetFetchRequest:
    """OffsetFetch v0."""

    groups: tuple[OffsetFetchGroup, ...]
    require_stable: ClassVar[bool] = False


def _offset_fetch(reader: _Reader, version: int) -> OffsetFetchRequest:
    group_id = reader.string()
    topics = reader.array(lambda one: OffsetFetchTopic(one.string(), one.array(_Reader.int32)))
    return OffsetFetchRequest((OffsetFetchGroup(group_id, topics),))


_READERS: Final[dict[int, Callable[[_Reader, int], object]]] = {
    ApiKey.FETCH: _fetch,
    ApiKey.LIST_OFFSETS: _list_offsets,
    ApiKey.OFFSET_COMMIT: _offset_commit,
    ApiKey.OFFSET_FETCH: _offset_fetch,
}


def decoder(api_key: int, version: int) -> Callable[[Buffer, int, int], object]:
    """The decoder of one of the versions in `versions.OLD_VERSIONS`; it raises DecodeError."""
    if api_key == ApiKey.PRODUCE:
        return lambda data, start, end: _produce(data, start, end, version)
    read = _READERS[api_key]

    def decode_body(data: Buffer, start: int, end: int) -> object:
        reader = _Reader(data, start, end)
        try:
            request = read(reader, version)
        except (error, UnicodeDecodeError, OverflowError) as failure:
            raise DecodeError(str(failure)) from failure
        reader.finish()
        return request

    return decode_body
