"""Pending mirror events of one partition, in order: deliveries by client and commits by group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from tidegate.log.owners import Owned, Reader
from tidegate.log.stream_ids import id_before, id_of
from tidegate.store.keys import LogKeys

_REWINDS_MAX: Final = 8
"""Rewinds (reads below a commit) kept between two writes; more are merged into one."""
_READERS_MAX: Final = 10_000


class Delivered:
    """Deliveries to one client since `since_s`: entry bases in order, and the client's position."""

    __slots__ = ("bases", "position", "since_s")

    def __init__(self, since_s: float) -> None:
        self.bases: list[int] = []
        self.position = ""
        self.since_s = since_s

    def add(self, bases: Sequence[int], position: str) -> None:
        """Append a further delivery."""
        rest = bool(self.bases and bases and self.bases[-1] == bases[0])  # the rest of a partly delivered entry
        self.bases += bases[1:] if rest else bases
        self.position = position


class News:
    """One step of events: the deliveries, by client, then the commits, by group: the highest, then a later lower one.

    `rewound` is the commit of these events that a group rewound from; lower offsets are delivered after that commit.
    """

    __slots__ = ("committed", "delivered", "rewound")

    def __init__(self) -> None:
        self.delivered: dict[Reader, Delivered] = {}
        self.committed: dict[str, list[int]] = {}
        self.rewound: dict[str, int] = {}


class PartitionNews:
    """One partition's events, oldest first, and the known clients and owners.

    `reads` maps a group to the member that this broker last recorded as reading; `owners` dates from `owners_s`.
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

    def position(self, reader: Reader) -> int:
        """The offset after the client's last delivery; -1 if unknown."""
        return self._position.get(reader, -1)

    def fetched(self, reader: Reader, offset: int, end_offset: int, bases: Sequence[int], now_s: float) -> None:
        """A client received records, or reached the log end."""
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
        """Whether an unwritten commit of the client's group is above `offset`, or rewound from above it."""
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
        """All events, to be written one step after the other."""
        news, self._news = self._news, [News()]
        return news

    def put_back(self, reader: Reader, delivered: Delivered) -> None:
        """Keep deliveries that have no owner yet."""
        first = self._news[0].delivered
        newer = first.get(reader)
        if newer is not None:
            delivered.add(newer.bases, newer.position)
        first[reader] = delivered
