"""Ranges of offsets. Imports nothing heavy: planning and the tasks need it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets `start` to `end`, exclusive."""

    start: int
    end: int

    def __contains__(self, offset: int) -> bool:
        return self.start <= offset < self.end
