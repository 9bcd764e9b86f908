"""Encodes the response versions of Kafka 0.8-0.10 that kio does not define (see `old_requests.py`).

Clients of these versions do not know every error code of today. The writers send the code that Kafka sends them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidegate.protocol import group_writers
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.primitives import INT32, INT64, NAMES, NO_THROTTLE

_PRODUCED: Final = struct.Struct(">ihq").pack
_PRODUCED_TIME: Final = struct.Struct(">ihqq").pack
_FETCHED: Final = struct.Struct(">ihqi").pack
_LISTED: Final = struct.Struct(">ihi").pack

_NOT_LEADER: Final = ErrorCode.not_leader_or_follower.value
OLD_CODES: Final[dict[int, int]] = {
    ErrorCode.kafka_storage_error.value: _NOT_LEADER,
    ErrorCode.invalid_record.value: ErrorCode.corrupt_message.value,
    ErrorCode.fenced_leader_epoch.value: _NOT_LEADER,
    ErrorCode.unknown_leader_epoch.value: _NOT_LEADER,
    ErrorCode.offset_not_available.value: ErrorCode.leader_not_available.value,
}
"""Error code -> the one that clients of Kafka 0.8-0.10 know and retry on: KIP-112, KIP-207, KIP-320, KIP-467."""

ProducedPartition = tuple[Any, ...]
"""Index, error code, base offset, log append time in ms; the rest is not encoded."""
FetchedPartition = tuple[int, int, int, bytes]
"""Index, error code, high watermark, message set."""
ListedPartition = tuple[int, int, Sequence[int]]
"""Index, error code, offsets."""


def old_code(code: int) -> int:
    """The error code as clients of Kafka 0.8-0.10 know it."""
    return OLD_CODES.get(code, code)


def _topics(topics: Sequence[tuple[str | bytes, Sequence[Any]]], partition: Callable[[Any], bytes]) -> list[bytes]:
    out = [INT32(len(topics))]
    for topic, partitions in topics:
        out.append(NAMES[False][topic if isinstance(topic, str) else ""])
        out.append(INT32(len(partitions)))
        out += [partition(one) for one in partitions]
    return out


def produce(version: int, topics: Sequence[tuple[str | bytes, Sequence[ProducedPartition]]]) -> bytes:
    """A Produce response, v0-2. v1: throttle time, at the end. v2: log append time."""

    def partition(one: ProducedPartition) -> bytes:
        index, code, base_offset, append_time_ms = one[:4]
        if version >= 2:
            return _PRODUCED_TIME(index, old_code(code), base_offset, append_time_ms)
        return _PRODUCED(index, old_code(code), base_offset)

    return b"".join([*_topics(topics, partition), NO_THROTTLE if version >= 1 else b""])


def fetch(version: int, topics: Sequence[tuple[str | bytes, Sequence[FetchedPartition]]]) -> bytes:
    """A Fetch response, v0-3. v1: throttle time, at the start."""

    def partition(one: FetchedPartition) -> bytes:
        index, code, high_watermark, message_set = one
        return _FETCHED(index, old_code(code), high_watermark, len(message_set)) + message_set

    return b"".join([NO_THROTTLE if version >= 1 else b"", *_topics(topics, partition)])


def list_offsets(topics: Sequence[tuple[str, Sequence[ListedPartition]]]) -> bytes:
    """A ListOffsets response, v0."""

    def partition(one: ListedPartition) -> bytes:
        index, code, offsets = one
        return _LISTED(index, old_code(code), len(offsets)) + b"".join(map(INT64, offsets))

    return b"".join(_topics(topics, partition))


# -- from the newest response: errors of whole requests


def _encode_produce(version: int, response: Any) -> bytes:
    def partitions(topic: Any) -> list[ProducedPartition]:
        return [(one.index, one.error_code.value, -1, -1) for one in topic.partition_responses]

    return produce(version, [(topic.name, partitions(topic)) for topic in response.responses])


def _encode_fetch(version: int, response: Any) -> bytes:
    def partitions(topic: Any) -> list[FetchedPartition]:
        return [(one.partition_index, one.error_code.value, -1, b"") for one in topic.partitions]

    return fetch(version, [(topic.topic, partitions(topic)) for topic in response.responses])


def _encode_list_offsets(version: int, response: Any) -> bytes:
    def partitions(topic: Any) -> list[ListedPartition]:
        return [(one.partition_index, one.error_code.value, ()) for one in topic.partitions]

    return list_offsets([(topic.name, partitions(topic)) for topic in response.topics])


def _encode_offset_commit(version: int, response: Any) -> bytes:
    def partitions(topic: Any) -> list[tuple[int, int]]:
        return [(one.partition_index, one.error_code.value) for one in topic.partitions]

    return group_writers.offset_commit(version, [(topic.name, partitions(topic)) for topic in response.topics])


def _encode_offset_fetch(version: int, response: Any) -> bytes:
    group = response.groups[0]

    def partitions(topic: Any) -> list[tuple[int, int, int, str, int]]:
        return [(one.partition_index, -1, -1, "", one.error_code.value) for one in topic.partitions]

    topics = [(topic.name, partitions(topic)) for topic in group.topics]
    return group_writers.offset_fetch(version, [(group.group_id, group.error_code.value, topics)])


_ENCODERS: Final[dict[int, Callable[[int, Any], bytes]]] = {
    ApiKey.PRODUCE: _encode_produce,
    ApiKey.FETCH: _encode_fetch,
    ApiKey.LIST_OFFSETS: _encode_list_offsets,
    ApiKey.OFFSET_COMMIT: _encode_offset_commit,
    ApiKey.OFFSET_FETCH: _encode_offset_fetch,
}


def encoder(api_key: int, version: int) -> Callable[[Any], bytes]:
    """The encoder of error responses of one of the versions in `versions.OLD_VERSIONS`."""
    encode = _ENCODERS[api_key]
    return lambda response: encode(version, response)
