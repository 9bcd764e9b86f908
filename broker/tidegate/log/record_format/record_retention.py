"""Retention of format `record`: XTRIM by the times of ids and by the stream's memory, whoever appended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from tidegate.log.producers_table import PRODUCER_ID_EXPIRATION_MS
from tidegate.store.clocks import clock_of, may_expire
from tidegate.store.scripts import Script

if TYPE_CHECKING:
    from tidegate.log.record_format.record_log import RecordLog

logger = structlog.get_logger()

LIMIT_RECORDS: Final = Script("records/limit_records")
EXPIRE_PRODUCERS: Final = Script("records/expire_producers")

_SLICE_ENTRIES: Final = 1_000
_SLICE_PRODUCERS: Final = 500
_SAMPLES: Final = 100
"""Nodes of the stream that Redis measures for its size."""


async def apply_retention(log: RecordLog) -> None:
    """Remove idle producers; records older than retention.ms by their ids; the oldest above retention.bytes in Redis.

    Times are of the log's node, which wrote the ids: if its clock may be wrong, nothing is removed by time.
    Raises UnknownTopicOrPartition, StoreUnavailable.
    """
    config = log.topic.config
    if may_expire(log.store, log.keys.log):
        await _expire_producers(log)
        if config.retention_ms >= 0:
            await _limit_time(log, config.retention_ms)
    if config.retention_bytes >= 0:
        await _limit_bytes(log, config.retention_bytes)


async def _limit_time(log: RecordLog, retention_ms: int) -> None:
    oldest_ms = clock_of(log.store, log.keys.log).now_ms() - retention_ms
    ends = await log.read_ends()
    limit = min(oldest_ms << log.ids.bits, ends.end)
    if ends.length and ends.first_offset < limit:
        await log.trim(limit)
        logger.info("log_trimmed", log=log.keys.log, log_start=limit, before=ends.log_start)


async def _expire_producers(log: RecordLog) -> None:
    cursor, total = b"", 0
    while cursor != b"0":
        cursor, removed = await log.store.run(
            EXPIRE_PRODUCERS,
            [log.keys.producers],
            cursor or b"0",
            PRODUCER_ID_EXPIRATION_MS,
            _SLICE_PRODUCERS,
        )
        total += removed
    if total:
        logger.info("producers_expired", log=log.keys.log, producers=total)


async def _limit_bytes(log: RecordLog, bytes_max: int) -> None:
    size = int(await log.store.command("MEMORY", "USAGE", log.keys.log, "SAMPLES", _SAMPLES) or 0)
    if size <= bytes_max:
        return
    keep = (await log.read_ends()).length * bytes_max // size
    removed, total = 1, 0
    while removed:
        (removed,) = await log.store.run(
            LIMIT_RECORDS, [log.keys.log, log.keys.meta], keep, log.ids.bits, _SLICE_ENTRIES, log.keys.wake
        )
        total += removed
        await asyncio.sleep(0)
    if total:
        logger.info("log_trimmed", log=log.keys.log, entries=total, bytes=size)
