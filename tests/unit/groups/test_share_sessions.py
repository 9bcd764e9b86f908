"""Share sessions: how many there may be, and how many partitions they remember."""

from __future__ import annotations

from uuid import UUID

import pytest

from tidegate.groups.share import sessions as share_sessions
from tidegate.groups.share.errors import ShareSessionLimitReached
from tidegate.groups.share.sessions import PARTITION_BYTES, SharePartition, ShareSession, ShareSessions
from tidegate.store.keys import GroupKeys

KEYS = GroupKeys.of("tidegate", 50, "default", "jobs")
TOPIC = UUID(int=7)
BYTES_MAX = 1 << 20


def partitions(*indexes: int) -> list[SharePartition]:
    return [SharePartition(TOPIC, index) for index in indexes]


def test_sessions_have_at_most_so_much_memory() -> None:
    ended: list[ShareSession] = []
    sessions = ShareSessions(10, 4 * PARTITION_BYTES, ended.append)
    a = sessions.open(KEYS, "a", 1, partitions(0, 1))
    sessions.open(KEYS, "b", 2, partitions(0))
    assert sessions.add(a, partitions(1, 2)) == set(partitions(2))

    sessions.forget(a, partitions(0, 0, 9))
    for _ in range(2):
        with pytest.raises(ShareSessionLimitReached):  # what it may have acquired of the forgotten one is remembered
            sessions.add(a, partitions(3))
    assert set(a.partitions) == set(partitions(1, 2))
    with pytest.raises(ShareSessionLimitReached):
        sessions.open(KEYS, "c", 3, partitions(0))

    sessions.close_connection(2)
    assert sessions.add(a, partitions(3)) == set(partitions(3))
    sessions.close(KEYS, "a")
    for _ in range(3):
        sessions.open(KEYS, "c", 3, partitions(0, 1, 2, 3))
    assert len(sessions) == 1


def test_sessions_of_one_connection_leave_others_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_sessions, "CONNECTION_SESSIONS_MAX", 2)
    ended: list[ShareSession] = []
    sessions = ShareSessions(3, BYTES_MAX, ended.append)
    a = sessions.open(KEYS, "a", 1, [])
    sessions.open(KEYS, "b", 1, [])
    with pytest.raises(ShareSessionLimitReached):
        sessions.open(KEYS, "c", 1, [])

    sessions.open(KEYS, "c", 2, [])
    assert sessions.open(KEYS, "a", 1, []).session_id == a.session_id
    with pytest.raises(ShareSessionLimitReached):  # a session cannot be moved to a connection that has its own
        sessions.proceed(KEYS, "c", 1, 1)
    sessions.close_connection(1)
    assert sessions.proceed(KEYS, "c", 1, 1).connection_id == 1
    sessions.close_connection(2)
    assert [one.member_id for one in ended if one.member_id == "c"] == []
    sessions.close_connection(1)
    assert sorted(one.member_id for one in ended) == ["a", "b", "c"]
    assert len(sessions) == 0


def test_sessions_of_one_connection_leave_others_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_sessions, "CONNECTION_PARTITIONS_MAX", 3)
    sessions = ShareSessions(10, BYTES_MAX, list[ShareSession]().append)
    a = sessions.open(KEYS, "a", 1, partitions(0, 1))
    with pytest.raises(ShareSessionLimitReached):
        sessions.open(KEYS, "b", 1, partitions(0, 1))
    with pytest.raises(ShareSessionLimitReached):
        sessions.add(a, partitions(2, 3))
    sessions.add(a, partitions(2))

    sessions.open(KEYS, "b", 2, partitions(0, 1, 2))
    with pytest.raises(ShareSessionLimitReached):
        sessions.proceed(KEYS, "b", 1, 1)
    assert sessions.proceed(KEYS, "b", 1, 2).connection_id == 2


@pytest.mark.parametrize(("broker_max", "connection_max"), [(2, 9), (9, 2)])
def test_refused_open_keeps_the_old_session(
    monkeypatch: pytest.MonkeyPatch, broker_max: int, connection_max: int
) -> None:
    monkeypatch.setattr(share_sessions, "CONNECTION_PARTITIONS_MAX", connection_max)
    ended: list[ShareSession] = []
    sessions = ShareSessions(1, broker_max * PARTITION_BYTES, ended.append)
    a = sessions.open(KEYS, "a", 1, partitions(0))
    superseded: list[bool] = []
    a.on_superseded.add(lambda: superseded.append(True))

    with pytest.raises(ShareSessionLimitReached):
        sessions.open(KEYS, "a", 1, partitions(0, 1, 2))

    assert not superseded
    assert sessions.proceed(KEYS, "a", 1, 1) is a
    sessions.close_connection(1)
    assert ended == [a]
