"""Where in a log: by timestamp, by largest timestamp, by leader epoch (ListOffsets, OffsetForLeaderEpoch)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.log.entries import Entry, read_header
from broker.log.loading import pages
from broker.records.batch import Batch
from broker.records.record import read_heads

if TYPE_CHECKING:
    from broker.log.partition import PartitionLog
    from broker.log.view import View


async def offset_for_timestamp(log: PartitionLog, timestamp_ms: int) -> tuple[int, int] | None:
    """The first record, in offset order, of the first batch that reaches `timestamp_ms`, at or after it.

    The time index says from which entry on a batch can reach it: up to there the largest timestamp is smaller.
    """
    view = await log.look()
    if view.max_timestamp < timestamp_ms:
        return None
    start = await _indexed_below(log, timestamp_ms)
    async for entries in pages(log.store, log.keys, start, view.mean_entry_bytes):
        for entry in entries:
            found = _first_at(entry, timestamp_ms, view.log_start)
            if found is not None:
                return found if found[0] < view.high_watermark else None
    return None


async def max_timestamp(log: PartitionLog) -> tuple[int, int] | None:
    """The first record that carries the largest timestamp of what is not trimmed."""
    view = await log.look()
    if view.log_start >= view.high_watermark or view.max_timestamp < 0:
        return None
    if view.max_timestamp_base >= view.log_start:
        async for entries in pages(log.store, log.keys, view.max_timestamp_base, view.mean_entry_bytes):
            found = _first_at(entries[0], view.max_timestamp, view.log_start)
            if found is not None and found[0] < view.high_watermark:
                return found
            break
    largest: Entry | None = None  # it was trimmed, or is not shown yet: search what there is
    async for entries in pages(log.store, log.keys, await _base_holding(log, view.log_start), view.mean_entry_bytes):
        for entry in entries:
            if entry.end <= view.high_watermark and (largest is None or entry.max_timestamp > largest.max_timestamp):
                largest = entry
    return _first_at(largest, largest.max_timestamp, view.log_start) if largest is not None else None


def epoch_end(view: View, epoch: int) -> tuple[int, int]:
    """(leader epoch, end offset): the largest known epoch at or below the asked one, and where the next begins."""
    if epoch < 0 or epoch > view.leader_epoch:
        return -1, -1
    if epoch == view.leader_epoch:
        return epoch, view.end
    earlier = [i for i, (known, _) in enumerate(view.epochs) if known <= epoch]
    if not earlier:
        return epoch, view.epochs[0][1]
    return view.epochs[earlier[-1]][0], view.epochs[earlier[-1] + 1][1]


async def _indexed_below(log: PartitionLog, timestamp_ms: int) -> int:
    """The highest indexed base up to which no batch reaches the timestamp."""
    found: list[Any] = await log.store.read(
        "ZREVRANGEBYSCORE", log.keys.times, f"({timestamp_ms}", "-inf", "LIMIT", 0, 1
    )
    return int(found[0]) if found else 0


async def _base_holding(log: PartitionLog, offset: int) -> int:
    """The base of the entry that holds the offset."""
    found = await log.store.read("XREVRANGE", log.keys.log, f"{offset}-1", "-", "COUNT", 1)
    return int(found[0][0].partition(b"-")[0]) if found else offset


def _first_at(entry: Entry, timestamp_ms: int, log_start: int) -> tuple[int, int] | None:
    """The first record of an entry at or after a time, exact inside its batch."""
    if entry.max_timestamp < timestamp_ms or entry.end <= log_start:
        return None
    base = entry.base
    for batch, end in zip(entry.batches, entry.ends, strict=True):
        header = read_header(batch)
        if header.max_timestamp >= timestamp_ms and end > log_start:
            for head in read_heads(Batch.parse(batch)):
                if head.timestamp >= timestamp_ms and base + head.offset_delta >= log_start:
                    return base + head.offset_delta, head.timestamp
        base = end
    return None
