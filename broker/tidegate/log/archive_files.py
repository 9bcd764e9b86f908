"""The archive's files as one broker reads them: in threads, concurrent reads of one file combined, with LRU caches.

Only `_open` and `SegmentFile.read` run in a thread; the rest runs on the event loop and performs no file I/O.
pyarrow is imported only where an archive is configured.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from tidegate.log.lru_cache import LruCache
from tidegate.memory import shares_of
from tidegate.records.segments import Segment, SegmentUnreadable
from tidegate.settings import Settings
from tidegate.startup import CannotStart
from tidegate.telemetry import declared
from tidegate.telemetry.metrics import metrics

if TYPE_CHECKING:
    from tidegate.records.segment_file import Batches, SegmentFile

logger = structlog.get_logger()

Key = TypeVar("Key", str, tuple[str, int])
Read = TypeVar("Read")

READ_THREADS: Final = 4
"""Concurrent reads of the archive per broker; each waits for storage, not for the processor."""
READ_TIMEOUT_MS: Final = 10_000
"""A read without a result fails after this time; the client retries."""
FOOTERS_MAX: Final = 256
"""Cached footers, each with an open file; the footer of a segment of 128 MiB takes about 1 MiB, and `memory_max` may
make them fewer."""
CACHE_BYTES_MAX: Final = 64 << 20
"""Bytes of cached row groups; `memory_max` makes it smaller."""
_LOG_INTERVAL_S: Final = 10.0
_BUSY_PER_THREAD: Final = 2
_OF_OPEN_FILES: Final = 4
"""Cached segments use at most one in this many of the process's file descriptors; clients need the rest."""


class ArchiveFiles:
    """The archive of a broker. Without `archive_path` every read raises SegmentUnreadable."""

    def __init__(self, settings: Settings) -> None:
        """Raises CannotStart if the path cannot be opened, or pyarrow is not installed."""
        shares = shares_of(settings.memory_max)
        self.timeout_s = READ_TIMEOUT_MS / 1000
        self.reads = self.bytes = self.failures = self.row_groups_read = 0
        self._filesystem: Any = None
        self._root = ""
        footers_max = min(FOOTERS_MAX, _open_files_max() // _OF_OPEN_FILES)
        self._footers = LruCache[str, "SegmentFile"](shares.archive_footers, footers_max)
        self._row_groups = LruCache[tuple[str, int], "Batches"](min(CACHE_BYTES_MAX, shares.archive_cache))
        self._loading: dict[Any, asyncio.Future[Any]] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._logged_at_s, self._untold = float("-inf"), 0
        if settings.archive_path:
            self._filesystem, self._root = _opened(settings.archive_path)
            self._threads = ThreadPoolExecutor(READ_THREADS, "archive")
            self._measure()

    @property
    def present(self) -> bool:
        """Whether this broker has an archive."""
        return self._filesystem is not None

    @property
    def busy(self) -> bool:
        """Whether the threads have too much queued work for read-ahead."""
        return len(self._loading) >= _BUSY_PER_THREAD * READ_THREADS

    @property
    def size(self) -> int:
        """Bytes of the cached row groups and footers."""
        return self._row_groups.bytes + self._footers.bytes

    def close(self) -> None:
        """Shut the threads down without waiting for a read that hangs."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    # -- reading

    def path_of(self, segment: Segment) -> str:
        """The path of a segment in the archive's filesystem."""
        return f"{self._root}/{segment.file}"

    def cached_footer(self, path: str) -> SegmentFile | None:
        """The opened segment at `path`, if it is cached."""
        return self._footers.get(path)

    def cached_row_group(self, segment: SegmentFile, index: int) -> Batches | None:
        """The row group, if it is cached."""
        return self._row_groups.get((segment.path, index))

    async def footer(self, path: str) -> SegmentFile:
        """The opened segment at `path`. Raises SegmentMissing, SegmentUnreadable."""
        found = self.cached_footer(path)
        if found is None:
            found = await self._shared(path, lambda: self._open(path), self._keep_footer)
        return found

    async def row_group(self, segment: SegmentFile, index: int) -> Batches:
        """One row group of a segment. Raises SegmentMissing, SegmentUnreadable."""
        found = self.cached_row_group(segment, index)
        if found is None:
            found = await self._shared((segment.path, index), lambda: segment.read(index), self._keep_row_group)
        return found

    def forget(self, path: str) -> None:
        """Drop the footer of a file that no longer exists."""
        self._footers.drop(path)

    def _open(self, path: str) -> SegmentFile:
        from tidegate.records.segment_file import SegmentFile

        return SegmentFile(self._filesystem, path)

    async def _shared(self, key: Key, read: Callable[[], Read], keep: Callable[[Key, Read], None]) -> Read:
        """Read in a thread, once for all concurrent callers. Cancelling a caller does not cancel the read."""
        if self._threads is None:
            raise SegmentUnreadable("this broker has no archive: archive_path is not set")
        loading = self._loading.get(key)
        if loading is None:
            loading = self._loading[key] = asyncio.get_running_loop().run_in_executor(self._threads, read)

            def done(future: asyncio.Future[Any]) -> None:
                del self._loading[key]
                if not future.cancelled() and future.exception() is None:
                    keep(key, future.result())

            loading.add_done_callback(done)
        return await asyncio.shield(loading)

    def _keep_footer(self, path: str, footer: SegmentFile) -> None:
        self._footers.put(path, footer, footer.memory_bytes)

    def _keep_row_group(self, key: tuple[str, int], batches: Batches) -> None:
        self.row_groups_read += 1
        self._row_groups.put(key, batches, batches.memory_bytes)

    # -- metrics

    def served(self, size: int, seconds: float, *, cached: bool) -> None:
        """Count a read that returned `size` bytes."""
        self.reads += 1
        self.bytes += size
        metrics.archived_reads("cache" if cached else "archive").observe(seconds)

    def failed(self, log: str, reason: str) -> None:
        """Count a failed read; log at most one every ten seconds."""
        self.failures += 1
        now_s = asyncio.get_running_loop().time()
        if now_s - self._logged_at_s >= _LOG_INTERVAL_S:
            logger.warning("archive_read_failed", log=log, reason=reason, untold=self._untold)
            self._logged_at_s, self._untold = now_s, 0
        else:
            self._untold += 1

    def _measure(self) -> None:
        metrics.sample(declared.ARCHIVE_READS, lambda: {(): self.reads})
        metrics.sample(declared.ARCHIVE_READ_BYTES, lambda: {(): self.bytes})
        metrics.sample(declared.ARCHIVE_READ_FAILURES, lambda: {(): self.failures})
        metrics.sample(declared.ARCHIVE_ROW_GROUPS_READ, lambda: {(): self.row_groups_read})
        metrics.sample(declared.ARCHIVE_CACHE_BYTES, lambda: {(): self.size})


def _open_files_max() -> int:
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if most == resource.RLIM_INFINITY else most


def _opened(path: str) -> tuple[Any, str]:
    try:
        from tidegate.records.segment_file import open_archive
    except ImportError as error:
        missing = f"archive_path needs pyarrow ({error}): pip install 'tidegate[archive]'"
        raise CannotStart(missing) from None
    try:
        return open_archive(path)
    except ValueError as error:
        raise CannotStart(f"{error} (TIDEGATE_ARCHIVE_PATH)") from None
