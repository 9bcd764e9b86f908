"""Load the state of a log from Redis.

The state is a function of the log: log start, leader epochs, end offset and producer table. Replaying the whole
stream would be slow, so brokers store a snapshot of the producer table from time to time. Loading has three steps,
and their order matters.

1. Fence. `fence_log` raises the failover epoch in the log's meta and returns the meta. If the log had an earlier
   epoch, a fail-over may have lost entries, so the script starts a new leader epoch at the present end. No append of
   the new failover epoch precedes the fence.
2. Snapshot. The producer table and the offset of the snapshot are read from `producers`.
3. Replay. The entries from the snapshot's offset to the end are read in pages and applied.

Each snapshot describes a prefix of the log, so replay continues it without a gap. The exceptions are a trim and a
compaction after step 2: entries above the snapshot's offset may be missing. Both write a newer snapshot first, and
both show in the meta, which is read after the last page: the load starts again and finds that snapshot.

A snapshot above the end of the log describes entries that a fail-over lost. The last entry shows it, so the replay
begins there if the snapshot is higher; then the load starts again without the snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import structlog

from tidegate.errors import KafkaStorageError, StoreUnavailable
from tidegate.log import open_transactions
from tidegate.log.entries import Entry, StrayEntry, parse_entries, parse_entry, parse_id, until_torn
from tidegate.log.open_transactions import Aborted
from tidegate.log.producers_table import ProducerState, from_text
from tidegate.log.state import LogState
from tidegate.store.keys import LogKeys
from tidegate.store.scripts import Script
from tidegate.store.store import Store

logger = structlog.get_logger()

FENCE_LOG = Script("log/fence_log")

REPLY_BYTES: Final = 4 << 20
"""Target size of one reply of entries."""
PAGE_ENTRIES_MAX: Final = 256
"""Bounds a reply when entries are larger than the mean suggests: at most this many entries of 1 MiB."""
_SNAPSHOT_TRIES: Final = 5
_PRODUCERS_PER_SLICE: Final = 500
"""Producer states parsed before the event loop runs other work: about 5 ms."""
_SAVE_AT_ONCE: Final = 1 << 30
"""Unsaved entries of a state whose snapshot has to be replaced: the next append saves it."""
_BATCHES_PER_SLICE: Final = 2_000
"""Batches parsed, or applied, before the event loop runs other work: about 4 ms. An entry is not divided."""


class LogLost(KafkaStorageError):
    """The stream of a log does not exist, although its topic was not deleted: its records are lost."""


def page_entries(mean_entry_bytes: float, page_bytes: int = REPLY_BYTES) -> int:
    """How many entries to request so that a reply has about `page_bytes`."""
    return max(1, min(PAGE_ENTRIES_MAX, int(page_bytes / max(mean_entry_bytes, 64.0))))


async def pages(
    store: Store, keys: LogKeys, offset: int, mean_entry_bytes: float, strays: list[StrayEntry] | None = None
) -> AsyncGenerator[list[Entry], None]:
    """The entries that start at or above `offset`, in pages, to the end of the log; stray entries go to `strays`."""
    first = f"{offset}-0"
    while True:
        count = page_entries(mean_entry_bytes)
        reply = await store.read_at_owner("XRANGE", keys.log, first, "+", "COUNT", count)
        entries, found = await _parse_in_slices(reply)
        if strays is not None:
            strays += found
        if entries:
            yield entries
            mean_entry_bytes = sum(entry.size for entry in entries) / len(entries)
        if len(reply) < count:
            return
        first = f"({reply[-1][0].decode()}"


async def _parse_in_slices(reply: Sequence[Any]) -> tuple[list[Entry], list[StrayEntry]]:
    entries: list[Entry] = []
    strays: list[StrayEntry] = []
    first = field_count = 0
    for end, (_, fields) in enumerate(reply, 1):
        field_count += len(fields or ())
        if end == len(reply) or field_count >= 2 * _BATCHES_PER_SLICE:
            found = parse_entries(reply[first:end])
            entries += found[0]
            strays += found[1]
            first, field_count = end, 0
            await asyncio.sleep(0)
    return entries, strays


async def _apply_in_slices(state: LogState, entries: Iterable[Entry], now_ms: int) -> None:
    batch_count = 0
    for entry in entries:
        state.apply(entry, now_ms)
        batch_count += len(entry.ends)
        if batch_count >= _BATCHES_PER_SLICE:
            batch_count = 0
            await asyncio.sleep(0)


async def entry_holding(store: Store, keys: LogKeys, offset: int) -> Entry | None:
    """The last entry that starts at or below the offset. Raises StrayEntry if a damaged one has that place."""
    last = f"{offset}-1"
    while reply := await store.read("XREVRANGE", keys.log, last, "-", "COUNT", 1):
        try:
            return parse_entry(reply[0])
        except StrayEntry as stray:
            if stray.takes_offset:
                raise
        last = f"({reply[0][0].decode()}"
    return None


async def load_state(
    store: Store, keys: LogKeys, failover_epoch: int, writer: bytes
) -> tuple[LogState, list[Entry], list[Entry]]:
    """The current state of the log, the entries of `writer` among those replayed, and the last page of entries.

    The log may have a later failover epoch than `failover_epoch`; the state then carries the later one. A log whose
    slot is migrating is waited for. Stray entries are skipped; one that blocks appends is set as the state's `stray`.

    Raises UnknownTopicOrPartition (deleted or never created), StoreUnavailable, KafkaStorageError.
    """
    lost_offset = -1
    for attempt in range(_SNAPSHOT_TRIES):
        is_last_try = attempt == _SNAPSHOT_TRIES - 1
        *fence, last_id, rebuilt = await _fence(store, keys, failover_epoch)
        if rebuilt:
            logger.error("log_meta_rebuilt", log=keys.log)
        snapshot = _as_map(await store.read("HGETALL", keys.producers))
        is_lost = int(snapshot.get(b"offset", 0)) == lost_offset
        if is_lost:
            logger.error("log_snapshot_of_lost_entries", log=keys.log, snapshot=lost_offset)
            snapshot = await _below_local_start(fence, snapshot)
        replay = _Replay(store, keys, await _from_snapshot(fence, snapshot), writer)
        state = replay.state
        is_whole = await replay.run(parse_id(last_id), may_begin_anywhere=is_lost, is_last_try=is_last_try)
        if replay.is_above_end:
            lost_offset, is_whole = state.snapshot_offset, True
        elif is_whole and not await _is_replaced(store, keys, state):
            break
        if is_whole and is_last_try:
            raise StoreUnavailable("the log was trimmed or replaced each time that it was read")
    if is_lost:
        state.unsaved_entries = _SAVE_AT_ONCE
    state.stray = _stray_at_end(state.end, replay.strays, parse_id(last_id))
    return state, replay.own, replay.last if until_torn(replay.last, replay.strays) is replay.last else []


class _Replay:
    """Applies the entries behind a snapshot to its state.

    `own` are those of `writer`, `last` is the last page of them. `is_above_end`: the log ends below the snapshot.
    """

    def __init__(self, store: Store, keys: LogKeys, state: LogState, writer: bytes) -> None:
        self._store, self._keys, self._writer = store, keys, writer
        self.state = state
        self.own: list[Entry] = []
        self.last: list[Entry] = []
        self.strays: list[StrayEntry] = []
        self.is_above_end = False

    async def run(self, last_id: tuple[int, int], *, may_begin_anywhere: bool, is_last_try: bool) -> bool:
        """Whether the entries follow the snapshot without a gap, or there are none."""
        state, offset, is_first, is_whole = self.state, self.state.snapshot_offset, True, True
        begins = min(offset, last_id[0]) if last_id > (0, 0) else offset  # (0, 0): this user may not read it
        async with aclosing(pages(self._store, self._keys, begins, state.mean_entry_bytes, self.strays)) as read:
            async for page in read:
                behind = page
                if page[0].base < offset:
                    behind = [entry for entry in page if entry.base >= offset]
                    self.is_above_end = page[-len(behind) - 1].end != offset
                if not behind:
                    continue
                self.last = behind
                if is_first and not may_begin_anywhere and behind[0].base != state.end:
                    is_whole = False  # trimmed meanwhile: a newer snapshot exists
                    if not is_last_try:
                        break
                    logger.error("log_without_its_snapshot", log=self._keys.log, snapshot=offset, first=behind[0].base)
                is_first = False
                await _apply_in_slices(state, behind, self._store.clock.now_ms())
                self.own += (entry for entry in behind if entry.writer.startswith(self._writer))
        return is_whole


async def _below_local_start(fence: list[Any], snapshot: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """What a replay of the log does not find: the aborted transactions of which only the archive has the batches."""
    local_start = max(int(fence[0]), int(fence[4] or 0))
    aborted = await _parse_aborted(snapshot.get(b"aborted", b"").decode())
    kept = [open_transactions.to_text(one) for one in aborted if one.last_offset < local_start]
    return {b"aborted": ",".join(kept).encode()}


async def _is_replaced(store: Store, keys: LogKeys, state: LogState) -> bool:
    """Whether another stream became the log, or one was trimmed above the snapshot, since the fence."""
    version, local_start = await store.read("HMGET", keys.meta, "log_version", "local_start")
    return int(version or 0) != state.log_version or int(local_start or 0) > max(
        state.snapshot_offset, state.local_start
    )


async def _fence(store: Store, keys: LogKeys, failover_epoch: int) -> list[Any]:
    try:
        return await store.run(FENCE_LOG, [keys.log, keys.meta, keys.archive], failover_epoch)
    except KafkaStorageError:
        raise LogLost(f"the stream {keys.log} does not exist: its records are lost") from None


def _stray_at_end(end: int, strays: list[StrayEntry], last_id: tuple[int, int]) -> StrayEntry | None:
    """The stray entry that blocks appends; a removed entry leaves only the stream's last id as evidence."""
    stray = next((stray for stray in strays if stray.stops(end)), None)
    if stray is None:
        removed = StrayEntry(last_id, "it was removed, and Redis takes no id below it", removed=True)
        stray = removed if removed.stops(end) else None
    return stray


def _as_map(reply: Any) -> dict[bytes, bytes]:
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


async def _from_snapshot(fence: list[Any], snapshot: Mapping[bytes, bytes]) -> LogState:
    log_start, epochs, log_bytes, entries, local_start, log_version, failover_epoch, proved, cleaned_before = fence
    fields = dict(snapshot)
    offset = int(fields.pop(b"offset", 0))
    max_timestamp = int(fields.pop(b"max_timestamp", -1))
    max_timestamp_base = int(fields.pop(b"max_timestamp_base", -1))
    aborted = fields.pop(b"aborted", b"").decode()
    state = LogState(
        end=offset,
        log_start=int(log_start),
        local_start=max(int(log_start), int(local_start or 0)),
        epochs=parse_epochs(epochs),
        failover_epoch=int(failover_epoch),
        log_version=int(log_version or 0),
        high_watermark=offset,
        producers=await _parse_producers(fields),
        max_timestamp=max_timestamp,
        max_timestamp_base=max_timestamp_base,
        mean_entry_bytes=max(int(log_bytes or 0), 0) / entries if entries and log_bytes else float(1 << 20),
        snapshot_offset=offset,
        stored_high_watermark=int(proved or 0),
    )
    state.transactions.aborted = await _parse_aborted(aborted)
    state.transactions.discard_below(int(cleaned_before or 0))
    opened = [(one.transaction_start, p) for p, one in state.producers.items() if one.transaction_start >= 0]
    for transaction_start, producer_id in sorted(opened):
        state.transactions.add(producer_id, transaction_start)
    return state


async def _parse_producers(fields: Mapping[bytes, bytes]) -> dict[int, ProducerState]:
    producers: dict[int, ProducerState] = {}
    for count, (producer_id, text) in enumerate(fields.items(), 1):
        producers[int(producer_id)] = from_text(text.decode())
        if count % _PRODUCERS_PER_SLICE == 0:
            await asyncio.sleep(0)
    return producers


async def _parse_aborted(text: str) -> list[Aborted]:
    aborted: list[Aborted] = []
    for count, one in enumerate(filter(None, text.split(",")), 1):
        aborted.append(open_transactions.from_text(one))
        if count % open_transactions.PER_SLICE == 0:
            await asyncio.sleep(0)
    return aborted


def parse_epochs(text: bytes) -> list[tuple[int, int]]:
    """`0:0 1:1532` as (epoch, start offset)."""
    return [(int(epoch), int(start)) for epoch, _, start in (pair.partition(b":") for pair in text.split())]
