"""The archive beside the log, where both hold the same offsets: the same batches, in the same order, and no more."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any, Final, NamedTuple

from tidegate.records.batch_header import CRC_AT, CRC_TO_LAST_DELTA
from tidegate.store.keys import LogKeys
from tidegate_pipeline.archive.place import Place
from tidegate_pipeline.errors import LogGone, StrayEntry
from tidegate_pipeline.redis_access import Client, with_whole_entries
from tidegate_pipeline.sources.walking import LogWalker

_PAGE: Final = 16


class StoredBatch(NamedTuple):
    """A batch of the log: its offsets, both inclusive, and its CRC."""

    base: int
    last: int
    crc: int


class LogBatches:
    """The batches of one log, as Redis holds them."""

    def __init__(self, client: Client, keys: LogKeys, retry_s: float) -> None:
        self._client, self._keys = with_whole_entries(client), keys
        self._walker = LogWalker(client, keys, retry_s)

    def offset_range(self) -> tuple[int, int]:
        """The first offset that Redis shows, and the end. Raises StrayEntry, LogGone, PipelineError."""
        offsets = self._walker.offsets()
        return offsets.redis_start, offsets.end

    def below(self, end: int) -> Iterator[StoredBatch]:
        """Those that start below an offset, in order."""
        first = "-"
        while reply := self._client.execute_command("XRANGE", self._keys.log, first, f"{end}-0", "COUNT", _PAGE):
            for entry_id, fields in reply:
                base = int(entry_id.partition(b"-")[0])
                for at in range(0, len(fields), 2):
                    if fields[at] == b"b":
                        crc, _, last_delta = CRC_TO_LAST_DELTA.unpack_from(fields[at + 1], CRC_AT)
                        yield StoredBatch(base, base + last_delta, crc)
                        base += last_delta + 1
            first = f"({reply[-1][0].decode()}"

    def beside(self, archive_end: int, place: Place, quarantined: Set[int]) -> Beside:
        """The log, to be followed while the archive's rows go by."""
        return Beside(self, archive_end, place, quarantined)


class Beside:
    """Follows the log while the archive's rows go by. Only the first difference is a problem: others follow from it.

    `quarantined` are the base offsets of corrupt batches, which the archive leaves out.
    """

    def __init__(self, log: LogBatches, archive_end: int, place: Place, quarantined: Set[int] = frozenset()) -> None:
        self.batches = 0
        self._place = place
        self._problem: str | None = None
        self._stored: Iterator[StoredBatch] = iter(())
        self._next: StoredBatch | None = None
        try:
            shown, end = log.offset_range()
        except (StrayEntry, LogGone) as error:
            self._problem = str(error)
            return
        if archive_end > end:
            self._problem = f"the archive claims offsets up to {archive_end - 1}, the log ends at {end}"
            return
        self._stored = (one for one in log.below(archive_end) if one.base >= shown and one.base not in quarantined)
        self._next = next(self._stored, None)

    def take(self, row: dict[str, Any]) -> None:
        """The next row of the archive."""
        expected = self._next
        if self._problem is not None or expected is None or row["base_offset"] < expected.base:
            return
        if (row["base_offset"], row["last_offset"], row["crc"]) != expected:
            self._problem = (
                f"the log has a batch of offsets {expected.base} to {expected.last}, CRC {expected.crc}; the archive"
                f" {row['base_offset']} to {row['last_offset']}, CRC {row['crc']}"
            )
            return
        self.batches += 1
        self._next = next(self._stored, None)

    def ended(self) -> list[str]:
        """End of the archive; returns the problems."""
        if self._problem is None and self._next is not None:
            self._problem = (
                f"the log has a batch of offsets {self._next.base} to {self._next.last}, the archive has not"
            )
        return [f"{self._place}: {self._problem}"] if self._problem is not None else []
