"""The bytes that consumers exchange through a group: subscriptions and assignments (ConsumerProtocol).

Only protocol type `consumer` uses them. Later versions append fields, so trailing bytes are ignored. Truncated blobs
and impossible counts decode to None (unknown) and never fail the group.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from zlib import crc32

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")

TOPICS_MAX: Final = 50_000
"""Maximum topics in a subscription or assignment; larger ones decode to None."""
PARTITIONS_MAX: Final = 1 << 17
"""Maximum partitions in an assignment."""
OWNED_MAX: Final = 1_000
"""Maximum partitions for which `owners_text` lists owners."""
_TEXT_MAX: Final = 8_192
_NOBODY: Final = "...."
_NOTHING: Final = "-"


class _Malformed(Exception):
    """A blob that is not a subscription or assignment."""


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Topics of a ConsumerProtocolSubscription, any version. None when malformed or above `TOPICS_MAX`."""
    try:
        count, position = _topic_count(metadata)
        topics = set()
        for _ in range(count):
            topic, position = _string(metadata, position)
            topics.add(topic)
        _skip_user_data(metadata, position)
    except (struct.error, UnicodeDecodeError, _Malformed):
        return None
    return frozenset(topics)


def read_subscription(metadata: bytes) -> tuple[frozenset[str], dict[str, list[int]], str | None] | None:
    """Topics, owned partitions (v1) and rack (v3) of a ConsumerProtocolSubscription; None when malformed."""
    try:
        (version,) = _INT16.unpack_from(metadata, 0)
        count, position = _topic_count(metadata)
        topics = set()
        for _ in range(count):
            topic, position = _string(metadata, position)
            topics.add(topic)
        position = _skip_user_data(metadata, position)
        owned: dict[str, list[int]] = {}
        if version >= 1 and position < len(metadata):
            owned, position = _partitions_by_topic(metadata, position, PARTITIONS_MAX)
        rack_id = None
        if version >= 3 and position + 4 < len(metadata):
            position += 4  # v2: the generation in which they were owned
            (size,) = _INT16.unpack_from(metadata, position)
            rack_id = None if size < 0 else _string(metadata, position)[0]
    except (struct.error, UnicodeDecodeError, _Malformed):
        return None
    return frozenset(topics), owned, rack_id


def read_assignment(assignment: bytes) -> tuple[dict[str, list[int]], bool] | None:
    """Partitions by topic of a ConsumerProtocolAssignment, and whether user data follow. None when malformed."""
    if not assignment:
        return {}, False
    try:
        assigned, position = _partitions_by_topic(assignment, 2, PARTITIONS_MAX)
        end = _skip_user_data(assignment, position)
    except (struct.error, UnicodeDecodeError, _Malformed):
        return None
    return assigned, end > position + 4


def assigned_partitions(assignment: bytes, partitions_max: int = PARTITIONS_MAX) -> dict[str, list[int]] | None:
    """Topic -> partitions of a ConsumerProtocolAssignment, any version; {} when empty.

    None when malformed or too large.
    """
    if not assignment:
        return {}
    try:
        count, position = _topic_count(assignment)
        assigned: dict[str, list[int]] = {}
        for _ in range(count):  # as `_partitions_by_topic`, without the call: it runs for each member of a rebalance
            topic, position = _string(assignment, position)
            partition_count, position = _count(assignment, position)
            partitions_max -= partition_count
            if partition_count * 4 > len(assignment) - position or partitions_max < 0:
                raise _Malformed
            partitions = struct.unpack_from(f">{partition_count}i", assignment, position)
            position += 4 * partition_count
            assigned.setdefault(topic, []).extend(partitions)
    except (struct.error, UnicodeDecodeError, _Malformed):
        return None
    return assigned


def owners_text(assignments: Iterable[tuple[str, bytes]]) -> str:
    """The owner of each partition as compact text, from member ids and their assignments; for display and comparison.

    For each topic in order of name `<topic>=`, then four characters per partition from 0: the low 24 bits of the CRC-32
    of the owner's member id in base64, or `....` without an owner; `-` when there are no topics. "" above `OWNED_MAX`
    partitions, for very long names, or when an assignment is malformed.
    """
    owners: dict[str, dict[int, str]] = {}
    count = 0
    for member_id, assignment in assignments:
        assigned = assigned_partitions(assignment, OWNED_MAX)
        if assigned is None or count > OWNED_MAX:
            return ""
        name = b64encode(crc32(member_id.encode()).to_bytes(4)[1:]).decode()
        for topic, partitions in assigned.items():
            owners.setdefault(topic, {}).update(dict.fromkeys(partitions, name))
            count += len(partitions)
    ends = {topic: max(of_topic, default=-1) + 1 for topic, of_topic in owners.items()}
    if max(count, sum(ends.values())) > OWNED_MAX or any(min(one, default=0) < 0 for one in owners.values()):
        return ""
    text = " ".join(
        f"{topic}=" + "".join(owners[topic].get(index, _NOBODY) for index in range(end))
        for topic, end in sorted(ends.items())
    )
    return (text or _NOTHING) if len(text) <= _TEXT_MAX else ""


def topic_count(blob: bytes) -> int:
    """The topic count field of a subscription or assignment; 0 when the blob is too short."""
    return max(0, _INT32.unpack_from(blob, 2)[0]) if len(blob) >= 6 else 0


def write_subscription(topics: Sequence[str]) -> bytes:
    """Encode a ConsumerProtocolSubscription v0 without user data."""
    out = [_INT16.pack(0), _INT32.pack(len(topics))]
    for topic in topics:
        raw = topic.encode()
        out += [_INT16.pack(len(raw)), raw]
    return b"".join([*out, _INT32.pack(-1)])


def write_assignment(assigned: Mapping[str, Sequence[int]]) -> bytes:
    """Encode a ConsumerProtocolAssignment v0 without user data."""
    out = [_INT16.pack(0), _INT32.pack(len(assigned))]
    for topic, partitions in assigned.items():
        raw = topic.encode()
        out += [_INT16.pack(len(raw)), raw, struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)]
    return b"".join([*out, _INT32.pack(-1)])


def _partitions_by_topic(data: bytes, position: int, partitions_max: int) -> tuple[dict[str, list[int]], int]:
    """Topic -> partitions from a position on, and the position behind them."""
    count, position = _topic_count(data, position)
    found: dict[str, list[int]] = {}
    for _ in range(count):
        topic, position = _string(data, position)
        partition_count, position = _count(data, position)
        partitions_max -= partition_count
        if partition_count * 4 > len(data) - position or partitions_max < 0:
            raise _Malformed
        found.setdefault(topic, []).extend(struct.unpack_from(f">{partition_count}i", data, position))
        position += 4 * partition_count
    return found, position


def _topic_count(data: bytes, position: int = 2) -> tuple[int, int]:
    count, position = _count(data, position)
    if count > TOPICS_MAX:
        raise _Malformed
    return count, position


def _count(data: bytes, position: int) -> tuple[int, int]:
    (count,) = _INT32.unpack_from(data, position)
    if count < 0 or count * 2 > len(data) - position - 4:
        raise _Malformed
    return count, position + 4


def _string(data: bytes, position: int) -> tuple[str, int]:
    (size,) = _INT16.unpack_from(data, position)
    position += 2
    if size < 0 or position + size > len(data):
        raise _Malformed
    return data[position : position + size].decode(), position + size


def _skip_user_data(data: bytes, position: int) -> int:
    """The position behind the user data."""
    size = int(_INT32.unpack_from(data, position)[0])
    if size < -1 or position + 4 + size > len(data):
        raise _Malformed
    return position + 4 + max(size, 0)
