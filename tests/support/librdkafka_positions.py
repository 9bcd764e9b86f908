"""Where librdkafka moves a consumer's position by itself, read from its debug log ("topic,fetch").

Two ways are known, both while partitions move to another leader; neither depends on what a broker answers:

* asked to validate its leader epoch, it goes on from where the fetch last started;
* a ListOffsets that was sent to an earlier leader is answered, or given up, after the new leader has answered the same
  query: librdkafka drops the answer as outdated, asks again for the start that it once looked for, and reads from there
  (`rd_kafka_toppar_handle_Offset` and `rd_kafka_toppar_offset_retry` of 2.15).

A checker may excuse the second reading only where the library's own log says so.
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

    def moved(self, partition: int, offset: int) -> bool:
        """Whether the library went to this offset by itself; each query for the start explains one return to it."""
        if offset == 0 and partition in self._queried_again:
            self._queried_again.discard(partition)
            return True
        return offset == self._validated.get(partition)

    def _emit(self, record: logging.LogRecord) -> None:
        self.read(record.getMessage())

    def read(self, line: str) -> None:
        """Take one line of the log."""
        if found := _VALIDATED.search(line):
            self._validated[int(found[1])] = int(found[2])
        if found := _QUERIED_AGAIN.search(line):
            self._queried_again.add(int(found[1]))
        self._on_line(line)
