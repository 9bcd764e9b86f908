"""Encoders of the group APIs: FindCoordinator, Heartbeat, OffsetCommit, OffsetFetch, JoinGroup, SyncGroup."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from itertools import starmap
from typing import Final
from uuid import UUID

from tidegate.protocol.primitives import INT16, INT32, NAMES, NO_TAGS, NO_THROTTLE, NULL, length, string, uvarint

_COMMITTED: Final = struct.Struct(">ih").pack
_COMMITTED_TAGS: Final = struct.Struct(">ihx").pack
_FETCHED: Final = struct.Struct(">iq").pack
_FETCHED_EPOCH: Final = struct.Struct(">iqi").pack

_NO_ID: Final = bytes(16)

TopicLabel = str | UUID | None
"""A topic's name, or its id."""
FetchedPartition = tuple[int, int, int, str | None, int]
"""Partition, offset, leader epoch, metadata, error code."""
JoinedMember = tuple[str, str | None, bytes]
"""Member id, instance id, metadata of the selected protocol."""
FetchedTopic = tuple[TopicLabel, Sequence[FetchedPartition]]
Coordinator = tuple[str, int, str, int, int, str | None]
"""Key, node id, host, port, error code, error message."""


def find_coordinator(version: int, coordinators: Sequence[Coordinator]) -> bytes:
    """A FindCoordinator response, v0-6. Before v4 only the first coordinator is encoded."""
    out = [NO_THROTTLE] if version >= 1 else []
    if version < 4:
        flexible = version >= 3
        _, node_id, host, port, error_code, message = coordinators[0]
        out.append(INT16(error_code))
        if version >= 1:
            out.append(string(message, flexible))
        out += (INT32(node_id), NAMES[flexible][host], INT32(port))
        if flexible:
            out.append(NO_TAGS)
        return b"".join(out)
    out.append(length(len(coordinators), True))
    for key, node_id, host, port, error_code, message in coordinators:
        out += (string(key, True), INT32(node_id), NAMES[True][host], INT32(port), INT16(error_code))
        out += (string(message, True), NO_TAGS)
    out.append(NO_TAGS)
    return b"".join(out)


@cache
def heartbeat(version: int, error_code: int) -> bytes:
    """A Heartbeat response, v0-4."""
    body = INT16(error_code)
    if version >= 1:
        body = NO_THROTTLE + body
    return body + NO_TAGS if version >= 4 else body


def topic_label(topic: TopicLabel, flexible: bool) -> bytes:
    """A topic in an offset response: its name, or its id."""
    if isinstance(topic, str):
        return NAMES[flexible][topic]
    return _NO_ID if topic is None else topic.bytes


def offset_commit(version: int, topics: Sequence[tuple[TopicLabel, Sequence[tuple[int, int]]]]) -> bytes:
    """An OffsetCommit response, v0-10, of topic -> (partition, error code). v10 has topic ids, before names."""
    flexible = version >= 8
    pack = _COMMITTED_TAGS if flexible else _COMMITTED
    out = [NO_THROTTLE if version >= 3 else b"", length(len(topics), flexible)]
    for topic, partitions in topics:
        out.append(topic_label(topic, flexible))
        out.append(length(len(partitions), flexible))
        out += starmap(pack, partitions)
        if flexible:
            out.append(NO_TAGS)
    if flexible:
        out.append(NO_TAGS)
    return b"".join(out)


def offset_fetch(version: int, groups: Sequence[tuple[str, int, Sequence[FetchedTopic]]]) -> bytes:
    """An OffsetFetch response, v0-10, of (group id, error code, topics). Before v8 only the first group is encoded."""
    return b"".join(fetched_groups(version, [fetched_group(version, *group) for group in groups]))


def fetched_groups(version: int, groups: Sequence[bytes]) -> list[bytes]:
    """An OffsetFetch response of encoded groups; before v8 of the first one."""
    out = [NO_THROTTLE] if version >= 3 else []
    if version < 8:
        out.append(groups[0])
    else:
        out.append(length(len(groups), True))
        out += groups
    if version >= 6:
        out.append(NO_TAGS)
    return out


def fetched_group(version: int, group_id: str, error_code: int, topics: Sequence[FetchedTopic]) -> bytes:
    """One group of an OffsetFetch response."""
    out = [string(group_id, True)] if version >= 8 else []
    _fetched_topics(version, topics, out)
    if version >= 2:
        out.append(INT16(error_code))
    if version >= 8:
        out.append(NO_TAGS)
    return b"".join(out)


def _fetched_topics(version: int, topics: Sequence[FetchedTopic], out: list[bytes]) -> None:
    flexible = version >= 6
    out.append(length(len(topics), flexible))
    for topic, partitions in topics:
        out.append(topic_label(topic, flexible))
        out.append(length(len(partitions), flexible))
        for partition, offset, leader_epoch, metadata, error_code in partitions:
            fixed = _FETCHED_EPOCH(partition, offset, leader_epoch) if version >= 5 else _FETCHED(partition, offset)
            out.append(fixed)
            out.append(string(metadata, flexible))
            out.append(INT16(error_code))
            if flexible:
                out.append(NO_TAGS)
        if flexible:
            out.append(NO_TAGS)


def join_group(
    version: int,
    error_code: int,
    generation: int,
    protocol_type: str | None,
    protocol: str | None,
    leader: str,
    member_id: str,
    members: Sequence[JoinedMember],
    skip_assignment: bool = False,
) -> list[bytes]:
    """A JoinGroup response, v0-9. `members`: (member id, instance id, metadata). A null protocol is "" before v7."""
    flexible = version >= 6
    out = [NO_THROTTLE] if version >= 2 else []
    out.append(INT16(error_code))
    out.append(INT32(generation))
    if version >= 7:
        out.append(string(protocol_type, True))
        out.append(string(protocol, True))
    else:
        out.append(string(protocol or "", flexible))
    out.append(string(leader, flexible))
    if version >= 9:
        out.append(b"\1" if skip_assignment else b"\0")
    out.append(string(member_id, flexible))
    out.append(length(len(members), flexible))
    if flexible:
        _members(members, out)
    else:
        _members_of_older_versions(version, members, out)
    if flexible:
        out.append(NO_TAGS)
    return [b"".join(out)]


def _members(members: Sequence[JoinedMember], out: list[bytes]) -> None:
    """The leader's list of hundreds of members: inlined to avoid function calls."""
    for member_id, instance_id, metadata in members:
        raw_id = member_id.encode()
        out += (
            uvarint(len(raw_id) + 1),
            raw_id,
            NULL if instance_id is None else string(instance_id, True),
            uvarint(len(metadata) + 1),
            metadata,
            NO_TAGS,
        )


def _members_of_older_versions(version: int, members: Sequence[JoinedMember], out: list[bytes]) -> None:
    for member_id, instance_id, metadata in members:
        out.append(string(member_id, False))
        if version >= 5:
            out.append(string(instance_id, False))
        out += (INT32(len(metadata)), metadata)


def sync_group(
    version: int, error_code: int, protocol_type: str | None, protocol: str | None, assignment: bytes
) -> bytes:
    """A SyncGroup response, v0-5."""
    flexible = version >= 4
    out = [NO_THROTTLE] if version >= 1 else []
    out.append(INT16(error_code))
    if version >= 5:
        out.append(string(protocol_type, True))
        out.append(string(protocol, True))
    out.append(length(len(assignment), flexible))
    out.append(assignment)
    if flexible:
        out.append(NO_TAGS)
    return b"".join(out)
