"""What the mirrors of a partition have to show next: who was handed what, and what was committed, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker.log.owners import Owned, Reader
from broker.store.keys import LogKeys

_REWINDS_MAX: Final = 8
"""Times that clients may go back behind a commit between two writes; more are shown as one."""
_READERS_MAX: Final = 10_000


class Delivered:
    """What one client was handed since `since_s`: bases of entries, in order, and the offset behind."""

    __slots__ = ("bases", "end_offset", "since_s")

    def __init__(self, since_s: float) -> None:
        self.bases: list[int] = []
        self.end_offset = 0
        self.since_s = since_s

    def add(self, bases: Sequence[int], end_offset: int) -> None:
        """More of it."""
        rest = bool(self.bases and bases and self.bases[-1] == bases[0])  # of an entry that was handed out in part
        self.bases += bases[1:] if rest else bases
        self.end_offset = end_offset


class News:
    """What happened: first the reads, by client, then the commits, by group."""

    __slots__ = ("committed", "delivered")

    def __init__(self) -> None:
        self.delivered: dict[Reader, Delivered] = {}
        self.committed: dict[str, int] = {}


class PartitionNews:
    """One partition's news, oldest first, and what is known of its readers and owners.

    `reads` maps a group to the member that this broker showed reading last; `owners` is as of `owners_s`.
    """

    __slots__ = ("_news", "_stands", "keys", "org", "owners", "owners_s", "reads", "used_s")

    def __init__(self, org: str, keys: LogKeys) -> None:
        self.org = org
        self.keys = keys
        self.reads: dict[str, str] = {}
        self.owners: dict[Reader, list[Owned]] = {}
        self.owners_s = self.used_s = float("-inf")
        self._news = [News()]
        self._stands: dict[Reader, int] = {}

    def fetched(self, reader: Reader, offset: int, end_offset: int, bases: Sequence[int], now_s: float) -> bool:
        """A client was handed records; whether that is news: it asks at the end again and again."""
        stood = self._stands.get(reader, -1)
        if not bases and stood == offset:
            return False
        if stood < 0 and len(self._stands) >= _READERS_MAX:
            self._stands.clear()
        self._stands[reader] = end_offset
        if offset < stood and self._news[-1].committed and len(self._news) < _REWINDS_MAX:
            self._news.append(News())  # what is read again awaits a commit again
        delivered = self._news[-1].delivered
        if reader not in delivered:
            delivered[reader] = Delivered(now_s)
        delivered[reader].add(bases, end_offset)
        return True

    def committed(self, group_id: str, offset: int) -> None:
        """A group committed an offset."""
        self._news[-1].committed[group_id] = offset

    def take(self) -> list[News]:
        """All the news, to be shown one after the other."""
        news, self._news = self._news, [News()]
        return news

    def put_back(self, reader: Reader, delivered: Delivered) -> None:
        """It cannot be shown yet."""
        first = self._news[0].delivered
        newer = first.get(reader)
        if newer is not None:
            delivered.add(newer.bases, newer.end_offset)
        first[reader] = delivered
