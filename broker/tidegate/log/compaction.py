"""Compact a log: keep the newest record of each key below an offset. Readers and appends continue meanwhile.

Two passes over the log in pages: the first records the newest offset of each key in the part that is not compacted
yet; the second writes the batches with the records that are still the newest into a new stream, each as an entry of its
own, and then copies the rest of the log. A script replaces the log by that stream if nothing but appends happened, and
raises the log version; brokers then reload the log. Gaps below the compacted offset are safe because the producer
snapshot reaches it: brokers replay the log from there. A broker that dies leaves a stream that expires.

The map of keys is bounded: with more keys, the compacted offset moves forward in several rounds. Records of aborted
transactions are dropped. A marker goes once no batch of its transaction is left and delete.retention.ms is over. The
index of aborted transactions names an abort marker: a reader that did not find it would drop what its producer commits
later. So the compaction after that of its records removes it from the index, and a later one from the log. The last
batch below the compacted offset stays, if need be without records, so that a reader at a lower offset always receives a
batch and continues behind it.
"""

from __future__ import annotations

import asyncio
import uuid
from bisect import bisect_right
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from operator import itemgetter
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import structlog

from tidegate.errors import CorruptMessage, InvalidRecord, StoreUnavailable
from tidegate.log.entries import Entry, parse_entry
from tidegate.log.loading import entry_holding, page_entries
from tidegate.log.offload import COMPACTED
from tidegate.records.batch import Batch, Buffer
from tidegate.records.cleaning import CleaningRules, clean, emptied, note_keys
from tidegate.records.control import read_marker
from tidegate.store.link import Arg
from tidegate.store.outcome import failure_of
from tidegate.store.scripts import Script

if TYPE_CHECKING:
    from tidegate.log.partition import PartitionLog
    from tidegate.log.state import LogState

logger = structlog.get_logger()

BEGIN_COMPACTION = Script("log/begin_compaction")
SWAP_COMPACTED = Script("log/swap_compacted")

KEYS_MAX: Final = 250_000
"""Keys in the map of one round, about 60 MB. A page may exceed it by its own keys."""
PAGE_BYTES: Final = 1 << 20
"""Bytes read, cleaned in the thread and written at a time: other users of the connections wait for one such page."""
_ABANDONED_MS: Final = 60_000
_LAST_ENTRIES: Final = 16
_SWAP_TRIES: Final = 100
_TIMESTAMP_MAX: Final = (1 << 63) - 1
_LAG_OFF_MS: Final = 1 << 62
_WRITER: Final = b"compaction"
_MARKER: Final = itemgetter(1)

OnPage = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class Compacted:
    """The result of a compaction; `offset` is where its compacted part ends."""

    offset: int = 0
    records_dropped: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    rounds: int = 0


@dataclass(slots=True)
class _Plan:
    """What a round compacts: the batches from `start` to `end`; keys are read from `dirty` on.

    Markers of transactions without batches are dropped if they are from before `markers_before_ms`.
    """

    start: int
    dirty: int
    end: int
    now_ms: int
    markers_before_ms: int
    latest: dict[bytes, int] = field(default_factory=dict)
    aborted: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """Producer id -> first offset and marker offset of its aborted transactions in the index, in order."""
    indexed: set[int] = field(default_factory=set)
    """The offsets of their markers."""
    in_transaction: set[int] = field(default_factory=set)
    """Producers of which the second pass has read a batch, and not its transaction's marker yet."""

    def is_aborted(self, batch: Batch, base: int) -> bool:
        """Whether the batch at `base` belongs to an aborted transaction."""
        if not batch.is_transactional:
            return False
        aborted = self.aborted.get(batch.producer_id, ())
        i = bisect_right(aborted, base, key=_MARKER)
        return i < len(aborted) and aborted[i][0] <= base

    def drops_marker(self, batch: Batch, base: int) -> bool:
        """Whether the control batch at `base` has no use any more, by the batches that the second pass has read."""
        if batch.producer_id in self.in_transaction:
            self.in_transaction.remove(batch.producer_id)
            return False
        is_marker = read_marker(batch.buffer) is not None
        return is_marker and base not in self.indexed and batch.max_timestamp <= self.markers_before_ms


async def compact(
    log: PartitionLog, appended_before: int, on_page: OnPage | None = None, *, is_requested: bool = False
) -> Compacted | None:
    """Compact the log as its topic's configs ask, up to `appended_before` at most; None if nothing is due.

    On request also what is below `min.cleanable.dirty.ratio`.
    `appended_before` is a log end of the past: appends of unknown outcome are looked up by the id of their entry, so
    entries must not disappear before their brokers know the outcome.
    Raises KafkaError: StoreUnavailable, UnknownTopicOrPartition, StrayEntry, or FENCED_LEADER_EPOCH if the log was
    replaced or trimmed meanwhile.
    """
    done, began_s = Compacted(), perf_counter()
    while True:
        state = await log.refresh()
        plan = await _plan(log, state, appended_before, is_requested)
        if plan is None:
            break
        await _Round(log, state, plan, on_page or _no_step, done).run()
        del plan  # the next round has a map of its own
    if not done.rounds:
        return None
    logger.info(
        "log_compacted", log=log.keys.log, offset=done.offset, records_dropped=done.records_dropped,
        bytes_before=done.bytes_before, bytes_after=done.bytes_after, rounds=done.rounds,
        ms=round((perf_counter() - began_s) * 1000),
    )  # fmt: skip
    return done


async def _no_step() -> None:
    """Nothing to do between pages."""


async def _plan(log: PartitionLog, state: LogState, appended_before: int, is_requested: bool) -> _Plan | None:
    """The next round; None if the part that is not compacted is below its limits."""
    config, now_ms = log.topic.config, log.store.clock.now_ms()
    if "compact" not in config.cleanup_policy or config.remote_storage or state.stray is not None:
        return None
    if not state.high_watermark_known:
        return None
    cleaned, cleaned_bytes, size = (
        int(value or 0)
        for value in await log.store.command("HMGET", log.keys.meta, "cleaned", "cleaned_bytes", "bytes")
    )
    start = state.local_start
    dirty = max(cleaned, start)
    limit = min(appended_before, state.last_stable_offset)
    if dirty >= limit:
        return None
    if cleaned <= start:
        cleaned_bytes = 0
    ratio = config.min_cleanable_dirty_ratio
    is_overdue = is_requested or await _is_overdue(log, dirty, now_ms - config.max_compaction_lag_ms)
    if not is_overdue and cleaned_bytes and size - cleaned_bytes < ratio * size:
        return None
    first = await _first_entry(log, dirty)
    plan = _Plan(start, min(dirty, first), dirty, now_ms, now_ms - config.delete_retention_ms)
    for one in state.transactions.aborted:
        plan.aborted.setdefault(one.producer_id, []).append((one.first_offset, one.last_offset))
        plan.indexed.add(one.last_offset)
    lag_ms = config.min_compaction_lag_ms
    dirty_bytes = await _note_keys(log, state, plan, limit, now_ms - lag_ms if lag_ms else _TIMESTAMP_MAX)
    is_enough = len(plan.latest) >= KEYS_MAX or dirty_bytes >= ratio * (cleaned_bytes + dirty_bytes)
    return plan if plan.end > dirty and (is_overdue or is_enough) else None


async def _first_entry(log: PartitionLog, offset: int) -> int:
    """The base of the entry that contains an offset; the offset itself if there is none."""
    holder = await entry_holding(log.store, log.keys, offset)
    return holder.base if holder is not None and holder.end > offset else offset


async def _is_overdue(log: PartitionLog, dirty: int, oldest_ms: int) -> bool:
    """Whether the first entry that is not compacted has records older than max.compaction.lag.ms allows."""
    if log.topic.config.max_compaction_lag_ms >= _LAG_OFF_MS:
        return False
    reply = await log.store.read_at_owner("XRANGE", log.keys.log, f"{dirty}-0", "+", "COUNT", 1)
    return bool(reply) and parse_entry(reply[0]).max_timestamp < oldest_ms


async def _note_keys(log: PartitionLog, state: LogState, plan: _Plan, limit: int, young_ms: int) -> int:
    """Pass one: fill the map, and set the plan's end. Stops at a young entry. Returns the bytes read."""
    size = 0
    async with aclosing(_raw_pages(log, f"{plan.dirty}-0", state.mean_entry_bytes)) as pages:
        async for page in pages:
            entries, stopped = [], False
            for item in page:
                entry = parse_entry(item)
                # The last entry is never compacted: it alone shows where the log ends.
                stopped = entry.end > limit or entry.end >= state.end or entry.max_timestamp > young_ms
                if stopped:
                    break
                entries.append(entry)
            await COMPACTED.run(_note_entries, entries, plan)
            if entries:
                plan.end = entries[-1].end
                size += sum(entry.size for entry in entries)
            if stopped or len(plan.latest) >= KEYS_MAX:
                break
    return size


def _note_entries(entries: list[Entry], plan: _Plan) -> None:
    for entry in entries:
        for buffer, base in zip(entry.batches, (entry.base, *entry.ends), strict=False):
            batch = Batch.parse(buffer)
            if not batch.is_control and not plan.is_aborted(batch, base):
                try:
                    note_keys(batch, base, plan.latest)
                except (CorruptMessage, InvalidRecord) as error:
                    logger.warning("batch_not_compacted", base=base, reason=str(error))


async def _raw_pages(log: PartitionLog, first: str, mean_entry_bytes: float) -> AsyncGenerator[list[Any], None]:
    """Raw entries from an id on, in pages of about `PAGE_BYTES`, to the end of the log."""
    while True:
        count = page_entries(mean_entry_bytes, PAGE_BYTES)
        reply = await log.store.read_at_owner("XRANGE", log.keys.log, first, "+", "COUNT", count)
        if reply:
            yield reply
            size = sum(sum(map(len, fields)) for _, fields in reply)
            mean_entry_bytes = size / len(reply)
            first = f"({reply[-1][0].decode()}"
        if len(reply) < count:
            return


class _Round:
    """One new stream, and the swap."""

    def __init__(self, log: PartitionLog, state: LogState, plan: _Plan, on_page: OnPage, done: Compacted) -> None:
        self._log, self._state, self._plan, self._on_page, self._done = log, state, plan, on_page, done
        self._key = log.keys.compacted(uuid.uuid4().hex)
        self._entries = self._dropped = 0
        self._before = self._after = self._rest = 0
        self._last_id = b"0-0"

    async def run(self) -> None:
        """Fill the new stream and swap it in. Raises as `compact`."""
        log, state, plan, keys = self._log, self._state, self._plan, self._log.keys
        await log.save_producers(state, plan.end)
        began = await log.store.run(BEGIN_COMPACTION, [keys.log, self._key, keys.meta], _ABANDONED_MS)
        try:
            if (int(began[0]), int(began[2])) != (state.failover_epoch, state.log_version):
                raise StoreUnavailable("the log was replaced")
            await self._fill()
            for _ in range(_SWAP_TRIES):
                await self._copy_rest()
                (swapped,) = await log.store.run(
                    SWAP_COMPACTED, [keys.log, self._key, keys.meta, keys.producers, keys.archive], *began,
                    self._entries, self._last_id, _LAST_ENTRIES, plan.end, self._after, self._after + self._rest,
                    keys.wake,
                )  # fmt: skip
                if swapped:
                    break
            else:
                raise StoreUnavailable("the log grows faster than it can be copied")
        finally:
            log.store.send(["UNLINK", self._key], _ignore)  # there is none after the swap
        done = self._done
        done.rounds, done.offset = done.rounds + 1, plan.end
        done.records_dropped += self._dropped
        done.bytes_before += self._before
        done.bytes_after += self._after

    async def _fill(self) -> None:
        """Pass two: the batches below the plan's end."""
        plan = self._plan
        horizon_ms = min(plan.now_ms + self._log.topic.config.delete_retention_ms, _TIMESTAMP_MAX)
        rules = CleaningRules(plan.latest, plan.now_ms, horizon_ms, plan.dirty)
        first = await _first_entry(self._log, plan.start)
        async with aclosing(_raw_pages(self._log, f"{first}-0", self._state.mean_entry_bytes)) as pages:
            async for page in pages:
                entries = [entry for entry in map(parse_entry, page) if entry.end <= plan.end]
                kept, dropped = await COMPACTED.run(_clean_entries, entries, plan, rules)
                self._dropped += dropped
                self._before += sum(entry.size for entry in entries)
                self._after += sum(len(batch) for _, batch in kept)
                await self._write([(b"%d-1" % base, [b"w", _WRITER, b"b", bytes(batch)]) for base, batch in kept])
                if len(entries) < len(page):
                    break
        self._last_id = b"%d-0" % plan.end

    async def _copy_rest(self) -> None:
        """Copy the entries behind the last one copied, unchanged."""
        async with aclosing(_raw_pages(self._log, f"({self._last_id.decode()}", self._state.mean_entry_bytes)) as pages:
            async for page in pages:
                await self._write([(entry_id, fields) for entry_id, fields in page])
                self._last_id = page[-1][0]
                self._rest += sum(sum(map(len, fields[1::2])) for _, fields in page)

    async def _write(self, entries: list[tuple[bytes, list[bytes]]]) -> None:
        """Add entries to the new stream and renew its time to live. Raises StoreUnavailable."""
        loop, link = asyncio.get_running_loop(), self._log.lanes.node.data_out
        written: asyncio.Future[Any] = loop.create_future()
        failures: list[Any] = []

        def added(reply: Any) -> None:
            if not isinstance(reply, bytes):
                failures.append(reply)

        def renewed(reply: Any) -> None:
            if not written.done():
                written.set_result(reply)

        for entry_id, fields in entries:
            command: list[Arg] = ["XADD", self._key, "NOMKSTREAM", entry_id, *fields]
            link.send(command, added)
        link.send(["PEXPIRE", self._key, _ABANDONED_MS], renewed)
        reply = await written
        failures += [] if reply == 1 else [reply]
        if failures:
            failure = failure_of(failures[0])
            raise failure.error if failure is not None else StoreUnavailable("the new stream expired")
        self._entries += len(entries)
        await self._on_page()


def _clean_entries(entries: list[Entry], plan: _Plan, rules: CleaningRules) -> tuple[list[tuple[int, Buffer]], int]:
    """The kept batches with their base offsets, and the number of records dropped."""
    kept: list[tuple[int, Buffer]] = []
    dropped = 0
    for entry in entries:
        base = entry.base
        for buffer, end in zip(entry.batches, entry.ends, strict=True):
            batch = Batch.parse(buffer)
            left, count = _cleaned(batch, base, plan, rules)
            dropped += count
            if left is None and end == plan.end:
                left = batch.buffer if batch.is_control else emptied(batch)
            if left is not None:
                kept.append((base, left))
            base = end
    return kept, dropped


def _cleaned(batch: Batch, base: int, plan: _Plan, rules: CleaningRules) -> tuple[Buffer | None, int]:
    if batch.is_control:
        return None if plan.drops_marker(batch, base) else batch.buffer, 0
    if batch.is_transactional:
        plan.in_transaction.add(batch.producer_id)
    if plan.is_aborted(batch, base):
        return None, batch.record_count
    try:
        return clean(batch, base, rules)
    except (CorruptMessage, InvalidRecord) as error:
        logger.warning("batch_not_compacted", base=base, reason=str(error))
        return batch.buffer, 0


def _ignore(_: Any) -> None:
    """Discard the reply: the stream expires."""
