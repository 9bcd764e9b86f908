"""Encoder of ShareFetch responses, which are the same bytes in every version; heartbeats: `consumer_group_writers`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

from tidegate.protocol.log_writers import INLINE_BYTES_MAX, Body
from tidegate.protocol.primitives import INT16, INT32, NO_TAGS, NO_THROTTLE, compact_string, uvarint

_NO_LEADER: Final = INT32(-1) + INT32(-1) + NO_TAGS
_NO_ENDPOINTS: Final = uvarint(1)
_ACQUIRED: Final = Struct(">qqhB").pack
_DELIVERY_COUNT_MAX: Final = 32_767


@dataclass(slots=True)
class SharePartitionData:
    """One partition of a ShareFetch response; `acquired` is (first offset, last offset, delivery count) in order."""

    index: int
    error_code: int = 0
    error_message: str | None = None
    acknowledge_error_code: int = 0
    acknowledge_error_message: str | None = None
    buffers: Sequence[bytes | memoryview] = ()
    size: int = 0
    acquired: list[tuple[int, int, int]] = field(default_factory=list)


def share_fetch(
    error_code: int,
    error_message: str | None,
    lock_ms: int,
    topics: Iterable[tuple[bytes, Sequence[SharePartitionData]]],
) -> list[Body]:
    """A ShareFetch response, as buffers in order; records above `INLINE_BYTES_MAX` are not copied."""
    named = list(topics)
    out: list[Body] = []
    head = bytearray(NO_THROTTLE + INT16(error_code) + compact_string(error_message) + INT32(lock_ms))
    head += uvarint(len(named) + 1)
    for topic_id, partitions in named:
        head += topic_id + uvarint(len(partitions) + 1)
        for one in partitions:
            head += INT32(one.index) + INT16(one.error_code) + compact_string(one.error_message)
            head += INT16(one.acknowledge_error_code) + compact_string(one.acknowledge_error_message)
            head += _NO_LEADER + uvarint(one.size + 1)
            if one.size <= INLINE_BYTES_MAX:
                for buffer in one.buffers:
                    head += buffer
            else:
                out.append(head)
                out += one.buffers
                head = bytearray()
            head += uvarint(len(one.acquired) + 1)
            for first, last, count in one.acquired:
                head += _ACQUIRED(first, last, min(count, _DELIVERY_COUNT_MAX), 0)
            head += NO_TAGS
        head += NO_TAGS
    head += _NO_ENDPOINTS + NO_TAGS
    out.append(head)
    return out
