"""The shares of a process's memory: together they fit, and what has one stays below it."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tests.support.traced_memory import taken
from tidegate.apis.fetch_sessions import FetchSessions
from tidegate.groups.share.errors import ShareSessionLimitReached
from tidegate.groups.share.sessions import SharePartition, ShareSessions
from tidegate.log.owners import Owner, _record
from tidegate.memory import LIMIT_BYTES_MIN, PROCESS_BYTES, MemoryShares
from tidegate.protocol.primitives import NAMES, EncodedNames
from tidegate.store.keys import GroupKeys
from tidegate.store.slots import key_slot

COUNTS = {"key_names": 2, "groups": 3, "decisions": 3}


@pytest.mark.parametrize("limit", [0, LIMIT_BYTES_MIN, 512 << 20, 2 << 30])
def test_shares_fit_into_the_limit_together(limit: int) -> None:
    shares = asdict(MemoryShares.of(limit))
    together = sum(share * COUNTS.get(name, 1) for name, share in shares.items())
    assert all(shares.values())
    assert together <= max(limit, LIMIT_BYTES_MIN) - PROCESS_BYTES


def wanted(topics: int, partitions: int) -> Any:
    asked = [
        SimpleNamespace(
            partition=index, fetch_offset=10**9 + index, partition_max_bytes=1 << 20, current_leader_epoch=7,
            last_fetched_epoch=-1,
        )
        for index in range(partitions)
    ]  # fmt: skip
    found = [
        SimpleNamespace(topic=f"topic-{number}", topic_id=UUID(int=number), partitions=asked)
        for number in range(topics)
    ]
    return SimpleNamespace(session_id=0, session_epoch=0, topics=found, forgotten_topics_data=[])


@pytest.mark.parametrize("version", [12, 16])
def test_fetch_sessions_stay_below_their_share(version: int) -> None:
    bytes_max = 2 << 20
    sessions = FetchSessions(bytes_max)
    asked = wanted(20, 10)
    opened = [0]

    def open_many() -> None:
        opened[0] = sum(sessions.open(asked, version, connection, 1_000).session_id != 0 for connection in range(200))

    held, _ = taken(open_many)
    assert 5 < opened[0] < 200
    assert bytes_max // 4 < held < bytes_max


def test_share_sessions_stay_below_their_share() -> None:
    bytes_max = 2 << 20
    sessions = ShareSessions(10_000, bytes_max, lambda _: None)
    keys = GroupKeys.of("t", 1, "default", "g")

    def open_many() -> int:
        for opened in range(1_000):
            try:
                sessions.open(keys, f"m{opened}", opened, (SharePartition(UUID(int=1), index) for index in range(200)))
            except ShareSessionLimitReached:
                return opened
        return 1_000

    held, opened = taken(open_many)
    assert 5 < opened < 1_000
    assert bytes_max // 4 < held < bytes_max


def test_long_names_leave_nothing_behind() -> None:
    names = [f"{number:06d}" + "x" * 32_000 for number in range(50)]

    def use() -> None:
        for name in names:
            assert NAMES[False][name] and NAMES[True][name]
            assert key_slot(name) >= 0
            assert _record(Owner("id", 1, name, name, name))

    use()
    held, _ = taken(use)
    assert held < 32_000


def test_encoded_names_are_cached_up_to_a_number() -> None:
    names = EncodedNames(lambda text: (text or "").encode())
    assert names["usual"] is names["usual"]
    for number in range(3 * EncodedNames.COUNT_MAX):
        assert names[f"name-{number}"] == f"name-{number}".encode()
    assert len(names) <= EncodedNames.COUNT_MAX
