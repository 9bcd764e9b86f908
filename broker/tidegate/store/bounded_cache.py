"""A cache that is bounded by the bytes that it holds: names are chosen by clients, and may be long."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

ENTRY_BYTES: Final = 500
"""Memory of an entry beside its texts: its slot in the dict, the key's object."""


class BoundedCache(Generic[K, V]):
    """Entries up to `bytes_max`; the oldest are dropped first. `get` is a plain dict lookup, for the hot path.

    With `keeps_one` it holds the newest one, however large.
    """

    __slots__ = ("_bytes", "_bytes_max", "_least", "_sizes", "_values", "get")

    def __init__(self, bytes_max: int, *, keeps_one: bool = False) -> None:
        self._bytes_max = bytes_max
        self._least = int(keeps_one)
        self._bytes = 0
        self._values: dict[K, V] = {}
        self._sizes: dict[K, int] = {}
        self.get = self._values.get

    def __len__(self) -> int:
        return len(self._values)

    @property
    def bytes(self) -> int:
        """The bytes held, as they were given."""
        return self._bytes

    def put(self, key: K, value: V, size: int) -> None:
        """Hold a value of `size` bytes; one above the limit is not held without `keeps_one`."""
        self.drop(key)
        size += ENTRY_BYTES
        if size > self._bytes_max and not self._least:
            return
        self._values[key], self._sizes[key] = value, size
        self._bytes += size
        while self._bytes > self._bytes_max and len(self._values) > self._least:
            self.drop(next(iter(self._values)))

    def drop(self, key: K) -> None:
        """Remove an entry, if there is one."""
        if key in self._values:
            del self._values[key]
            self._bytes -= self._sizes.pop(key)
