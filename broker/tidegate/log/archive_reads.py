"""Reads below the local start: whole batches from the archive's row groups, as memoryviews of the cached bytes.

A read of a cached row group calls back at once; otherwise a thread reads the row group first. A result contains the
rest of that row group and following row groups as far as they are cached. A reader that continues where its last
read ended is sequential: its next row group is read ahead. At the local start the next read goes to Redis.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from operator import attrgetter
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from tidegate.errors import KafkaError, KafkaStorageError, StoreUnavailable
from tidegate.log.archived import segments_holding
from tidegate.log.entries import Buffer
from tidegate.records.segments import Segment, SegmentMissing, SegmentUnreadable
from tidegate.store.calls import error_of
from tidegate.store.tasks import TaskSet

if TYPE_CHECKING:
    from tidegate.log.cached_log import CachedLog
    from tidegate.records.segment_file import Batches, RowGroup, SegmentFile

Found = TypeVar("Found")

_INDEX_SEGMENTS: Final = 16
_KNOWN_MAX: Final = 256
_SEGMENT_BYTES: Final = 1_024
"""Memory of a known segment."""
_READERS_MAX: Final = 64
_LAST: Final = attrgetter("last_offset")


class ArchivedRead(NamedTuple):
    """Whole batches from the archive, their bytes, and the offset after them."""

    buffers: list[Buffer]
    size: int
    end_offset: int


OnArchive = Callable[["ArchivedRead | KafkaError"], None]


class ArchiveReads:
    """The reads of one partition below its local start."""

    __slots__ = ("_ahead", "_ends", "_files", "_log", "_segments", "_tasks")

    def __init__(self, log: CachedLog) -> None:
        self._log = log
        self._files = log.archive_files
        self._segments: list[Segment] = []
        self._ends: OrderedDict[int, None] = OrderedDict()
        self._ahead: asyncio.Task[None] | None = None
        self._tasks = TaskSet()

    @property
    def is_idle(self) -> bool:
        """Whether no read is under way."""
        return not self._tasks and (self._ahead is None or self._ahead.done())

    @property
    def held_bytes(self) -> int:
        """Upper bound of the memory of the known segments."""
        return _SEGMENT_BYTES * len(self._segments)

    def read(self, offset: int, limit: int, bytes_max: int, at_least_one: bool, on_done: OnArchive) -> None:
        """Read whole batches that start below `limit`, from the one that contains `offset`; `limit` is above `offset`.

        Calls back at once if the row group is cached. An empty result means that no batch fits `bytes_max`, or, with
        an `end_offset` above `offset`, that the archive has no batch up to there. Errors arrive as KafkaStorageError.
        """
        asked_s = perf_counter()
        batches = self._at_hand(offset)
        if batches is not None:
            found = self._gathered(batches, offset, limit, bytes_max, at_least_one)
            self._files.served(found.size, perf_counter() - asked_s, cached=True)
            on_done(found)
            return

        async def run() -> ArchivedRead:
            batches = await self.row_group(offset, limit)
            found = ArchivedRead([], 0, limit)
            if batches is not None:
                found = self._gathered(batches, offset, limit, bytes_max, at_least_one)
            self._files.served(found.size, perf_counter() - asked_s, cached=False)
            return found

        def done(task: asyncio.Task[ArchivedRead]) -> None:  # a task cancelled before it starts runs no code
            if task.cancelled():
                self._log.guarded(on_done, KafkaStorageError("the log is closed"))
                return
            failure = task.exception()
            outcome = task.result() if failure is None else error_of(failure, "archive_read_failed")
            self._log.guarded(on_done, outcome)

        self._tasks.start(run()).add_done_callback(done)

    async def row_group(self, offset: int, limit: int) -> Batches | None:
        """The row group of the first batch that ends above `offset`; None if no such batch starts below `limit`.

        Raises KafkaStorageError, StoreUnavailable.
        """
        return await self._answered(lambda: self._load(offset, limit))

    async def footer_of_row_group(self, offset: int, limit: int) -> RowGroup | None:
        """The footer's entry for that row group. Raises KafkaStorageError, StoreUnavailable."""
        located = await self._answered(lambda: self._locate(offset, limit))
        return None if located is None else located[0].row_groups[located[1]]

    async def _answered(self, work: Callable[[], Awaitable[Found]]) -> Found:
        """Apply the time limit, and turn every failure of a file into KafkaStorageError."""
        try:
            async with asyncio.timeout(self._files.timeout_s):
                return await _while_replaced(work)
        except StoreUnavailable:
            raise
        except TimeoutError:
            reason = f"no answer from the archive within {self._files.timeout_s:g} s"
        except Exception as error:  # noqa: BLE001 - a damaged file can raise anything
            reason = str(error) or repr(error)
        self._files.failed(self._log.keys.log, reason)
        raise KafkaStorageError(reason)

    def close(self) -> None:
        """Cancel the reads; their callers receive KafkaStorageError."""
        self._tasks.cancel()

    # -- finding

    def _at_hand(self, offset: int) -> Batches | None:
        """The row group that contains the offset, if it is cached."""
        segment = self._known(offset)
        footer = self._files.cached_footer(self._files.path_of(segment)) if segment is not None else None
        return self._files.cached_row_group(footer, footer.find(offset)) if footer is not None else None

    def _known(self, offset: int) -> Segment | None:
        at = bisect_left(self._segments, offset, key=_LAST)
        return self._segments[at] if at < len(self._segments) and self._segments[at].from_offset <= offset else None

    async def _load(self, offset: int, limit: int) -> Batches | None:
        """Raises SegmentUnreadable, StoreUnavailable."""
        located = await self._locate(offset, limit)
        if located is None:
            return None
        try:
            return await self._files.row_group(*located)
        except SegmentMissing:
            self._forget(located[0].path)
            raise

    async def _locate(self, offset: int, limit: int) -> tuple[SegmentFile, int] | None:
        """Segment and row-group index of the first batch that ends above the offset; None if none starts below `limit`.

        A segment lacks quarantined batches, which may be its last batches or all of them.
        """
        while offset < limit:
            segment, file = await self._opened(offset)
            index = file.find(offset)
            if index < len(file.row_groups):
                return file, index
            offset = segment.end_offset
        return None

    async def _opened(self, offset: int) -> tuple[Segment, SegmentFile]:
        segment = self._known(offset) or await self._find(offset)
        path = self._files.path_of(segment)
        try:
            return segment, await self._files.footer(path)
        except SegmentMissing:
            self._forget(path)
            raise

    def _forget(self, path: str) -> None:
        self._segments = []
        self._files.forget(path)

    async def _find(self, offset: int) -> Segment:
        """Read the index for the segment that contains the offset and for the next ones."""
        found = await segments_holding(self._log, offset, _INDEX_SEGMENTS)
        if not found or found[0].from_offset > offset:
            raise SegmentUnreadable(f"the archive does not hold offset {offset}")
        known = {segment.last_offset: segment for segment in (*self._segments, *found)}
        self._segments = [known[last] for last in sorted(known)] if len(known) <= _KNOWN_MAX else found
        return found[0]

    # -- taking

    def _gathered(self, batches: Batches, offset: int, limit: int, bytes_max: int, at_least_one: bool) -> ArchivedRead:
        """Whole batches from `offset`, out of `batches` and the cached row groups that follow it."""
        buffers: list[Buffer] = []
        size, at = 0, offset
        following: Batches | None = batches
        while following is not None:
            batches = following
            first, stop = batches.find(at), bisect_left(batches.bases, limit)
            count = min(batches.fit(first, bytes_max - size), stop - first)
            if count <= 0 and first < stop and at_least_one and not size:
                count = 1
            if count > 0:
                run = batches.data[batches.starts[first] : batches.starts[first + count]]
                buffers.append(run)
                size += len(run)
                at = batches.lasts[first + count - 1] + 1
            if stop < len(batches) and first + max(count, 0) == stop:
                at = max(at, limit)
            following = self._at_hand(at) if first + count == len(batches) and at < limit and size < bytes_max else None
        self._record_progress(offset, at, batches.lasts[-1] + 1, limit)
        return ArchivedRead(buffers, size, at)

    def _record_progress(self, offset: int, end: int, next_row_group: int, limit: int) -> None:
        """Record that a read covered `offset` to `end`; if it continued an earlier one, start the read-ahead."""
        sequential = self._ends.pop(offset, self) is None
        self._ends[end] = None
        if len(self._ends) > _READERS_MAX:
            self._ends.popitem(last=False)
        idle = self._ahead is None or self._ahead.done()
        if (
            sequential
            and idle
            and next_row_group < limit
            and not self._files.busy
            and not self._at_hand(next_row_group)
        ):
            self._ahead = self._tasks.start(self._read_ahead(next_row_group, limit))

    async def _read_ahead(self, offset: int, limit: int) -> None:
        with contextlib.suppress(Exception):  # a later read of this row group reports the failure
            await self._load(offset, limit)


async def _while_replaced(work: Callable[[], Awaitable[Found]]) -> Found:
    """Repeat while each attempt misses a different file: compaction replaces files during a read."""
    missing = ""
    while True:
        try:
            return await work()
        except SegmentMissing as error:
            if str(error) == missing:
                raise
            missing = str(error)
