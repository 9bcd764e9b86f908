"""Groups of many members or partitions are read with other work of the event loop in between."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tests.support.rounds import Rounds, counted_rounds
from tidegate.diagnosis import group_snapshot
from tidegate.groups import directory
from tidegate.groups.share import partitions
from tidegate.groups.share import stored as share_stored
from tidegate.groups.share.sessions import SharePartition
from tidegate.monitoring.internal_topics import members
from tidegate.store.foreign_entries import ForeignEntries
from tidegate.store.keys import GroupKeys

COUNT = 5_000


class StoredHash:
    """A store that has one hash."""

    def __init__(self, found: dict[bytes, bytes]) -> None:
        self.found, self.foreign_entries = found, ForeignEntries()

    async def command(self, *_: Any) -> dict[bytes, bytes]:
        return self.found


async def test_share_partitions_are_read_in_slices_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = {UUID(int=1): "b", UUID(int=2): "a"}
    stored = [(topic_id, index) for topic_id in topics for index in reversed(range(COUNT // 2))]
    store: Any = StoredHash({f"{one.hex}:{index}".encode(): topics[one].encode() for one, index in stored})
    store.found[b"foreign"] = b"x"
    keys: GroupKeys = SimpleNamespace(shares="shares")  # type: ignore[assignment]
    with counted_rounds() as rounds:
        monkeypatch.setattr(partitions, "_parsed", rounds.counting(partitions._parsed))
        found = await partitions.partitions_of(store, keys)

    assert rounds.total == COUNT + 1
    assert rounds.most <= partitions.AT_ONCE
    ordered = [(SharePartition(one, index), topics[one]) for one in reversed(topics) for index in range(COUNT // 2)]
    assert list(found.items()) == ordered


async def test_members_are_described_in_slices_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    record = json.dumps({"instance_id": "", "client_id": "c", "client_host": "/h"}).encode()
    members = {f"m-{number:05}".encode(): record for number in reversed(range(COUNT))}
    head = [b"classic", b"Stable", b"1", b"1", b"consumer", b"range"]
    with counted_rounds() as rounds:
        monkeypatch.setattr(directory, "DescribedMember", rounds.counting(directory.DescribedMember))
        group = await directory._snapshot(head, members, {}, {b"m-00001": b"assigned"})

    assert (rounds.total, [one.member_id.encode() for one in group.members]) == (COUNT, sorted(members))
    assert group.members[1].assignment == b"assigned"
    assert rounds.most <= directory.DESCRIBED_AT_ONCE


class Counted(dict[SharePartition, str]):
    """Share-partitions that are counted as they are handled."""

    rounds: Rounds

    def items(self) -> Any:
        for item in super().items():
            self.rounds.note()
            yield item


async def test_share_partitions_are_put_together_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Counted({SharePartition(UUID(int=1), index): "t" for index in range(COUNT)})

    async def read(*_: Any) -> Any:
        return [b"id"] + [None] * (len(share_stored.HEAD) - 1), {}, {}

    async def partitions_of(*_: Any) -> Any:
        return found

    monkeypatch.setattr(members, "_read", read)
    monkeypatch.setattr(members, "partitions_of", partitions_of)
    store: Any = None
    keys: Any = SimpleNamespace(group_id="g")
    with counted_rounds() as found.rounds:
        values = await members.share_values(store, keys)

    assert (len(values), found.rounds.total) == (3, COUNT)
    assert found.rounds.most <= members._PARTITIONS_AT_ONCE


async def test_share_partitions_are_described_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    async def nothing(*_: Any) -> Any:
        return {}

    def shares_of(*_: Any) -> Any:
        threads.append(threading.current_thread())
        return ()

    monkeypatch.setattr(group_snapshot, "partitions_of", nothing)
    monkeypatch.setattr(group_snapshot, "ShareRecords", lambda _: SimpleNamespace(in_flight=nothing))
    monkeypatch.setattr(group_snapshot, "shares_of", shares_of)
    nowhere: Any = None
    assert await group_snapshot._shares(nowhere, nowhere) == ()
    assert threads and threading.main_thread() not in threads
