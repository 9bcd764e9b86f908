"""What the mirrors of a partition have to show next: who was handed what, and what was committed, in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from tidegate.log.owners import Owned, Reader
from tidegate.log.stream_ids import id_before, id_of
from tidegate.store.keys import LogKeys

_REWINDS_MAX: Final = 8
"""Times that clients may read behind a commit between two writes; more are shown as one."""
_READERS_MAX: Final = 10_000


class Delivered:
    """What one client was handed since `since_s`: bases of entries, in order, and where it stands now."""

    __slots__ = ("bases", "position", "since_s")

    def __init__(self, since_s: float) -> None:
        self.bases: list[int] = []
        self.position = ""
        self.since_s = since_s

    def add(self, bases: Sequence[int], position: str) -> None:
        """More of it."""
        rest = bool(self.bases and bases and self.bases[-1] == bases[0])  # of an entry that was handed out in part
        self.bases += bases[1:] if rest else bases
        self.position = position


class News:
    """What happened: first the reads, by client, then the commits, by group: the highest, and a later one below it.

    `rewound` has the commit that one of this news went back behind: what is read below it is read after that.
    """

    __slots__ = ("committed", "delivered", "rewound")

    def __init__(self) -> None:
        self.delivered: dict[Reader, Delivered] = {}
        self.committed: dict[str, list[int]] = {}
        self.rewound: dict[str, int] = {}


class PartitionNews:
    """One partition's news, oldest first, and what is known of its readers and owners.

    `reads` maps a group to the member that this broker showed reading last; `owners` is as of `owners_s`.
    """

    __slots__ = (
        "_committed",
        "_news",
        "_position",
        "keys",
        "mirror_keys",
        "org",
        "owners",
        "owners_s",
        "reads",
        "used_s",
    )

    def __init__(self, org: str, keys: LogKeys) -> None:
        self.org = org
        self.keys = keys
        self.mirror_keys = [keys.log, keys.owners, keys.acknowledged]
        self.reads: dict[str, str] = {}
        self.owners: dict[Reader, list[Owned]] = {}
        self.owners_s = self.used_s = float("-inf")
        self._news = [News()]
        self._position: dict[Reader, int] = {}
        self._committed: dict[str, int] = defaultdict(int)

    def stands(self, reader: Reader) -> int:
        """The offset behind what a client was handed last; -1 if that is not known."""
        return self._position.get(reader, -1)

    def fetched(self, reader: Reader, offset: int, end_offset: int, bases: Sequence[int], now_s: float) -> None:
        """A client was handed records, or came to stand at an end."""
        if len(self._position) >= _READERS_MAX and reader not in self._position:
            self._position.clear()
        self._position[reader] = end_offset
        if self._is_committed(reader, offset) and len(self._news) < _REWINDS_MAX:
            self._news.append(News())
        delivered = self._news[-1].delivered
        if reader not in delivered:
            delivered[reader] = Delivered(now_s)
        delivered[reader].add(bases, id_of(bases[-1]) if bases else id_before(end_offset))

    def _is_committed(self, reader: Reader, offset: int) -> bool:
        """Whether a commit still to be written is above what is read only now, or went back from there."""
        committed, rewound = self._news[-1].committed, self._news[-1].rewound
        owned = self.owners.get(reader)
        commits = committed.values() if owned is None else [committed.get(one.group_id, [-1]) for one in owned]
        return any(offset < highest for highest, *_ in commits) or (
            bool(rewound) and any(offset < rewound.get(group_id, -1) for group_id in committed)
        )

    def committed(self, group_id: str, offset: int) -> None:
        """A group committed an offset."""
        news = self._news[-1]
        highest = news.committed.get(group_id, (offset,))[0]
        news.committed[group_id] = [highest, offset] if offset < highest else [offset]
        before = self._committed[group_id]
        if offset < before:
            news.rewound[group_id] = max(before, news.rewound.get(group_id, -1))
        self._committed[group_id] = offset

    def take(self) -> list[News]:
        """All the news, to be shown one after the other."""
        news, self._news = self._news, [News()]
        return news

    def put_back(self, reader: Reader, delivered: Delivered) -> None:
        """It cannot be shown yet."""
        first = self._news[0].delivered
        newer = first.get(reader)
        if newer is not None:
            delivered.add(newer.bases, newer.position)
        first[reader] = delivered
