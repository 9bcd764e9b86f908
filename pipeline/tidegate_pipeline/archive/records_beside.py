"""The archive beside a log of format record: the same records, in the same order, and no more.

Its batches were built of whatever entries one read returned, so records are compared, not batches. A Redis program may
delete entries (XDEL, XTRIM): what only the archive has is no problem.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any, Final

from tidegate.errors import KafkaError
from tidegate.records.batch import Batch
from tidegate.records.build import NewRecord
from tidegate.records.entry_fields import record_of
from tidegate.records.entry_ids import RecordIds, parse_id
from tidegate.records.record import read_records
from tidegate_pipeline.archive.place import Place
from tidegate_pipeline.errors import LogGone, StrayEntry
from tidegate_pipeline.redis_access import Client, with_whole_entries
from tidegate_pipeline.sources.walking import LogWalker
from tidegate_pipeline.topics import RecordKeys

_PAGE: Final = 256


class LogRecords:
    """The records of one log of format record, as Redis holds them."""

    def __init__(self, client: Client, keys: RecordKeys, retry_s: float) -> None:
        self._client, self._keys, self.ids = with_whole_entries(client), keys, RecordIds(keys.bits)
        self._walker = LogWalker(client, keys, retry_s)

    def offset_range(self) -> tuple[int, int]:
        """The first offset that Redis shows, and the end. Raises StrayEntry, LogGone, PipelineError."""
        offsets = self._walker.offsets()
        return offsets.redis_start, offsets.end

    def between(self, start: int, end: int) -> Iterator[tuple[int, NewRecord]]:
        """Offset and record, in order; entries beyond the sequence bits have no offset and are left out."""
        first, last = self.ids.id_of(start), f"({self.ids.id_of(end)}"
        while reply := self._client.execute_command("XRANGE", self._keys.log, first, last, "COUNT", _PAGE):
            for entry_id, fields in reply:
                offset = self.ids.offset_of(entry_id)
                if offset is not None:
                    yield offset, record_of(fields or (), parse_id(entry_id)[0])
            first = f"({reply[-1][0].decode()}"

    def beside(self, archive_end: int, place: Place, quarantined: Set[int]) -> RecordsBeside:
        """The log, to be followed while the archive's rows go by; no batch of this format is ever quarantined."""
        return RecordsBeside(self, archive_end, place)


class RecordsBeside:
    """As `Beside`. Only the first difference is a problem: others follow from it. `batches` counts those whose records
    the log has all.
    """

    def __init__(self, log: LogRecords, archive_end: int, place: Place) -> None:
        self.batches = 0
        self._place, self._bits = place, log.ids.bits
        self._problem: str | None = None
        self._stored: Iterator[tuple[int, NewRecord]] = iter(())
        self._next: tuple[int, NewRecord] | None = None
        try:
            shown, end = log.offset_range()
        except (StrayEntry, LogGone) as error:
            self._problem = str(error)
            return
        if archive_end > end:
            self._problem = f"the archive claims offsets up to {archive_end - 1}, the log ends at {end}"
            return
        self._stored = log.between(shown, archive_end)
        self._next = next(self._stored, None)

    def take(self, row: dict[str, Any]) -> None:
        """The next row of the archive."""
        if self._problem is not None or self._next is None or row["last_offset"] < self._next[0]:
            return
        try:
            batch = Batch.parse(row["batch"])
            records = read_records(batch)
        except KafkaError:
            return  # what reads the archive reports it
        found = 0
        for record in records:
            self._check_before(record.offset)
            if self._problem is not None:
                return
            if self._next is not None and self._next[0] == record.offset:
                expected = self._next[1]
                ms = record.offset >> self._bits if batch.is_log_append_time else expected.timestamp
                if (ms, expected.key, expected.value, tuple(expected.headers)) != tuple(record[1:]):
                    self._problem = f"the log has another record of offset {record.offset} than the archive"
                    return
                found += 1
                self._next = next(self._stored, None)
        self.batches += found == len(records)

    def _check_before(self, offset: int) -> None:
        if self._next is not None and self._next[0] < offset:
            self._problem = f"the log has a record of offset {self._next[0]}, the archive has not"

    def ended(self) -> list[str]:
        """End of the archive; returns the problems."""
        if self._problem is None and self._next is not None:
            self._problem = f"the log has a record of offset {self._next[0]}, the archive has not"
        return [f"{self._place}: {self._problem}"] if self._problem is not None else []
