"""Pending mirror events of one partition, in order: deliveries by client and commits by group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Sequence
from typing import Final

from tidegate.log.entries import id_before, id_of
from tidegate.log.owners import Connection, Owned, Reader
from tidegate.store.keys import LogKeys

_REWINDS_MAX: Final = 8
"""Rewinds (reads below a commit) kept between two writes; more are merged into one."""
_READERS_MAX: Final = 10_000
SILENT_S: Final = 5.0
"""A connection without a fetch for so long may have been replaced; clients wait 0.5 s for records by default."""


class Delivered:
    """Deliveries to one connection since `since_s`: entry bases in order, and the client's position."""

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
    """One step of events: the deliveries by connection, then the commits by group: the highest, then a later lower one.

    `rewound` is the commit of these events that a group rewound from; lower offsets are delivered after that commit.
    """

    __slots__ = ("committed", "delivered", "rewound")

    def __init__(self) -> None:
        self.delivered: dict[Connection, Delivered] = {}
        self.committed: dict[str, list[int]] = {}
        self.rewound: dict[str, int] = {}


class Reading:
    """Which of the connections with one client id and host reads a partition for its owner.

    A Fetch names no member, and clients with the default id of their library share id and host. The first connection
    counts; another one counts instead once the first has ended or been silent for SILENT_S. If both continue, it is
    unknown which of them is the owner's: `is_shared`.
    """

    __slots__ = ("_fetches", "current", "current_s", "is_shared", "other", "owner")

    def __init__(self, connection: Connection, now_s: float) -> None:
        self.current = connection
        self.other: Connection | None = None
        self.is_shared = False
        self.owner = b""
        self.current_s, self._fetches = now_s, 0

    def fetched(self, connection: Connection, now_s: float) -> None:
        """A connection was answered. One answer of the first may have been under way when the other began."""
        if connection != self.current:
            self._fetches = self._fetches if self.other else 0
            self.other = connection
            return
        self.current_s = now_s
        if self.other is not None:
            self._fetches += 1
            self.is_shared = self._fetches > 1

    def renew(self, owner: bytes) -> None:
        """The owner's record is known, or another: forget who read for the one before."""
        if self.owner:
            self.is_shared, self.other, self._fetches = False, None, 0
        self.owner = owner

    def may_take_over(self, now_s: float, open_connections: Container[int]) -> bool:
        """Whether the first connection has ended, or is silent."""
        return now_s - self.current_s >= SILENT_S or self.current[2] not in open_connections

    def take_over(self, connection: Connection, now_s: float) -> None:
        """Another connection reads for the owner from now on; the former one may come again, as another."""
        self.current, self.other, self.current_s, self._fetches = connection, None, now_s, 0


class PartitionNews:
    """One partition's events, oldest first, and the known clients and owners.

    `judged_readers` are the connections that `read_by` need not judge again: those beside which no other one reads with
    the same client id and host, and those that are known to share them.
    `reads` maps a group to the member that this broker last recorded as reading; `owners` dates from `owners_s`.
    """

    __slots__ = (
        "_committed",
        "_news",
        "_position",
        "judged_readers",
        "keys",
        "mirror_keys",
        "org",
        "owners",
        "owners_s",
        "readings",
        "reads",
        "used_s",
    )

    def __init__(self, org: str, keys: LogKeys) -> None:
        self.org = org
        self.keys = keys
        self.mirror_keys = [keys.log, keys.owners, keys.acknowledged]
        self.reads: dict[str, str] = {}
        self.owners: dict[Reader, list[Owned]] = {}
        self.readings: dict[Reader, Reading] = {}
        self.judged_readers: dict[Connection, Reading] = {}
        self.owners_s = self.used_s = float("-inf")
        self._news = [News()]
        self._position: dict[Connection, int] = {}
        self._committed: dict[str, int] = defaultdict(int)

    def position(self, connection: Connection) -> int:
        """The offset after the connection's last delivery; -1 if unknown."""
        return self._position.get(connection, -1)

    def read_by(self, connection: Connection, now_s: float) -> None:
        """A connection was answered, maybe without records, that is not judged yet."""
        reader = connection[:2]
        reading = self.readings.get(reader)
        if reading is None:
            if len(self.readings) >= _READERS_MAX:
                self.readings.clear()
                self.judged_readers.clear()
            self.judged_readers[connection] = self.readings[reader] = Reading(connection, now_s)
            return
        reading.fetched(connection, now_s)
        if reading.is_shared or reading.other is None:
            self.judged_readers[connection] = reading
        else:
            self.judged_readers.pop(reading.current, None)

    def renew(self, reading: Reading, owner: bytes) -> None:
        """Judge again who reads for an owner."""
        reading.renew(owner)
        self.judged_readers.clear()

    def fetched(self, connection: Connection, offset: int, end_offset: int, bases: Sequence[int], now_s: float) -> None:
        """A client received records, or reached the log end."""
        if len(self._position) >= _READERS_MAX and connection not in self._position:
            self._position.clear()
        self._position[connection] = end_offset
        if self._is_committed(connection, offset) and len(self._news) < _REWINDS_MAX:
            self._news.append(News())
        delivered = self._news[-1].delivered
        if connection not in delivered:
            delivered[connection] = Delivered(now_s)
        delivered[connection].add(bases, id_of(bases[-1]) if bases else id_before(end_offset))

    def fetched_together(
        self, connections: Sequence[Connection], offset: int, end_offset: int, bases: Sequence[int], now_s: float
    ) -> None:
        """Several clients received the same entries, which are at least one."""
        if self._news[-1].committed or len(self._position) + len(connections) > _READERS_MAX:
            for connection in connections:
                self.fetched(connection, offset, end_offset, bases, now_s)
            return
        positions, delivered, position = self._position, self._news[-1].delivered, id_of(bases[-1])
        for connection in connections:
            positions[connection] = end_offset
            found = delivered.get(connection)
            if found is None:
                found = delivered[connection] = Delivered(now_s)
            found.add(bases, position)

    def _is_committed(self, connection: Connection, offset: int) -> bool:
        """Whether an unwritten commit of the client's group is above `offset`, or rewound from above it."""
        committed, rewound = self._news[-1].committed, self._news[-1].rewound
        if not committed:
            return False
        owned = self.owners.get(connection[:2])
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

    def put_back(self, connection: Connection, delivered: Delivered) -> None:
        """Keep deliveries that are not written yet."""
        first = self._news[0].delivered
        newer = first.get(connection)
        if newer is not None:
            delivered.add(newer.bases, newer.position)
        first[connection] = delivered

    def put_back_commits(self, group_id: str, offsets: Sequence[int]) -> None:
        """Keep a group's commits that are not written yet, with those since."""
        first = self._news[0].committed
        newer = first.get(group_id, offsets)
        highest, last = max(*offsets, *newer), newer[-1]
        first[group_id] = [highest, last] if last < highest else [last]
