"""Fetch sessions (KIP-227): the partitions that a client fetches, remembered between its requests.

A session is in this broker's memory and belongs to one connection; on another broker the client gets
FETCH_SESSION_ID_NOT_FOUND and opens a new one. A partition that was read to its end and has not changed since is not
evaluated again, so a request costs what has changed, not what is subscribed. Source: FetchSession.scala.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from kio.schema.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.fetch.v18.request import FetchRequest

    from tidegate.log.logs import FetchedLog
    from tidegate.log.owners import Connection
    from tidegate.log.read import Slice
    from tidegate.protocol.log_writers import FetchPartition, SharedFetch
    from tidegate.topics.model import Topic

READ_COMMITTED: Final = 1
TOPIC_IDS_FROM: Final = 13
ZSTD_FROM: Final = 10
SESSIONS_FROM: Final = 7
EVICTABLE_AFTER_S: Final = 120.0
NO_SESSION: Final = 0
_SESSIONLESS_EPOCH: Final = -1
_NEW_SESSION_EPOCH: Final = 0
_EPOCH_MAX: Final = 2_147_483_647
_CANDIDATES_MAX: Final = 16
PARTITION_BYTES: Final = 800
"""Memory of a partition in a session."""
_NO_TOPIC_ID: Final = bytes(16)


class FetchKey(NamedTuple):
    """What the answer to a waiting fetch depends on, beside the log, if one partition has records and it alone changed.

    `topic` is the topic's name, or the 16 bytes of its id; epochs are -1 where the client sent none.
    """

    version: int
    isolation: int
    topic: str | bytes
    partition: int
    offset: int
    bytes_max: int
    leader_epoch: int
    last_epoch: int


class SharedAnswer(NamedTuple):
    """The records for one `FetchKey`, and the response with them; `queues` waited for fetches that it answered."""

    topic: Topic
    key: FetchKey
    found: Slice
    response: SharedFetch
    queues: list[QueuedFetches]


class SharingFetch(Protocol):
    """A fetch that may be answered together with others."""

    def resume(self) -> None:
        """Evaluate the partitions that are due."""

    def answer_shared(self, wanted: Wanted, answer: SharedAnswer) -> Connection | None:
        """Answer with records that were read for several fetches; None if the fetch has gone on meanwhile."""

    def note_shared(self, answer: SharedAnswer, connections: Sequence[Connection]) -> None:
        """Report that the clients have received the records."""


class QueuedFetches(Protocol):
    """Fetches that wait for what another one finds."""

    @property
    def fetches(self) -> Mapping[Any, None]:
        """In order of arrival; each is a `SharingFetch`."""

    def hand_over(self) -> None:
        """That one waits no longer: evaluate those that are left."""


class WaitingFetch(SharingFetch, Protocol):
    """The fetch that waits on a set."""

    @property
    def queue(self) -> QueuedFetches | None:
        """Those that wait for the same as this one."""

    def wake(self) -> None:
        """A partition is due: resume at the end of the tick."""

    def shared_key(self, wanted: Wanted) -> FetchKey | None:
        """What the answer depends on if this partition has records now; None if on more than this partition."""


class Listening(Protocol):
    """Where fetch sets listen to logs."""

    def listen(self, log: FetchedLog, wanted: Wanted, fetch_set: FetchSet) -> Callable[[], None]:
        """Make the partition due in its set whenever its log changes, until the returned remover is called."""


class Wanted:
    """One partition that a client fetches: request, result, and the values in the last answer.

    `key` is the topic's name, or the 16 bytes of its id. `result` is None until the partition is evaluated;
    `end_offset` is the end of its records, `bases` are the starts of the entries that contain them.
    """

    __slots__ = (
        "bases", "bytes_max", "end_offset", "index", "key", "last_epoch", "leader_epoch", "log", "offset", "order",
        "result", "sent_high_watermark", "sent_log_start", "stop_listening",
    )  # fmt: skip

    def __init__(self, key: str | bytes, index: int) -> None:
        self.key = key
        self.index = index
        self.offset = self.bytes_max = self.order = self.end_offset = 0
        self.bases: Sequence[int] = ()
        self.leader_epoch = self.last_epoch = -1
        self.sent_high_watermark = self.sent_log_start = -1
        self.log: FetchedLog | None = None
        self.result: FetchPartition | None = None
        self.stop_listening: Callable[[], None] | None = None


class FetchSet:
    """The partitions of a fetch. `due` are those to evaluate before the next answer."""

    __slots__ = ("by_ids", "catalog_version", "closed", "due", "order", "waiter", "wanted")

    def __init__(self, by_ids: bool) -> None:
        self.by_ids = by_ids
        self.wanted: dict[tuple[str | bytes, int], Wanted] = {}
        self.due: dict[Wanted, None] = {}
        self.order = 0
        self.catalog_version = -1
        self.waiter: WaitingFetch | None = None
        self.closed = False

    def want(self, request: FetchRequest) -> None:
        """Add the partitions of a request, or replace their parameters."""
        for topic in request.topics:
            key = _key(topic, self.by_ids)
            for asked in topic.partitions:
                wanted = self.wanted.get((key, asked.partition))
                if wanted is None:
                    wanted = self.wanted[key, asked.partition] = Wanted(key, asked.partition)
                    self.rotate(wanted)
                wanted.offset = asked.fetch_offset
                wanted.bytes_max = asked.partition_max_bytes
                wanted.leader_epoch = asked.current_leader_epoch
                wanted.last_epoch = asked.last_fetched_epoch
                self.due[wanted] = None

    def forget(self, request: FetchRequest) -> None:
        """Remove the partitions that a request drops."""
        for topic in request.forgotten_topics_data:
            key = _key(topic, self.by_ids)
            for index in topic.partitions:
                wanted = self.wanted.pop((key, index), None)
                if wanted is not None:
                    self.due.pop(wanted, None)
                    self.stop_listening(wanted)

    def rotate(self, wanted: Wanted) -> None:
        """Move a partition behind all others."""
        self.order += 1
        wanted.order = self.order

    def listen(self, wanted: Wanted, log_ends: Listening) -> None:
        """Subscribe to the partition's changes; a change since it was read makes it due at once."""
        log, result = wanted.log, wanted.result
        if log is None or result is None or self.closed:
            return
        if wanted.stop_listening is None:
            wanted.stop_listening = log_ends.listen(log, wanted, self)
        if not log.has_offsets(result.high_watermark, result.log_start_offset):
            self.due[wanted] = None
            if self.waiter is not None:
                self.waiter.wake()

    def stop_listening(self, wanted: Wanted) -> None:
        """Unsubscribe from the partition's changes; the caller must evaluate it again."""
        if wanted.stop_listening is not None:
            wanted.stop_listening()
            wanted.stop_listening = None

    def close(self) -> None:
        """Unsubscribe from every log."""
        self.closed = True
        for wanted in self.wanted.values():
            if wanted.stop_listening is not None:
                self.stop_listening(wanted)


def has_no_session(request: FetchRequest, version: int) -> bool:
    """Whether a request neither uses, opens nor closes a session."""
    return version < SESSIONS_FROM or (request.session_epoch, request.session_id) == (_SESSIONLESS_EPOCH, NO_SESSION)


def _key(topic: Any, by_ids: bool) -> str | bytes:
    if not by_ids:
        return str(topic.topic)
    return _NO_TOPIC_ID if topic.topic_id is None else topic.topic_id.bytes


class Session(FetchSet):
    """A fetch set that persists between requests. `epoch` is the one that the next request must carry."""

    __slots__ = ("connection_id", "created_s", "epoch", "session_id", "used_s")

    def __init__(self, by_ids: bool, connection_id: int, session_id: int, now_s: float) -> None:
        super().__init__(by_ids)
        self.connection_id = connection_id
        self.session_id = session_id
        self.epoch = 1
        self.created_s = self.used_s = now_s


class Opened(NamedTuple):
    """The meaning of a request: the set to fetch, and whether all of it is answered; or the error to answer."""

    fetch_set: FetchSet | None
    session_id: int = NO_SESSION
    full: bool = True
    error: ErrorCode = ErrorCode.none


class FetchSessions:
    """The sessions of a broker, ordered by last use, the oldest first; `bytes_max` is the memory that they may have.

    When it is full, clients name their partitions in requests without a session.
    """

    def __init__(self, bytes_max: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._partitions_max = bytes_max // PARTITION_BYTES
        self._sessions: OrderedDict[int, Session] = OrderedDict()
        self._of_connection: dict[int, set[int]] = {}
        self._partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, request: FetchRequest, version: int, connection_id: int, slots: int) -> Opened:
        """Determine the partitions that a request fetches; KIP-227 has the table of cases."""
        by_ids = version >= TOPIC_IDS_FROM
        session_id, epoch = request.session_id, request.session_epoch
        if version < SESSIONS_FROM or epoch in (_SESSIONLESS_EPOCH, _NEW_SESSION_EPOCH):
            if session_id != NO_SESSION:
                self._close_own(session_id, connection_id)
            session = None
            if version >= SESSIONS_FROM and epoch == _NEW_SESSION_EPOCH:
                session = self._create(request, by_ids, connection_id, slots)
            fetch_set = session or FetchSet(by_ids)
            fetch_set.want(request)
            if session is not None:
                self._partition_count += len(session.wanted)
            return Opened(fetch_set, session.session_id if session is not None else NO_SESSION)
        return self._go_on(request, session_id, epoch, by_ids, connection_id)

    def _go_on(self, request: FetchRequest, session_id: int, epoch: int, by_ids: bool, connection_id: int) -> Opened:
        session = self._sessions.get(session_id)
        if session is None or session.connection_id != connection_id:
            return Opened(None, error=ErrorCode.fetch_session_id_not_found)
        if epoch != session.epoch:
            return Opened(None, error=ErrorCode.invalid_fetch_session_epoch)
        if by_ids != session.by_ids:
            return Opened(None, error=ErrorCode.fetch_session_topic_id_error)
        before = len(session.wanted)
        session.forget(request)
        session.want(request)
        self._partition_count += len(session.wanted) - before
        if self._partition_count > self._partitions_max:
            self._close(session)
            return Opened(None, error=ErrorCode.fetch_session_id_not_found)
        if not session.wanted:
            self._close(session)
            return Opened(FetchSet(by_ids))
        session.epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        session.used_s = self._clock()
        self._sessions.move_to_end(session_id)
        return Opened(session, session_id, full=False)

    def close_connection(self, connection_id: int) -> None:
        """Remove the sessions of a closed connection."""
        for session_id in self._of_connection.pop(connection_id, ()):
            session = self._sessions.pop(session_id, None)
            if session is not None:
                self._partition_count -= len(session.wanted)
                session.close()

    def _close_own(self, session_id: int, connection_id: int) -> None:
        session = self._sessions.get(session_id)
        if session is not None and session.connection_id == connection_id:
            self._close(session)

    def _close(self, session: Session) -> None:
        session.close()
        del self._sessions[session.session_id]
        self._partition_count -= len(session.wanted)
        ids = self._of_connection.get(session.connection_id)
        if ids is not None:
            ids.discard(session.session_id)

    def _create(self, request: FetchRequest, by_ids: bool, connection_id: int, slots: int) -> Session | None:
        size = sum(len(topic.partitions) for topic in request.topics)
        if not size or not self._evict_for(size, slots) or self._partition_count + size > self._partitions_max:
            return None
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = secrets.randbelow(_EPOCH_MAX)
        session = self._sessions[session_id] = Session(by_ids, connection_id, session_id, self._clock())
        self._of_connection.setdefault(connection_id, set()).add(session_id)
        return session

    def _evict_for(self, size: int, slots: int) -> bool:
        """Make space for a session of `size` partitions: evict an idle one or a smaller, older one; False if none."""
        if len(self._sessions) < slots:
            return True
        now_s = self._clock()
        for session, _ in zip(self._sessions.values(), range(_CANDIDATES_MAX), strict=False):
            idle = now_s - session.used_s > EVICTABLE_AFTER_S
            smaller = len(session.wanted) < size and now_s - session.created_s > EVICTABLE_AFTER_S
            if idle or smaller:
                self._close(session)
                return True
        return False
