"""Outcomes of transactions, for isolation=read_committed: the last stable offset, and which batches were aborted.

Brokers save what a log's transactions are as of an offset, from time to time; from there on its batches' headers are
read by a script. A log of format record has committed records only.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, NamedTuple

from tidegate.store.keys import LogKeys
from tidegate.store.transaction_events import ABORT, READ_TRANSACTIONS, RECORDS, events_of
from tidegate_pipeline.errors import LogGone
from tidegate_pipeline.sources.reads import Planning, Read

_TRIES: Final = 3
_FIELDS_OF_SNAPSHOT: Final = (b"offset", b"max_timestamp", b"max_timestamp_base", b"aborted")
_TRANSACTION_START_AT: Final = 3


class Aborted(NamedTuple):
    """An aborted transaction: its first offset, and its marker's."""

    producer_id: int
    first: int
    last: int


@dataclass(slots=True)
class Transactions:
    """The transactions of a log up to `position`; `log_start` is Kafka's: outcomes below it are not known."""

    position: int = 0
    log_start: int = 0
    open: dict[int, int] = field(default_factory=dict)
    aborted: list[Aborted] = field(default_factory=list)
    _by_producer: dict[int, list[Aborted]] = field(default_factory=dict)

    def last_stable(self, end: int) -> int:
        """The first offset of the first open transaction; the log's end without one."""
        return min([end, *self.open.values()])

    def is_aborted(self, producer_id: int, offset: int) -> bool:
        """Whether a batch of records is of an aborted transaction."""
        if self.aborted and not self._by_producer:
            for one in sorted(self.aborted):
                self._by_producer.setdefault(one.producer_id, []).append(one)
        of_producer = self._by_producer.get(producer_id, [])
        at = bisect_right(of_producer, offset, key=attrgetter("first")) - 1
        return at >= 0 and offset < of_producer[at].last

    def add(self, events: list[int]) -> None:
        """What a script has read: offset, producer id and kind of each event."""
        self._by_producer.clear()
        for offset, producer_id, kind in events_of(events):
            if kind == RECORDS:
                self.open.setdefault(producer_id, offset)
                continue
            first = self.open.pop(producer_id, offset)
            if kind == ABORT:
                self.aborted.append(Aborted(producer_id, first, offset))


def reading_transactions(keys: LogKeys, known: Transactions | None = None) -> Planning[Transactions]:
    """The transactions of a log of format batch now; continues from `known`. Raises LogGone, PipelineError."""
    found = known
    for attempt in range(1, _TRIES + 1):
        if found is None or attempt > 1:
            found = yield Read(("HGETALL", keys.producers), _from_snapshot)
            assert found is not None
        snapshot = found.position
        is_at_end, is_first = False, True
        while not is_at_end:
            args = (2, keys.log, keys.meta, found.position)
            reply: Any = yield Read(args, _read, READ_TRANSACTIONS, is_bounded=True)
            found.log_start, first, found.position, at_end, events = reply
            if is_first and first > snapshot and attempt < _TRIES:
                break  # trimmed meanwhile: there is a newer snapshot
            found.add(events)
            is_first, is_at_end = False, bool(at_end)
        else:
            break
    assert found is not None
    found.aborted = [one for one in found.aborted if one.last >= found.log_start]
    return found


def _read(reply: Any) -> Any:
    if reply[0]:
        raise LogGone("the topic was deleted")
    return reply[1:]


def _from_snapshot(reply: Any) -> Transactions:
    fields = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
    found = Transactions(int(fields.get(b"offset", 0)))
    for text in fields.get(b"aborted", b"").decode().split(","):
        if text:
            producer_id, first, last, _stable = map(int, text.split(":"))
            found.aborted.append(Aborted(producer_id, first, last))
    for producer_id, state in fields.items():
        parts = state.split(b" ")
        if producer_id not in _FIELDS_OF_SNAPSHOT and len(parts) > _TRANSACTION_START_AT:
            start = int(parts[_TRANSACTION_START_AT])
            if start >= 0:
                found.open[int(producer_id)] = start
    return found
