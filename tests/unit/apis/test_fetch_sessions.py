"""KIP-227's table, and who must go when the cache is full."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from tidegate.apis.fetch_sessions import EVICTABLE_AFTER_S, PARTITION_BYTES, FetchSessions, Opened
from tidegate.apis.waiting_fetches import LogEnds
from tidegate.protocol.log_writers import FetchPartition

MINE, OTHERS = 1, 2


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def request(
    session_id: int, epoch: int, *wanted: tuple[Any, int], forgotten: Sequence[tuple[Any, int]] = ()
) -> SimpleNamespace:
    def topic(key: Any, partitions: Any) -> SimpleNamespace:
        return SimpleNamespace(topic=key, topic_id=key, partitions=partitions)

    def partition(index: int) -> SimpleNamespace:
        return SimpleNamespace(
            partition=index, fetch_offset=0, partition_max_bytes=1, current_leader_epoch=-1, last_fetched_epoch=-1
        )

    return SimpleNamespace(
        session_id=session_id,
        session_epoch=epoch,
        topics=[topic(key, [partition(index)]) for key, index in wanted],
        forgotten_topics_data=[topic(key, [index]) for key, index in forgotten],
    )


class Sessions:
    """The fetch sessions, asked as one connection asks."""

    def __init__(self, slots: int = 10, bytes_max: int = 1 << 20) -> None:
        self.clock = Clock()
        self.sessions = FetchSessions(bytes_max, self.clock)
        self.slots = slots

    def ask(self, asked: SimpleNamespace, version: int = 12, connection: int = MINE) -> Opened:
        return self.sessions.open(asked, version, connection, self.slots)

    def given_session(self, *wanted: tuple[Any, int], connection: int = MINE) -> int:
        return self.ask(request(0, 0, *(wanted or (("t", 0),))), connection=connection).session_id


def test_sessionless_requests_leave_nothing():
    sessions = Sessions()
    for version, epoch in ((12, -1), (6, 0), (4, -1)):
        opened = sessions.ask(request(0, epoch, ("t", 0)), version)
        assert (opened.session_id, opened.full, opened.error) == (0, True, ErrorCode.none)
        assert opened.fetch_set is not None and len(opened.fetch_set.wanted) == 1
    assert len(sessions.sessions) == 0


def test_empty_session_is_not_made():
    sessions = Sessions()
    assert sessions.ask(request(0, 0)).session_id == 0


def test_epochs_count_on_receipt_and_wrap():
    sessions = Sessions()
    session_id = sessions.given_session()
    for epoch in (1, 2, 3):
        assert sessions.ask(request(session_id, epoch)).error is ErrorCode.none
    assert sessions.ask(request(session_id, 3)).error is ErrorCode.invalid_fetch_session_epoch
    sessions.sessions._sessions[session_id].epoch = 2_147_483_647
    assert sessions.ask(request(session_id, 2_147_483_647)).error is ErrorCode.none
    assert sessions.ask(request(session_id, 1)).error is ErrorCode.none


@pytest.mark.parametrize(
    ("session_id", "epoch", "version", "connection", "error"),
    [
        (0, 5, 12, MINE, ErrorCode.fetch_session_id_not_found),
        (None, 1, 12, OTHERS, ErrorCode.fetch_session_id_not_found),
        (None, 7, 12, MINE, ErrorCode.invalid_fetch_session_epoch),
        (None, -2, 12, MINE, ErrorCode.invalid_fetch_session_epoch),
        (None, 1, 13, MINE, ErrorCode.fetch_session_topic_id_error),
    ],
)
def test_refusals(session_id: int | None, epoch: int, version: int, connection: int, error: ErrorCode):
    sessions = Sessions()
    mine = sessions.given_session()
    opened = sessions.ask(request(mine if session_id is None else session_id, epoch), version, connection)
    assert (opened.fetch_set, opened.session_id, opened.error) == (None, 0, error)
    assert sessions.ask(request(mine, 1)).error is ErrorCode.none  # a refusal moves nothing


@pytest.mark.parametrize("epoch", [0, -1])
def test_full_request_closes_the_session_it_names(epoch: int):
    sessions = Sessions()
    mine, others = sessions.given_session(), sessions.given_session(connection=OTHERS)
    opened = sessions.ask(request(mine, epoch, ("t", 0)))
    assert (opened.session_id != 0) == (epoch == 0) and opened.session_id != mine
    assert sessions.ask(request(mine, 1)).error is ErrorCode.fetch_session_id_not_found
    sessions.ask(request(others, epoch, ("t", 0)))
    assert sessions.ask(request(others, 1), connection=OTHERS).error is ErrorCode.none


def test_incremental_requests_add_replace_and_forget():
    sessions = Sessions()
    session_id = sessions.given_session(("t", 0), ("t", 1))
    opened = sessions.ask(request(session_id, 1, ("t", 2), ("t", 0), forgotten=[("t", 1), ("u", 9)]))
    assert opened.fetch_set is not None and not opened.full
    assert list(opened.fetch_set.wanted) == [("t", 0), ("t", 2)]
    last = sessions.ask(request(session_id, 2, forgotten=[("t", 0), ("t", 2)]))
    assert last.session_id == 0 and last.fetch_set is not None and not last.fetch_set.wanted
    assert sessions.ask(request(session_id, 3)).error is ErrorCode.fetch_session_id_not_found


def test_ids_are_keys_from_version_13_on():
    opened = Sessions().ask(request(0, 0, (UUID(int=7), 0), (None, 1)), version=13)
    assert opened.fetch_set is not None
    assert list(opened.fetch_set.wanted) == [(UUID(int=7).bytes, 0), (bytes(16), 1)]


def test_full_cache_keeps_what_is_used():
    sessions = Sessions(slots=2)
    first, second = sessions.given_session(), sessions.given_session()
    assert sessions.given_session(("t", 0), ("t", 1)) == 0
    sessions.clock.now_s += EVICTABLE_AFTER_S + 1
    sessions.ask(request(first, 1))
    assert sessions.given_session() != 0  # the second was idle
    assert sessions.ask(request(second, 1)).error is ErrorCode.fetch_session_id_not_found
    assert sessions.given_session() == 0  # one as large as the others does not push them out
    assert sessions.given_session(("t", 0), ("t", 1)) != 0  # a larger one does, where they are old enough
    assert sessions.ask(request(first, 2)).error is ErrorCode.fetch_session_id_not_found
    assert len(sessions.sessions) == 2


def test_fetch_sessions_are_removed_with_their_connection():
    sessions = Sessions()
    mine, others = sessions.given_session(), sessions.given_session(connection=OTHERS)
    sessions.sessions.close_connection(MINE)
    assert sessions.ask(request(mine, 1)).error is ErrorCode.fetch_session_id_not_found
    assert sessions.ask(request(others, 1), connection=OTHERS).error is ErrorCode.none


class FakeLog:
    """A log that is listened to."""

    def __init__(self) -> None:
        self.listeners: list[Any] = []
        self.high_watermark = 5

    def on_change(self, listener: Any) -> Any:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def has_offsets(self, high_watermark: int, log_start: int) -> bool:
        return (self.high_watermark, 0) == (high_watermark, log_start)


def test_listening_never_misses_what_happened_since_the_read():
    sessions, log, ends = Sessions(), FakeLog(), LogEnds()
    fetch_set = sessions.ask(request(0, 0, ("t", 0))).fetch_set
    assert fetch_set is not None
    (wanted,) = fetch_set.wanted.values()
    fetch_set.due.clear()
    wanted.log = log  # type: ignore[assignment]
    wanted.result = FetchPartition(0, 0, 5, 5, 0)
    fetch_set.listen(wanted, ends)
    assert not fetch_set.due and len(log.listeners) == 1
    log.high_watermark = 6
    fetch_set.listen(wanted, ends)
    assert list(fetch_set.due) == [wanted] and len(log.listeners) == 1
    fetch_set.close()
    assert not log.listeners and not len(ends)
    fetch_set.listen(wanted, ends)
    assert not log.listeners


steps = st.tuples(
    st.sampled_from(["new", "next", "stale", "forget", "end", "leave"]), st.integers(0, 3), st.integers(1, 2)
)


@given(st.lists(steps, max_size=40))
def test_fetch_session_stores_the_positions_of_its_client(script: list[tuple[str, int, int]]):
    """The client's own book of (id, epoch, partitions) always fits, and there are never more than the slots."""
    sessions = Sessions(slots=3)
    books: dict[int, tuple[int, int, set[int]]] = {}
    for action, index, connection in script:
        book = books.get(connection)
        if action == "new":
            opened = sessions.ask(request(book[0] if book else 0, 0, ("t", index)), connection=connection)
            books[connection] = (opened.session_id, 1, {index})
            if not opened.session_id:
                del books[connection]
        elif action == "leave":
            sessions.sessions.close_connection(connection)
            books.pop(connection, None)
        elif book is not None:
            session_id, epoch, partitions = book
            if action == "stale":
                stale = sessions.ask(request(session_id, epoch + 1), connection=connection)
                assert stale.error is ErrorCode.invalid_fetch_session_epoch
            elif action == "end":
                assert sessions.ask(request(session_id, -1), connection=connection).session_id == 0
                del books[connection]
            else:
                forgotten = [("t", index)] if action == "forget" else []
                wanted = [] if action == "forget" else [("t", index)]
                opened = sessions.ask(request(session_id, epoch, *wanted, forgotten=forgotten), connection=connection)
                partitions = partitions - {index} if action == "forget" else partitions | {index}
                assert opened.fetch_set is not None
                assert {key[1] for key in opened.fetch_set.wanted} == partitions
                if partitions:
                    books[connection] = (session_id, epoch + 1, partitions)
                else:
                    del books[connection]
    assert len(sessions.sessions) == len(books) <= 3


def test_sessions_have_at_most_so_much_memory() -> None:
    sessions = Sessions(bytes_max=4 * PARTITION_BYTES)
    mine = sessions.given_session(("t", 0), ("t", 1))
    others = sessions.given_session(("t", 0), ("t", 1), connection=OTHERS)
    assert sessions.ask(request(0, 0, ("t", 5))).session_id == 0, "answered without a session"
    assert sessions.ask(request(mine, 1, forgotten=[("t", 0)])).error is ErrorCode.none
    assert sessions.ask(request(mine, 2, ("t", 7))).error is ErrorCode.none

    assert sessions.ask(request(mine, 3, ("t", 8))).error is ErrorCode.fetch_session_id_not_found
    assert sessions.given_session(("t", 0), ("t", 1)) != 0, "the one that grew was evicted"
    sessions.sessions.close_connection(OTHERS)
    assert sessions.given_session(("t", 0), ("t", 1)) != 0
    assert sessions.ask(request(others, 1), connection=OTHERS).error is ErrorCode.fetch_session_id_not_found
