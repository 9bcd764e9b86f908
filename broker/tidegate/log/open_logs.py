"""The logs that a broker has in memory: those in use, and idle ones as far as their share of `memory_max` allows.

An idle log has nothing that is not in Redis. It is removed only while no other object refers to it: no partition has
two logs that disagree. Its next use makes and loads it anew.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

CHECKS_MAX: Final = 32
"""Logs that are checked for one that is added: those in use are passed over."""


class OpenLog(Protocol):
    """What the cache needs of a log."""

    counted_bytes: int
    """Its bytes, as the cache counts them."""
    own_references: int
    """References to it from the cache and from its own components."""
    queued_s: float
    """When it was last put behind the others."""

    @property
    def closed(self) -> bool:
        """Whether the log is closed, and so was removed."""

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits in it, and it has nothing that is not in Redis."""

    @property
    def used_s(self) -> float:
        """When its state was last verified; 0 without a state."""

    @property
    def memory_bytes(self) -> int:
        """Upper bound of its memory, beside the pages in the tail cache."""

    def release(self) -> None:
        """Free its memory: nobody uses it."""


Log = TypeVar("Log", bound=OpenLog)


class OpenLogs(OrderedDict[tuple[str, int], Log]):
    """By topic id and index, in the order in which they are checked: a log used since its last check is passed over."""

    def __init__(self, bytes_max: int, time_s: Callable[[], float]) -> None:
        super().__init__()
        self._bytes_max, self._time_s = bytes_max, time_s
        self.bytes = 0
        self.evictions = 0

    def add(self, key: tuple[str, int], make: Callable[[], Log]) -> Log:
        """Make a log, in place of idle ones if there are too many."""
        self[key] = make()
        self[key].own_references = self._references(key)
        self[key].queued_s = self._time_s()
        self.loaded(self[key])
        return self[key]

    def loaded(self, log: Log) -> None:
        """A log takes more memory: remove idle ones if there are too many."""
        self.measure(log)
        self.evict(CHECKS_MAX)

    def measure(self, log: Log) -> None:
        """Count the memory that a log has by now."""
        if not log.closed:
            before, log.counted_bytes = log.counted_bytes, log.memory_bytes
            self.bytes += log.counted_bytes - before

    def remove(self, key: tuple[str, int]) -> Log:
        """Remove and return a log."""
        log = self.pop(key)
        self.bytes -= log.counted_bytes
        return log

    def evict(self, checks_max: int) -> None:
        """Remove idle logs until the others fit; check at most so many, and never the newest."""
        for _ in range(min(checks_max, len(self) - 1)):
            if self.bytes <= self._bytes_max:
                return
            self._check(next(iter(self)))

    def _check(self, key: tuple[str, int]) -> None:
        if self._references(key) == self[key].own_references and self._is_unused(self[key]):
            self.remove(key).release()
            self.evictions += 1
        else:
            self.move_to_end(key)

    def _is_unused(self, log: Log) -> bool:
        queued_s, log.queued_s = log.queued_s, self._time_s()
        self.measure(log)
        return log.used_s <= queued_s and log.is_idle

    def _references(self, key: tuple[str, int]) -> int:
        return sys.getrefcount(self[key])
