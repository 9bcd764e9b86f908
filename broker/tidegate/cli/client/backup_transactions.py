"""The aborted transactions of a log, as of its end in a backup.

Brokers store them with a snapshot of the log's producers from time to time; behind it the entries have them. Producers
are not restored, so nothing would end a transaction that is open at the end: a backup ends it as aborted.
"""

from __future__ import annotations

from typing import Any, Final

from tidegate.log import open_transactions, producers_table
from tidegate.log.open_transactions import Aborted, OpenTransactions
from tidegate.store.keys import LogKeys
from tidegate.store.transaction_events import ABORT, READ_TRANSACTIONS, RECORDS, events_of

_READ_BYTES: Final = 4 << 20
_DONE: Final = 0
_FIELDS_OF_LOG: Final = (b"max_timestamp", b"max_timestamp_base")


class LogTransactions:
    """The transactions of a log of format batch up to `offset`, which is at first that of the stored snapshot."""

    def __init__(self, client: Any, keys: LogKeys) -> None:
        self._client, self._keys = client, keys
        self._transactions = OpenTransactions()
        fields: dict[bytes, bytes] = client.hgetall(keys.producers)
        self.offset = int(fields.pop(b"offset", 0))
        aborted = fields.pop(b"aborted", b"").decode()
        self._transactions.aborted = [open_transactions.from_text(one) for one in filter(None, aborted.split(","))]
        for name in _FIELDS_OF_LOG:
            fields.pop(name, None)
        starts = ((producers_table.from_text(one.decode()).transaction_start, int(p)) for p, one in fields.items())
        for start, producer_id in sorted(one for one in starts if one[0] >= 0):
            self._transactions.add(producer_id, start)

    def read_up_to(self, end: int) -> bool:
        """Apply the entries below `end`; False if the first ones are trimmed: then there is a newer snapshot."""
        snapshot, at_end = self.offset, False
        while self.offset < end and not at_end:
            names, at = [self._keys.log, self._keys.meta], self.offset
            code, *reply = self._client.eval(READ_TRANSACTIONS.source, len(names), *names, at, _READ_BYTES)
            if code != _DONE:  # the topic is being deleted
                return True
            _, first, self.offset, at_end, events = reply
            if at == snapshot and first > snapshot:
                return False
            self._apply(events, end)
        return True

    def _apply(self, events: list[int], end: int) -> None:
        for offset, producer_id, kind in events_of(events):
            if offset >= end:
                return
            if kind == RECORDS:
                self._transactions.add(producer_id, offset)
            else:
                self._transactions.end(producer_id, offset, kind == ABORT, is_below=True)

    def aborted_at(self, end: int, archive_end: int) -> str:
        """As text, what is aborted in a log that is restored up to `end`, of transactions with archived records."""
        opened = list(self._transactions.first.items())
        aborted = [*self._transactions.aborted]
        for i, (producer_id, first_offset) in enumerate(opened):
            stable_offset = opened[i + 1][1] if i + 1 < len(opened) else end
            aborted.append(Aborted(producer_id, first_offset, end, stable_offset))
        return ",".join(open_transactions.to_text(one) for one in aborted if one.first_offset < archive_end)
