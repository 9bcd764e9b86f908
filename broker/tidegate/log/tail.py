"""A bounded LRU cache of recent entries of all partitions. The bytes of (key, log version, id) are immutable.

The cached entries of a log form pages: runs of consecutive entries. Own appends and refreshes extend the last page,
reads of older records add pages. The least recently used page is evicted first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from tidegate.log.entries import Entry

CACHE_BYTES_MAX: Final = 256 << 20
"""Largest cache of a broker; `memory_max` makes it smaller."""
_PAGE_BYTES: Final = 1 << 20
_ENTRY_BYTES: Final = 512
"""Memory of an entry beside its batches: the object, its lists, its writer, its slot in the page."""
_BATCH_BYTES: Final = 256
"""Memory of a batch beside its bytes: the object, its end, the tuple and head that it is served with."""
_COPIED_BYTES_MAX: Final = 4_096
"""Batches up to this mean size are copied when first served, and both copies are kept."""


def held_bytes(entry: Entry) -> int:
    """Upper bound of an entry's memory, including cached copies for serving."""
    batch_count = len(entry.batches)
    copied = entry.size if entry.size <= _COPIED_BYTES_MAX * batch_count else 0
    return entry.size + copied + _ENTRY_BYTES + _BATCH_BYTES * batch_count


def _nothing() -> None:
    """Nobody else holds entries."""


class Page:
    """A run of consecutive entries of one log."""

    __slots__ = ("bases", "entries", "log", "size")

    def __init__(self, log: LogPages) -> None:
        self.log = log
        self.entries: list[Entry] = []
        self.bases: list[int] = []
        self.size = 0

    @property
    def base(self) -> int:
        """The base offset of the first entry."""
        return self.bases[0]

    @property
    def end(self) -> int:
        """The end offset of the last entry."""
        return self.entries[-1].end

    def add(self, entry: Entry) -> int:
        """Append the entry; returns the bytes added."""
        held = held_bytes(entry)
        self.entries.append(entry)
        self.bases.append(entry.base)
        self.size += held
        return held


class TailCache:
    """The pages of all logs: at most `bytes_max` of memory, or the newest page alone; none if 0."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.size = 0
        self._pages: OrderedDict[Page, None] = OrderedDict()

    def touch(self, page: Page) -> None:
        """Mark a page as most recently used."""
        self._pages.move_to_end(page)

    def hold(self, page: Page, added: int) -> None:
        """Account for a page that is new or grew by `added` bytes; evict others."""
        self._pages[page] = None
        self._pages.move_to_end(page)
        self.size += added
        while self.size > self.bytes_max and len(self._pages) > 1:
            oldest = next(iter(self._pages))
            oldest.log.drop(oldest)

    def release(self, page: Page) -> None:
        """Remove a page from the account."""
        if self._pages.pop(page, self) is None:
            self.size -= page.size


class LogPages:
    """The cached pages of one log, in order of offset, not overlapping."""

    __slots__ = ("_bases", "_cache", "_pages", "on_drop")

    def __init__(self, cache: TailCache) -> None:
        self._cache = cache
        self.on_drop: Callable[[], None] = _nothing
        """Called when a page is evicted: whoever holds its entries beside the cache must let them go."""
        self._pages: list[Page] = []
        self._bases: list[int] = []

    def append(self, entry: Entry) -> None:
        """Add the entry after the last one of the log."""
        if not self._cache.bytes_max:
            return
        page = self._pages[-1] if self._pages else None
        if page is None or page.end != entry.base or page.size >= _PAGE_BYTES:
            page = Page(self)
            self._pages.append(page)
            self._bases.append(entry.base)
        self._cache.hold(page, page.add(entry))

    def insert(self, entries: Sequence[Entry]) -> None:
        """Add a run of entries that was read; entries already cached remain."""
        if not self._cache.bytes_max:
            return
        page: Page | None = None
        for entry in entries:
            if self.find(entry.base) is not None:
                page = None
                continue
            if page is None or page.size >= _PAGE_BYTES:
                page = Page(self)
                held = page.add(entry)
                at = bisect_right(self._bases, entry.base)
                self._pages.insert(at, page)
                self._bases.insert(at, entry.base)
            else:
                held = page.add(entry)
            self._cache.hold(page, held)

    def find(self, offset: int) -> tuple[Page, int] | None:
        """The page and index of the first entry that ends above `offset`, if it is cached."""
        at = bisect_right(self._bases, offset) - 1
        if at < 0:
            return None
        page = self._pages[at]
        if offset >= page.end:
            return None
        place = bisect_right(page.bases, offset) - 1
        if page.entries[place].end <= offset:
            place += 1
        return page, place

    def follow(self, page: Page) -> Page | None:
        """The page that continues this one without a gap."""
        at = bisect_right(self._bases, page.base)
        if at < len(self._pages) and self._pages[at].base == page.end:
            return self._pages[at]
        return None

    def touch(self, page: Page) -> None:
        """Mark a page as most recently used."""
        self._cache.touch(page)

    def drop(self, page: Page) -> None:
        """Remove one page."""
        at = bisect_right(self._bases, page.base) - 1
        del self._pages[at], self._bases[at]
        self._cache.release(page)
        self.on_drop()

    def clear(self) -> None:
        """Remove all pages: the state is void."""
        for page in self._pages:
            self._cache.release(page)
        self._pages.clear()
        self._bases.clear()
