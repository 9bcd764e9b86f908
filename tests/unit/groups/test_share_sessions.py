"""Share sessions: how many partitions they remember together."""

from __future__ import annotations

from uuid import UUID

import pytest

from tidegate.groups.share import sessions as share_sessions
from tidegate.groups.share.errors import ShareSessionLimitReached
from tidegate.groups.share.sessions import SharePartition, ShareSession, ShareSessions
from tidegate.store.keys import GroupKeys

KEYS = GroupKeys.of("tidegate", 50, "default", "jobs")
TOPIC = UUID(int=7)


def partitions(*indexes: int) -> list[SharePartition]:
    return [SharePartition(TOPIC, index) for index in indexes]


def test_sessions_have_at_most_so_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_sessions, "PARTITIONS_MAX", 4)
    ended: list[ShareSession] = []
    sessions = ShareSessions(10, ended.append)
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
