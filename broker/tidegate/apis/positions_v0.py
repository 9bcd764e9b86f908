"""ListOffsets v0: several offsets per partition, in descending order.

Kafka answers the start of each segment whose messages are all older than the time, and before them the end of the log
if that is asked for. Logs here have no segments: the list is the offset that v1 finds for the time, then the log start.
Source: the guide's Offset API, Kafka's UnifiedLog.legacyFetchOffsetsBefore.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidegate.apis.slices import Slices
from tidegate.log.offload import ENCODED
from tidegate.protocol import old_responses

_LATEST: Final = -1
_EARLIEST: Final = -2

Find = Callable[[str, Any], Awaitable[tuple[ErrorCode, tuple[int, int, int]]]]
"""(topic, partition of the request) -> code and (offset, timestamp, leader epoch), as ListOffsets v1 finds them."""


async def list_offsets_v0(request: Any, find: Find) -> bytes:
    """The encoded response."""
    topics, slices = [], Slices()
    async for topic in slices.of(request.topics):
        partitions = [
            (asked.partition_index, *await _offsets(topic.name, asked, find))
            async for asked in slices.of(topic.partitions)
        ]
        topics.append((topic.name, partitions))
    return await ENCODED.run(old_responses.list_offsets, topics)


async def _offsets(name: str, asked: Any, find: Find) -> tuple[int, list[int]]:
    """Code and offsets of one partition."""
    code, (start, _, _) = await find(name, replace(asked, timestamp=_EARLIEST))
    if code is not ErrorCode.none:
        return code.value, []
    if asked.timestamp == _EARLIEST:
        return code.value, [start][: max(asked.max_num_offsets, 0)]
    if asked.timestamp < _LATEST:
        return code.value, []  # a time before all messages
    code, (offset, _, _) = await find(name, asked)
    if code is ErrorCode.none and offset < 0:  # every message is older
        code, (offset, _, _) = await find(name, replace(asked, timestamp=_LATEST))
    if code is not ErrorCode.none:
        return code.value, []
    offsets = [offset, start] if offset > start else [start]
    return code.value, offsets[: max(asked.max_num_offsets, 0)]
