"""Where librdkafka moves a consumer's position by itself, read from its debug log ("topic,fetch").

Four ways are known, all while partitions move to another leader; none depends on what a broker answers:

* asked to validate its leader epoch, it continues from where the fetch last started;
* a ListOffsets that was sent to an earlier leader is answered, or given up, after the new leader has answered the same
  query: librdkafka drops the answer as outdated, asks again for the start that it once looked for, and reads from there
  (`rd_kafka_toppar_handle_Offset` and `rd_kafka_toppar_offset_retry` of 2.15);
* that query may begin after the partition was revoked: the library fetches from the log start without owning it, and
  hands these records out once the partition is assigned to it again, until the assignment's own position is there;
* a Fetch that was under way when the validation of an epoch began moves the position beyond that epoch's end. The true
  answer, the end of the epoch that was asked for, then looks like a truncation: the library seeks there, and drops the
  records before it that the application has not polled yet (`rd_kafka_toppar_handle_OffsetForLeaderEpoch` of 2.16).

A checker may excuse the move only where the library's own log says so.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Final

DEBUG: Final = "topic,fetch"
"""The setting `debug` of a consumer whose log is read here; `log_level` is to be 7."""
_VALIDATED: Final = re.compile(r"\[(\d+)\]: querying broker for epoch validation of offset (\d+)")
_QUERIED_AGAIN: Final = re.compile(
    r"\[(\d+)\]: outdated offset response: \(re\)starting offset query timer for offset BEG"
)
_OVERTAKEN: Final = re.compile(
    r"\[(\d+)\]: skipping offset validation for offset (\d+) .*: validation is already ongoing"
)
_SOUGHT: Final = re.compile(r"Seek \S+ \[(\d+)\] to offset (\d+) .*in state validate-epoch-wait")


class LibrdkafkaPositions:
    """One consumer of one topic, whose log start is 0 and whose `auto.offset.reset` is `earliest`."""

    def __init__(self, name: str, on_line: Callable[[str], None] = lambda line: None) -> None:
        self.logger = logging.Logger(name, logging.DEBUG)
        handler = logging.Handler()
        handler.emit = self._emit  # type: ignore[method-assign]
        self.logger.addHandler(handler)
        self._on_line = on_line
        self._validated: dict[int, int] = {}
        self._queried_again: set[int] = set()
        self._started_early: set[int] = set()
        self._overtaken: dict[int, int] = {}
        """Partition -> the position that a Fetch reached while an epoch was validated."""
        self._sought: dict[int, int] = {}

    def moved(self, partition: int, offset: int) -> bool:
        """Whether the library went to this offset by itself; each query and each seek explains one move."""
        if offset == 0 and partition in self._queried_again:
            self._queried_again.discard(partition)
            return True
        if partition in self._started_early:
            self._started_early.discard(partition)
            return True
        if offset == self._sought.get(partition):
            del self._sought[partition]
            return True
        return offset == self._validated.get(partition)

    def started(self, partition: int, offset: int) -> bool:
        """Whether the first record after an assignment is one of an earlier query for the log start."""
        if offset != 0 or partition not in self._queried_again:
            return False
        self._queried_again.discard(partition)
        self._started_early.add(partition)
        return True

    def _emit(self, record: logging.LogRecord) -> None:
        self.read(record.getMessage())

    def read(self, line: str) -> None:
        """Take one line of the log."""
        if found := _VALIDATED.search(line):
            self._validated[int(found[1])] = int(found[2])
        if found := _QUERIED_AGAIN.search(line):
            self._queried_again.add(int(found[1]))
        if found := _OVERTAKEN.search(line):
            self._overtaken[int(found[1])] = int(found[2])
        if (found := _SOUGHT.search(line)) and int(found[2]) < self._overtaken.pop(int(found[1]), -1):
            self._sought[int(found[1])] = int(found[2])
        self._on_line(line)
