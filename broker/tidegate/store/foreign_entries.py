"""Entries of the brokers' streams that no broker wrote, such as an XADD by hand: left out, and logged once a stream.

A log's stream is another matter: its entries have offsets, so a foreign one stops the partition (`log.entries`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

import structlog

logger = structlog.get_logger()

UNREADABLE: Final = (AttributeError, LookupError, TypeError, ValueError)
"""What parsing the fields of a foreign entry raises."""
_LOGGED_MAX: Final = 1_000
"""Streams that are remembered as logged; above it they are all forgotten, and logged again."""

StreamEntry = tuple[bytes, Sequence[bytes]]
"""Id, then names and values by turns."""
Parsed = TypeVar("Parsed")


class ForeignEntries:
    """The streams of one broker in which it found foreign entries."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def leave_out(
        self, stream: str, entries: Iterable[StreamEntry], parse: Callable[[bytes, Sequence[bytes]], Parsed | None]
    ) -> list[Parsed]:
        """What `parse` returns for each entry, without None, and without the entries for which it raises UNREADABLE."""
        found: list[Parsed] = []
        for entry_id, fields in entries:
            try:
                parsed = parse(entry_id, fields)
            except UNREADABLE as error:
                self._log(stream, entry_id, error)
            else:
                if parsed is not None:
                    found.append(parsed)
        return found

    def _log(self, stream: str, entry_id: bytes, error: Exception) -> None:
        if stream in self._logged:
            return
        if len(self._logged) >= _LOGGED_MAX:
            self._logged.clear()
        self._logged.add(stream)
        named = entry_id.decode(errors="replace")
        logger.warning("foreign_entry_left_out", stream=stream, entry=named, reason=repr(error))
