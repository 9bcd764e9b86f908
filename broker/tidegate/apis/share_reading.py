"""One pass of a ShareFetch over its share-partitions: acquire records, and read the batches that contain them.

First a script acquires what is available again, in all partitions. If that is not enough, partition after partition is
read behind its window, and the batches found are offered to the same script, which takes them if no other member was
faster. Records that cannot be read, or do not fit into the answer, are put back as if they had not been delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import structlog

from tidegate.apis.call import Call
from tidegate.apis.share_runs import enough_runs, offered_runs, single_records
from tidegate.apis.share_sessions import find_topic
from tidegate.apis.slices import in_slices
from tidegate.errors import (
    KafkaError,
    KafkaStorageError,
    OffsetNotAvailable,
    OffsetOutOfRange,
    StoreUnavailable,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidegate.groups.share.acknowledgements import UNDO, Acknowledgement
from tidegate.groups.share.errors import ShareSessionNotFound, UnsupportedForMessageFormat
from tidegate.groups.share.records import (
    PARTITIONS_PER_SCRIPT,
    Acquired,
    AcquiredRecords,
    Readable,
    Reads,
    partitions_after,
)
from tidegate.groups.share.sessions import SharePartition, ShareSession
from tidegate.groups.share.windows import Window
from tidegate.protocol.share_writers import SharePartitionData
from tidegate.records.batch import Batch, iter_headers
from tidegate.store.calls import result_of

if TYPE_CHECKING:
    from tidegate.log.logs import AnyLog
    from tidegate.log.read import Slice

logger = structlog.get_logger()

_READ_BYTES: Final = 1 << 20
"""Bytes read at once behind a window: a fetch asks for a number of records, and what it does not take is read again."""
_PASSES_MAX: Final = 16
"""Reads of one share-partition for one fetch."""


class ShareReading:
    """The results of one ShareFetch so far."""

    def __init__(
        self,
        call: Call,
        session: ShareSession,
        max_records: int,
        max_bytes: int,
        batch_size: int,
        exact: bool,
        is_superseded: Callable[[], bool],
    ):
        self._call, self._session = call, session
        self._max_records, self._max_bytes = max_records, max_bytes
        self._batch_size, self._exact, self._is_superseded = batch_size, exact, is_superseded
        self._taken = self._size = 0
        self._is_full = False
        self.order = session.rotated()
        self.logs: dict[SharePartition, AnyLog] = {}
        self.results: dict[SharePartition, SharePartitionData] = {}
        self.unlocks_in_ms = -1
        """Until the first lock expires that another member holds; -1 for none."""

    @property
    def has_news(self) -> bool:
        """Whether there is something to answer at once."""
        return any(one.size or one.acquired or one.error_code for one in self.results.values())

    async def read(self) -> None:
        """Acquire and read. What fails is the error of each partition without records: those of others are locked."""
        try:
            await self._read()
        except KafkaError as error:
            for partition in self.order:
                result = self._result(partition)
                if not result.acquired and not result.error_code:
                    self._fail(partition, error)

    async def _read(self) -> None:
        await self._locate()
        self.unlocks_in_ms = -1
        growing = await self._acquire_available()
        for partition, reads in growing.items():
            if self._is_full or self._size >= self._max_bytes:
                break
            await self._acquire_new(partition, reads)

    async def _locate(self) -> None:
        """Find the log of each partition, or its error."""
        async for partition in in_slices(self.order):
            log = self.logs.get(partition)
            if log is not None and not log.closed:
                continue
            self.logs.pop(partition, None)
            self.results.pop(partition, None)
            found = self._session.partitions.get(partition)
            try:
                topic = await find_topic(self._call, partition)
                if (
                    topic.config.is_record
                ):  # clients list every offset of an acquired range, also those without a record
                    raise UnsupportedForMessageFormat("share groups do not read topics of format record")
                log = self._call.context.logs.partition(topic, partition.index)
                await log.ensure()
                self.logs[partition] = log
            except KafkaError as error:
                was_known = found is not None and found.epoch
                gone = isinstance(error, UnknownTopicId) and was_known
                self._fail(partition, UnknownTopicOrPartition() if gone else error)

    def _fail(self, partition: SharePartition, error: Exception) -> None:
        if isinstance(error, StoreUnavailable | OffsetNotAvailable):  # clients fetch again after this one
            error = KafkaStorageError(error.message)
        code, message = (error.code.value, error.message) if isinstance(error, KafkaError) else (-1, None)
        result = self._result(partition)
        result.error_code, result.error_message = code, message

    def _result(self, partition: SharePartition) -> SharePartitionData:
        return self.results.setdefault(partition, SharePartitionData(partition.index))

    # -- acquiring

    async def _acquire(self, readable: Sequence[Readable]) -> AcquiredRecords:
        if self._is_superseded():
            raise ShareSessionNotFound("the member does not await this fetch")
        acquired = await self._call.context.shares.records.acquire(
            self._session.keys,
            self._session.acquirer,
            readable,
            self._max_records - self._taken,
            exact=self._exact,
            batch_size=self._batch_size,
        )
        self._session.lock_ms = acquired.lock_ms
        self._taken += acquired.record_count
        self._is_full = self._is_full or acquired.is_full
        return acquired

    async def _acquire_available(self) -> dict[SharePartition, Reads]:
        """Acquire what is available again; partitions whose window may grow, and how the group reads."""
        growing: dict[SharePartition, Reads] = {}
        located = [one for one in self.order if one in self.logs]
        at, limit = 0, PARTITIONS_PER_SCRIPT
        while at < len(located):
            part = located[at : at + limit]
            acquired = await self._acquire([Readable(one, self._log_start(one)) for one in part])
            answered = len(acquired.partitions)
            at, limit = at + answered, partitions_after(answered)
            for partition, found in zip(part, acquired.partitions, strict=False):
                if found is None:
                    start_offsets = self._call.context.shares.start_offsets
                    if not await start_offsets.restore(self._session.keys, partition.topic_id.hex, partition.index):
                        self._fail(partition, KafkaError("the share-partition is not initialised"))
                    continue
                self._note(partition, found.epoch, found.end, found.unlocks_in_ms)
                await self._deliver(partition, found.ranges, [])
                if found.is_open:
                    growing[partition] = acquired.reads
            if self._is_full:
                break
        return growing

    def _log_start(self, partition: SharePartition) -> int:
        known = self.logs[partition].known()
        return 0 if known is None else known.log_start_offset

    def _note(self, partition: SharePartition, epoch: str, end: int, unlocks_in_ms: int) -> None:
        read = self._session.partitions.get(partition)
        if read is not None:
            read.epoch, read.end = epoch, end
        if unlocks_in_ms >= 0:
            self.unlocks_in_ms = min(unlocks_in_ms, self.unlocks_in_ms if self.unlocks_in_ms >= 0 else unlocks_in_ms)

    async def _acquire_new(self, partition: SharePartition, reads: Reads) -> None:
        """Acquire records behind the window, when no other fetch does."""
        read = self._session.partitions.get(partition)
        if read is None:
            return
        window = self._call.context.shares.windows.of(self._session.keys, partition)
        async with window.lock:
            await self._extend(window, partition, reads, window.end_of(read.epoch, read.end))

    async def _extend(self, window: Window, partition: SharePartition, reads: Reads, end: int) -> None:
        """Read behind the window and acquire what was read, until there is nothing more, or enough."""
        for _ in range(_PASSES_MAX):
            budget = min(self._max_bytes - self._size, _READ_BYTES)
            if end < 0 or self._is_full or budget <= 0:
                return
            try:
                found = await read_log(self.logs[partition], end, budget, not self._size, reads.is_committed)
            except OffsetOutOfRange:  # the log start has passed the window: the next pass moves it
                return
            except KafkaError as error:
                self._fail(partition, error)
                return
            if not found.size:
                return
            batches = list(iter_headers(b"".join(found.buffers)))
            offered = offered_runs(batches, found.aborted if reads.is_committed else ())
            wanted = self._max_records - self._taken
            if reads.by_key or reads.by_time:
                offered = await single_records(batches, offered, end, wanted, reads)
            else:
                offered = list(enough_runs(offered, end, wanted))
            acquired = await self._acquire([Readable(partition, found.log_start_offset, end, offered)])
            (one,) = acquired.partitions
            if one is None:
                return
            window.epoch, window.end = one.epoch, one.end
            self._note(partition, one.epoch, one.end, one.unlocks_in_ms)
            await self._deliver(partition, one.ranges, batches)
            if not one.is_open or one.end == end:
                return
            end = one.end

    # -- reading what was acquired

    async def _deliver(self, partition: SharePartition, ranges: Sequence[Acquired], batches: Sequence[Batch]) -> None:
        """Add acquired ranges to the answer with the batches that contain them; `batches` have been read already."""
        if not ranges:
            return
        result, known = self._result(partition), {batch.base_offset: batch for batch in batches}
        kept: dict[int, Batch] = {}
        for place, acquired in enumerate(ranges):
            size = sum(batch.size for batch in kept.values())
            if kept and self._size + size >= self._max_bytes:
                await self._put_back(partition, ranges[place:])
                break
            try:
                needed = await self._covering(partition, acquired, known)
            except KafkaError as error:
                self._fail(partition, error)
                await self._put_back(partition, ranges[place:])
                break
            kept.update({batch.base_offset: batch for batch in needed})
            result.acquired.append((acquired.first, acquired.last, acquired.delivery_count))
        before = [(Batch.parse(buffer).base_offset, buffer) for buffer in result.buffers]
        buffers = {base: memoryview(buffer) for base, buffer in before}
        buffers |= {base: batch.buffer for base, batch in kept.items()}
        result.acquired.sort()
        self._size -= result.size
        result.buffers = [buffers[base] for base in sorted(buffers)]
        result.size = sum(map(len, result.buffers))
        self._size += result.size

    async def _covering(self, partition: SharePartition, acquired: Acquired, known: dict[int, Batch]) -> list[Batch]:
        """The batches with records of a range. Offsets without a record (compacted, trimmed) have none."""
        needed = [
            one for one in known.values() if one.base_offset <= acquired.last and one.next_offset > acquired.first
        ]
        offset = max((one.next_offset for one in needed), default=acquired.first)
        if needed and min(one.base_offset for one in needed) > acquired.first:
            offset, needed = acquired.first, []
        if offset <= acquired.last:
            await self._follow_log(partition, acquired.last)
        while offset <= acquired.last:
            try:
                found = await read_log(self.logs[partition], offset, _READ_BYTES, True, False)
            except OffsetOutOfRange:
                break
            if not found.size:
                break
            for batch in iter_headers(b"".join(found.buffers)):
                known[batch.base_offset] = batch
                if batch.base_offset <= acquired.last:
                    needed.append(batch)
            offset = found.end_offset
        return needed

    async def _follow_log(self, partition: SharePartition, offset: int) -> None:
        """Know the log beyond an acquired offset, which another broker may have appended and offered first.

        Clients take an acquired offset without its record for a gap, and finish it. Raises the KafkaError of the log.
        """
        log = self.logs[partition]
        known = log.known()
        if known is None or known.high_watermark <= offset:
            known = await log.latest()
        if known.high_watermark <= offset < known.log_end_offset:
            raise OffsetNotAvailable(f"the high watermark has not passed {offset}")

    async def undo(self) -> None:
        """Undo all deliveries, for nobody awaits the answer; if Redis is away, their locks expire."""
        undone = [
            (partition, "", [Acknowledgement(first, last, UNDO)])
            for partition, result in self.results.items()
            for first, last, _ in result.acquired
        ]
        self.results.clear()
        session, records = self._session, self._call.context.shares.records
        try:
            await records.acknowledge(session.keys, session.acquirer, undone)
        except StoreUnavailable as error:
            logger.warning("share_records_not_released", group=session.keys.ref, reason=str(error))

    async def _put_back(self, partition: SharePartition, ranges: Sequence[Acquired]) -> None:
        """Undo the delivery of ranges that are not in the answer; if Redis is away, their locks expire."""
        undone = [Acknowledgement(one.first, one.last, UNDO) for one in sorted(ranges, key=lambda one: one.first)]
        self._is_full = True
        try:
            await self._call.context.shares.records.acknowledge(
                self._session.keys, self._session.acquirer, [(partition, "", undone)]
            )
        except StoreUnavailable as error:
            self._fail(partition, error)


async def read_log(log: AnyLog, offset: int, bytes_max: int, at_least_one: bool, is_committed: bool) -> Slice:
    """Read whole batches from the one that contains `offset`. Raises the KafkaError of the log."""
    return await result_of(lambda on_slice: log.read(offset, bytes_max, at_least_one, on_slice, is_committed))
