"""Encoders of Produce, Fetch and ApiVersions responses."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate.protocol.primitives import (
    INT16,
    INT32,
    INT64,
    NAMES,
    NO_TAGS,
    NO_THROTTLE,
    compact_string,
    length,
    string,
    uvarint,
)

_API: Final = struct.Struct(">hhh").pack
_API_TAGS: Final = struct.Struct(">hhhx").pack
_FEATURE: Final = struct.Struct(">hhx").pack
_PRODUCED: Final = struct.Struct(">ihqq").pack
_PRODUCED_START: Final = struct.Struct(">ihqqq").pack
_FETCHED: Final = struct.Struct(">ihqq").pack
_FETCHED_START: Final = struct.Struct(">ihqqq").pack
_FETCH_HEAD: Final = struct.Struct(">xxxxhi").pack
_SESSION_AT: Final = 6
_SESSION_END: Final = 10
_ABORTED: Final = struct.Struct(">qq").pack
_ABORTED_TAGS: Final = struct.Struct(">qqx").pack
_DIVERGING: Final = struct.Struct(">BBiqB").pack
_LEADER: Final = struct.Struct(">BBiiB").pack
_NODE_ID: Final = struct.Struct(">i").pack

INLINE_BYTES_MAX: Final = 4096
"""Records up to this many bytes are copied into the response; larger ones are sent without a copy."""

Body = bytes | bytearray | memoryview
RecordError = tuple[int, str | None]
"""Index in the batch, message."""
ProducedPartition = tuple[int, int, int, int, int, Sequence[RecordError], str | None]
"""Index, error code, base offset, log append time in ms, log start offset, record errors, error message."""


def produce(version: int, topics: Sequence[tuple[str | bytes, Sequence[ProducedPartition]]]) -> bytes:
    """A Produce response, v3-13. A topic is its name; in v13 the 16 bytes of its id."""
    flexible = version >= 9
    out = [length(len(topics), flexible)]
    for topic, partitions in topics:
        out.append(topic if isinstance(topic, bytes) else NAMES[flexible][topic])
        out.append(length(len(partitions), flexible))
        for index, error_code, base_offset, append_time_ms, log_start_offset, record_errors, message in partitions:
            if version < 5:
                out.append(_PRODUCED(index, error_code, base_offset, append_time_ms))
                continue
            out.append(_PRODUCED_START(index, error_code, base_offset, append_time_ms, log_start_offset))
            if version < 8:
                continue
            out.append(length(len(record_errors), flexible))
            for batch_index, record_message in record_errors:
                out.append(INT32(batch_index))
                out.append(string(record_message, flexible))
                if flexible:
                    out.append(NO_TAGS)
            out.append(string(message, flexible))
            if flexible:
                out.append(NO_TAGS)
        if flexible:
            out.append(NO_TAGS)
    out.append(NO_THROTTLE)
    if flexible:
        out.append(NO_TAGS)
    return b"".join(out)


@dataclass(slots=True)
class FetchPartition:
    """One partition of a Fetch response. `size` is the sum of `buffers`, bytes."""

    index: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: list[tuple[int, int]] | None = None
    """(producer id, first offset) of aborted transactions; None for read_uncommitted."""
    buffers: Sequence[Body] = field(default_factory=list)
    size: int = 0
    diverging: tuple[int, int] | None = None
    """Epoch and its end offset where the client's log diverges (v12+)."""
    leader: tuple[int, int] | None = None
    """Node id and epoch of the leader, of an error about its epoch (v12+)."""


Endpoint = tuple[int, str, int, str | None]
"""Node id, host, port and rack of a broker."""


def fetch(
    version: int,
    error_code: int,
    session_id: int,
    topics: Sequence[tuple[str | bytes, Sequence[FetchPartition]]],
    endpoints: Sequence[Endpoint] = (),
) -> list[Body]:
    """A Fetch response, v4-18, as buffers in order; records above `INLINE_BYTES_MAX` are not copied.

    A topic is its name; from v13 on the 16 bytes of its id. Error code and session id are encoded from v7 on,
    `endpoints` of the leaders that partitions name from v16 on (KIP-951).
    """
    flexible = version >= 12
    out: list[Body] = []
    head = bytearray(_FETCH_HEAD(error_code, session_id) if version >= 7 else NO_THROTTLE)
    head += length(len(topics), flexible)
    for topic, partitions in topics:
        head += topic if isinstance(topic, bytes) else NAMES[flexible][topic]
        head += length(len(partitions), flexible)
        for partition in partitions:
            _fetched_fields(version, partition, head)
            if partition.size <= INLINE_BYTES_MAX:
                for buffer in partition.buffers:
                    head += buffer
            else:
                out.append(head)
                out += partition.buffers
                head = bytearray()
            if flexible:
                head += NO_TAGS if partition.diverging is partition.leader is None else _partition_tags(partition)
        if flexible:
            head += NO_TAGS
    if flexible:
        head += b"\x01" + _tagged(0, _endpoints(endpoints)) if endpoints and version >= 16 else NO_TAGS
    if head:
        out.append(head)
    return out


class SharedFetch:
    """A Fetch response for several sessions, encoded once.

    Only throttle time, error code and session id precede the topics, so the responses of two sessions differ in the
    four bytes of the session id alone. The bytes live as long as the replies that contain them; records above
    `INLINE_BYTES_MAX` are the buffers of the partitions.
    """

    __slots__ = ("_first", "_rest", "body")

    def __init__(self, version: int, topics: Sequence[tuple[str | bytes, Sequence[FetchPartition]]]) -> None:
        first, *rest = fetch(version, 0, 0, topics)
        self._first = bytes(first)
        self._rest = rest
        self.body: bytes | Sequence[Body] = [self._first, *rest] if rest else self._first
        """The response without a session."""

    def in_session(self, session_id: int) -> bytes | Sequence[Body]:
        """The response in a fetch session; v7 and later."""
        first = self._first[:_SESSION_AT] + INT32(session_id) + self._first[_SESSION_END:]
        return [first, *self._rest] if self._rest else first


def _partition_tags(partition: FetchPartition) -> bytes:
    """The tagged fields of a partition that names an epoch or a leader."""
    tags = []
    if partition.diverging is not None:
        tags.append(_DIVERGING(0, 13, *partition.diverging, 0))
    if partition.leader is not None:
        tags.append(_LEADER(1, 9, *partition.leader, 0))
    return b"".join([uvarint(len(tags)), *tags])


def _endpoints(endpoints: Sequence[Endpoint]) -> bytes:
    packed = [
        _NODE_ID(node_id) + compact_string(host) + _NODE_ID(port) + compact_string(rack) + NO_TAGS
        for node_id, host, port, rack in endpoints
    ]
    return b"".join([length(len(endpoints), True), *packed])


def _fetched_fields(version: int, partition: FetchPartition, head: bytearray) -> None:
    """All fields of a partition up to and including the length of its records."""
    flexible = version >= 12
    if version >= 5:
        head += _FETCHED_START(
            partition.index,
            partition.error_code,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log_start_offset,
        )
    else:
        head += _FETCHED(partition.index, partition.error_code, partition.high_watermark, partition.last_stable_offset)
    aborted = partition.aborted
    if aborted is None:
        head += length(-1, flexible)
    else:
        head += length(len(aborted), flexible)
        pack = _ABORTED_TAGS if flexible else _ABORTED
        for producer_id, first_offset in aborted:
            head += pack(producer_id, first_offset)
    if version >= 11:
        head += b"\xff\xff\xff\xff"  # preferred_read_replica: none
    head += length(partition.size, flexible)


Feature = tuple[str, int, int]


def api_versions(
    version: int,
    error_code: int,
    apis: Sequence[tuple[int, int, int]],
    supported_features: Sequence[Feature] = (),
    finalized_features: Sequence[Feature] = (),
    finalized_features_epoch: int = -1,
) -> bytes:
    """An ApiVersions response, v0-5, of (API key, first version, last version).

    Supported features: (name, min version, max version); those with min version 0 are encoded from v4 on (older clients
    cannot decode them). Finalized features: (name, max level, min level).
    """
    if version < 3:
        out = [INT16(error_code), INT32(len(apis)), *(_API(*api) for api in apis)]
        if version >= 1:
            out.append(NO_THROTTLE)
        return b"".join(out)
    supported = [feature for feature in supported_features if version >= 4 or feature[1] > 0]
    tags = []
    if supported:
        tags.append(_tagged(0, _features(supported)))
    if finalized_features_epoch != -1:
        tags.append(_tagged(1, INT64(finalized_features_epoch)))
    if finalized_features:
        tags.append(_tagged(2, _features(finalized_features)))
    out = [INT16(error_code), length(len(apis), True), *(_API_TAGS(*api) for api in apis)]
    return b"".join([*out, NO_THROTTLE, uvarint(len(tags)), *tags])


def _features(features: Sequence[Feature]) -> bytes:
    packed = [compact_string(feature) + _FEATURE(first, second) for feature, first, second in features]
    return b"".join([length(len(features), True), *packed])


def _tagged(tag: int, value: bytes) -> bytes:
    return uvarint(tag) + uvarint(len(value)) + value
