"""Encoder of ConsumerGroupHeartbeat responses: versions 0 and 1 are the same bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from tidegate.protocol.primitives import INT16, INT32, NO_TAGS, NO_THROTTLE, NULL, compact_string, uvarint

_NO_STRUCT: Final = b"\xff"
_STRUCT: Final = b"\x01"


def consumer_group_heartbeat(
    member_id: str, member_epoch: int, interval_ms: int, assignment: Iterable[tuple[str, int]] | None
) -> bytes:
    """A successful response; the assignment is pairs of topic id in hex and partition, None if it has no news."""
    out = [NO_THROTTLE, INT16(0), NULL, compact_string(member_id), INT32(member_epoch), INT32(interval_ms)]
    if assignment is None:
        out.append(_NO_STRUCT)
    else:
        by_topic: dict[str, list[int]] = {}
        for topic_id, index in sorted(assignment):
            by_topic.setdefault(topic_id, []).append(index)
        out += (_STRUCT, uvarint(len(by_topic) + 1))
        for topic_id, indexes in by_topic.items():
            out += (UUID(hex=topic_id).bytes, uvarint(len(indexes) + 1), *map(INT32, indexes), NO_TAGS)
        out.append(NO_TAGS)
    out.append(NO_TAGS)
    return b"".join(out)


def consumer_group_heartbeat_error(error_code: int, message: str | None) -> bytes:
    """A refused heartbeat."""
    return b"".join(
        (
            NO_THROTTLE,
            INT16(error_code),
            compact_string(message),
            NULL,
            INT32(0),
            INT32(0),
            _NO_STRUCT,
            NO_TAGS,
        )
    )
