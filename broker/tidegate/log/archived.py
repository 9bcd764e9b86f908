"""The archived offset range and segments of a partition, from the index in Redis. This module opens no file."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Final

from tidegate.records.segments import Segment

if TYPE_CHECKING:
    from tidegate.log.cached_log import CachedLog

_PAGE_SEGMENTS: Final = 256


async def archived_range(log: CachedLog) -> tuple[int, int]:
    """The archived offsets, end exclusive; (0, 0) for none. Raises StoreUnavailable."""
    start, end = await log.store.command("HMGET", log.keys.archive, "start", "end")
    return int(start or 0), int(end or 0)


async def segments_holding(log: CachedLog, offset: int, limit: int) -> list[Segment]:
    """The segment that contains the offset and those after it, in order. Raises StoreUnavailable."""
    found: list[Any] = await log.store.read("ZRANGEBYSCORE", log.keys.segments, offset, "+inf", "LIMIT", 0, limit)
    return [Segment.from_json(text) for text in found]


async def segments_from(log: CachedLog, offset: int) -> AsyncGenerator[Segment, None]:
    """Every segment from the one that contains the offset, in order. Raises StoreUnavailable."""
    while True:
        found = await segments_holding(log, offset, _PAGE_SEGMENTS)
        for segment in found:
            yield segment
        if len(found) < _PAGE_SEGMENTS:
            return
        offset = found[-1].end_offset
