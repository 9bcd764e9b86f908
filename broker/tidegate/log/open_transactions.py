"""The open transactions of a log and the index of its aborted ones; the last stable offset follows from them. Pure.

Both are functions of the log. A transaction that ended stays unstable until its marker is below the high watermark,
because a fail-over may lose the marker until then. Source: Kafka's ProducerStateManager and TransactionIndex.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import Final, NamedTuple

PER_SLICE: Final = 1_000
"""Aborted transactions formatted or parsed before the event loop runs other work: about 3 ms."""
_LAST: Final = attrgetter("last_offset")


class Aborted(NamedTuple):
    """An aborted transaction: its first offset, its marker's offset, and the last stable offset behind the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    stable_offset: int


class OpenTransactions:
    """The transactions of one log; `first` by producer id is in order of first offset, `aborted` in that of markers."""

    __slots__ = ("aborted", "ended", "first")

    def __init__(self) -> None:
        self.first: dict[int, int] = {}
        self.ended: list[tuple[int, int]] = []
        """First offset and marker offset of transactions whose marker is not below the high watermark yet."""
        self.aborted: list[Aborted] = []

    def __len__(self) -> int:
        """How many transactions are held in memory: open, ended and aborted ones."""
        return len(self.first) + len(self.ended) + len(self.aborted)

    def first_unstable(self, high_watermark: int) -> int:
        """The first offset of the first unstable transaction; the high watermark without one."""
        if self.ended and self.ended[0][1] < high_watermark:
            self.ended = [one for one in self.ended if one[1] >= high_watermark]
        first = min((one[0] for one in self.ended), default=high_watermark)
        return min(first, next(iter(self.first.values()), high_watermark))

    def add(self, producer_id: int, first_offset: int) -> None:
        """A transactional batch was appended; only the first one of a transaction changes anything."""
        self.first.setdefault(producer_id, first_offset)

    def end(self, producer_id: int, marker_offset: int, is_aborted: bool, is_below: bool) -> None:
        """A marker was appended. `is_below`: it is already below the high watermark."""
        first_offset = self.first.pop(producer_id, -1)
        if first_offset < 0:
            return
        if not is_below:
            self.ended.append((first_offset, marker_offset))
        if is_aborted:
            stable_offset = next(iter(self.first.values()), marker_offset + 1)
            self.aborted.append(Aborted(producer_id, first_offset, marker_offset, stable_offset))

    def aborted_between(self, offset: int, end_offset: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions with records between the offsets."""
        found: list[tuple[int, int]] = []
        for i in range(bisect_left(self.aborted, offset, key=_LAST), len(self.aborted)):
            one = self.aborted[i]
            if one.first_offset < end_offset:
                found.append((one.producer_id, one.first_offset))
            if one.stable_offset >= end_offset:
                break
        return found

    def discard_below(self, offset: int) -> None:
        """Forget aborted transactions that end below an offset: no batch of theirs is left."""
        if self.aborted and self.aborted[0].last_offset < offset:
            self.aborted = [one for one in self.aborted if one.last_offset >= offset]


def to_text(aborted: Aborted) -> str:
    """Serialize one aborted transaction: `<producer id>:<first offset>:<marker offset>:<stable offset>`."""
    return ":".join(map(str, aborted))


def from_text(text: str) -> Aborted:
    """The reverse of `to_text`. Raises ValueError."""
    return Aborted(*map(int, text.split(":")))
