"""Share sessions (KIP-932): the share-partitions that a member reads at this broker, remembered between its requests.

A session is in this broker's memory; ShareFetch and ShareAcknowledge share its epoch. At another broker, or after a
restart, the member gets SHARE_SESSION_NOT_FOUND and opens a new one. What the member has acquired is in the store, and
outlives the session if the broker dies; if the session ends otherwise, it is released. Source: ShareSessionCache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Final
from uuid import UUID

from tidegate.groups.share.errors import InvalidShareSessionEpoch, ShareSessionLimitReached, ShareSessionNotFound
from tidegate.store.keys import GroupKeys

FIRST_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_EPOCH_MAX: Final = 2_147_483_647
PARTITION_BYTES: Final = 500
"""Memory of a share-partition in a session."""
CONNECTION_SESSIONS_MAX: Final = 8
"""A client has one session on its connection to a broker."""
CONNECTION_PARTITIONS_MAX: Final = 20_000
"""Share-partitions of the sessions of one connection; in little memory a quarter of those of all."""

_CONNECTION_PARTITIONS_MIN: Final = 1_000


@dataclass(frozen=True, slots=True)
class SharePartition:
    """One partition of a topic that a share group reads."""

    topic_id: UUID
    index: int

    @property
    def name(self) -> str:
        """The partition's name in the group's list of share-partitions."""
        return f"{self.topic_id.hex}:{self.index}"


@dataclass(frozen=True, slots=True)
class Acquirer:
    """Who acquires records: a member, in one of its share sessions; "" for all of them."""

    member_id: str
    session_id: str = ""


@dataclass(slots=True)
class ReadPartition:
    """A share-partition in a session: what this broker last found. `epoch` is "" before the first acquisition."""

    epoch: str = ""
    end: int = -1
    was_found: bool = False


@dataclass(slots=True, eq=False)
class ShareSession:
    """The session of one member. `session_id` is what its acquired records name, so that they end with it."""

    keys: GroupKeys
    member_id: str
    session_id: str
    connection_id: int
    epoch: int = 1
    """The epoch of the next request."""
    partitions: dict[SharePartition, ReadPartition] = field(default_factory=dict)
    released: list[SharePartition] = field(default_factory=list)
    """Partitions that were forgotten while the member may still have acquired records of them."""
    is_ended: bool = False
    """Whether its connection was closed, so that nobody gets what is acquired from now on."""
    next_first: int = 0
    """Where the next fetch begins, so that no busy partition starves the others."""
    on_superseded: set[Callable[[], None]] = field(default_factory=set)
    """Ends the fetches under way: nobody awaits their records."""
    lock_ms: int = 0
    """The duration of the group's locks when a script last read it; 0 before."""

    def advance(self) -> None:
        """Expect the next epoch; after the largest one comes 1."""
        self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1

    def supersede(self) -> None:
        """End the fetches under way: the member closed the session, or went on without their answers."""
        for end in list(self.on_superseded):
            end()

    def rotated(self) -> list[SharePartition]:
        """The partitions in the order of this fetch."""
        ordered = list(self.partitions)
        first = self.next_first % len(ordered) if ordered else 0
        self.next_first = first + 1
        return ordered[first:] + ordered[:first]

    @property
    def acquirer(self) -> Acquirer:
        """The member in this session."""
        return Acquirer(self.member_id, self.session_id)

    def all_partitions(self) -> list[SharePartition]:
        """Every partition of which the member may have acquired records through this session."""
        return list(dict.fromkeys([*self.partitions, *self.released]))

    @property
    def size(self) -> int:
        """How many partitions are remembered."""
        return len(self.partitions) + len(self.released)


class ShareSessions:
    """The share sessions of one broker, up to a number and to `bytes_max` of memory.

    `on_ended` gets those that end because their connection is closed.
    """

    def __init__(self, sessions_max: int, bytes_max: int, on_ended: Callable[[ShareSession], None]) -> None:
        self._max, self._on_ended = sessions_max, on_ended
        self._partitions_max = bytes_max // PARTITION_BYTES
        self._connection_max = min(
            CONNECTION_PARTITIONS_MAX, max(self._partitions_max // 4, _CONNECTION_PARTITIONS_MIN)
        )
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._size = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self, keys: GroupKeys, member_id: str, connection_id: int, wanted: Iterable[SharePartition]
    ) -> ShareSession:
        """Open a member's session in place of any old one, whose locks stay. Raises ShareSessionLimitReached."""
        name = (keys.group, member_id)
        old = self._sessions.get(name)
        if old is None and len(self._sessions) >= self._max:
            raise ShareSessionLimitReached(f"this broker has {self._max} share sessions")
        session = ShareSession(keys, member_id, token_hex(4) if old is None else old.session_id, connection_id)
        found = dict.fromkeys(wanted)
        session.released = [] if old is None else [one for one in old.all_partitions() if one not in found]
        self._check_connection(connection_id, len(found) + len(session.released), old)
        before = {} if old is None else old.partitions
        session.partitions = {partition: before.get(partition) or ReadPartition() for partition in found}
        added = session.size - (0 if old is None else old.size)
        self._check_limit(added)
        if old is not None:
            old.supersede()
        self._size += added
        self._sessions[name] = session
        return session

    def add(self, session: ShareSession, wanted: Iterable[SharePartition]) -> set[SharePartition]:
        """Add partitions to a session; those that are new to it. Raises ShareSessionLimitReached."""
        added = set(wanted).difference(session.partitions)
        if added:
            self._check_connection(session.connection_id, session.size + len(added), session)
            self._check_limit(len(added))
        session.partitions.update((partition, ReadPartition()) for partition in added)
        self._size += len(added)
        return added

    def forget(self, session: ShareSession, forgotten: Iterable[SharePartition]) -> None:
        """Read partitions in a session no more; what was acquired of them is released with it."""
        before, released = session.size, set(session.released)
        for partition in forgotten:
            if session.partitions.pop(partition, None) is not None and partition not in released:
                released.add(partition)
                session.released.append(partition)
        self._size += session.size - before

    def _check_limit(self, added: int) -> None:
        if self._size + added > self._partitions_max:
            raise ShareSessionLimitReached(f"the share sessions of this broker have {self._partitions_max} partitions")

    def _check_connection(self, connection_id: int, size: int, session: ShareSession | None) -> None:
        """Raises ShareSessionLimitReached if a session of this size is too much beside the connection's others."""
        sizes = [
            one.size for one in self._sessions.values() if one.connection_id == connection_id and one is not session
        ]
        if len(sizes) >= CONNECTION_SESSIONS_MAX:
            raise ShareSessionLimitReached(f"the connection has {CONNECTION_SESSIONS_MAX} share sessions")
        if size + sum(sizes) > self._connection_max:
            raise ShareSessionLimitReached(f"a connection's sessions have {self._connection_max} partitions at most")

    def proceed(self, keys: GroupKeys, member_id: str, epoch: int, connection_id: int) -> ShareSession:
        """The session of a request with its next epoch, which is then taken; another connection may continue with it.

        A fetch that is under way on the connection before it ends.
        Raises ShareSessionNotFound, InvalidShareSessionEpoch, ShareSessionLimitReached.
        """
        session = self._sessions.get((keys.group, member_id))
        if session is None:
            raise ShareSessionNotFound("this broker has no session of the member")
        if epoch != session.epoch:
            raise InvalidShareSessionEpoch(f"the next share session epoch is {session.epoch}, not {epoch}")
        if connection_id != session.connection_id:
            self._check_connection(connection_id, session.size, session)
            session.supersede()
            session.connection_id = connection_id
        session.advance()
        return session

    def close(self, keys: GroupKeys, member_id: str) -> ShareSession:
        """Remove a member's session, for the final epoch. Raises ShareSessionNotFound."""
        session = self._sessions.pop((keys.group, member_id), None)
        if session is None:
            raise ShareSessionNotFound("this broker has no session of the member")
        self._size -= session.size
        session.supersede()
        return session

    def close_connection(self, connection_id: int) -> None:
        """End the sessions that a closed connection used last."""
        for name, session in list(self._sessions.items()):
            if session.connection_id == connection_id:
                del self._sessions[name]
                self._size -= session.size
                session.is_ended = True
                session.supersede()
                self._on_ended(session)
