"""A cache that is bounded by the bytes and the number of its entries; it drops the least recently used first."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """At most `count_max` entries, of at most `bytes_max` together."""

    __slots__ = ("_bytes_max", "_count_max", "_entries", "bytes")

    def __init__(self, bytes_max: int, count_max: int = sys.maxsize) -> None:
        self._bytes_max, self._count_max = bytes_max, count_max
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """The value, which is then the most recently used."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Add a value of `size` bytes; one above the limit is not cached, and evicts no other."""
        self.drop(key)
        if size > self._bytes_max:
            return
        self._entries[key] = value, size
        self.bytes += size
        while self.bytes > self._bytes_max or len(self._entries) > self._count_max:
            self.bytes -= self._entries.popitem(last=False)[1][1]

    def drop(self, key: K) -> None:
        """Remove an entry, if there is one."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.bytes -= entry[1]

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
        self.bytes = 0
