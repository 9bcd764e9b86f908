"""The check of outside runs finds what it is there to find."""

from __future__ import annotations

from typing import Any

import pytest

from tests.outside.history import GroupHistory, order_of_log

Entries = list[dict[str, Any]]


def entry(at: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"at": at, "kind": kind, **fields}


def assigned(at: int, *partitions: int, member: str = "m", generation: int = 1) -> dict[str, Any]:
    return entry(at, "assigned", partitions=list(partitions), generation=generation, member=member)


def read(at: int, offset: int, partition: int = 0, count: int = 1) -> dict[str, Any]:
    records = [[number, f"w:{partition}:{number}"] for number in range(offset, offset + count)]
    return entry(at, "read", partition=partition, records=records)


def commit(began: int, at: int, offset: int, error: str | None = None) -> dict[str, Any]:
    return entry(at, "commit", began=began, offsets={"0": offset}, generation=1, error=error)


def committed(began: int, at: int, offset: int) -> dict[str, Any]:
    return entry(at, "committed", began=began, offsets={"0": offset})


def revoked(at: int, *partitions: int) -> dict[str, Any]:
    return entry(at, "revoked", partitions=list(partitions))


GOOD: Entries = [assigned(10, 0), read(20, 0, count=5), commit(30, 40, 5), committed(50, 60, 5), revoked(70, 0)]


def check(*journals: Entries, acknowledged: int = 5, removed: dict[str, int] | None = None) -> list[str]:
    history = GroupHistory("g", removed or {})
    for number, entries in enumerate(journals):
        history.add(f"member-{number}", entries)
    return history.violations({(0, offset): f"w:0:{offset}" for offset in range(acknowledged)})


def test_good_history_is_good() -> None:
    assert check(GOOD, [assigned(80, 0, member="n", generation=2), read(90, 5)], acknowledged=6) == []


@pytest.mark.parametrize(
    ("journals", "client_reason"),
    [
        pytest.param([GOOD], "1 acknowledged records were not read", id="a lost record"),
        pytest.param([[assigned(10, 0), read(20, 0), read(30, 2)]], "w:0:2 follows w:0:0", id="a gap"),
        pytest.param([[assigned(10, 0), read(20, 0), read(30, 0)]], "nonmonotonic-poll: ", id="a record again"),
        pytest.param([[read(20, 0)]], "unowned read: ", id="not its partition"),
        pytest.param([[assigned(10, 0), entry(15, "paused", partition=0), read(20, 0)]], "was paused", id="paused"),
        pytest.param([GOOD, [assigned(60, 0, member="n")]], "two owners: g 0", id="two owners"),
        pytest.param([GOOD, [assigned(80, 0, member="n"), read(90, 3)]], "began to read 0@3", id="begins before"),
        pytest.param([GOOD, [assigned(80, 0, member="n"), read(90, 6)]], "began to read 0@6", id="begins after"),
        pytest.param(
            [[*GOOD[:3], commit(41, 42, 3), commit(43, 44, 5), committed(50, 60, 3)]], "fetched 0@3", id="old"
        ),
        pytest.param([[*GOOD[:3], committed(50, 60, -1)]], "fetched 0@-1", id="a lost commit"),
        pytest.param(
            [[assigned(10, 0, generation=2), revoked(20, 0), assigned(30, 0)]], "generation back: ", id="falls"
        ),
    ],
)
def test_checker_reports_each_violation(journals: list[Entries], client_reason: str) -> None:
    acknowledged = 6 if "lost" in client_reason or "acknowledged" in client_reason else 0
    assert any(client_reason in one for one in check(*journals, acknowledged=acknowledged))


def test_removed_member_may_learn_it_late_but_may_not_commit() -> None:
    later = [assigned(60, 0, member="n", generation=2)]
    assert check(GOOD, later, removed={"m": 55}) == []
    late = [*GOOD[:3], commit(64, 66, 5), revoked(70, 0)]
    assert any("stale commit" in one for one in check(late, later, removed={"m": 55}))


def test_commit_with_an_unknown_answer_may_be_stored() -> None:
    unknown = [*GOOD[:3], commit(45, 46, 3, error="_TIMED_OUT")]
    refused = [*GOOD[:3], commit(45, 46, 3, error="ILLEGAL_GENERATION")]
    assert check([*unknown, committed(50, 60, 3)]) == check([*unknown, committed(50, 60, 5)]) == []
    assert check([*refused, committed(50, 60, 3)]) != []


def test_seek_and_stored_position_are_causes() -> None:
    sought = [*GOOD[:3], entry(45, "seek", partition=0, offset=2), read(50, 2)]
    kept = [*GOOD[:2], revoked(30, 0), assigned(40, 0, generation=2), read(50, 5)]
    assert check(sought) == check(kept, acknowledged=6) == []
    idle = [*GOOD[:2], revoked(30, 0), assigned(32, 0, generation=2), revoked(38, 0), *kept[3:]]
    assert check(idle, acknowledged=6) == []
    between = [assigned(33, 0, member="n"), revoked(36, 0)]
    assert any("began to read" in one for one in check(kept, between))


def test_order_of_the_log() -> None:
    assert order_of_log({(0, 0): "a:0:0", (0, 1): "b:0:0", (0, 2): "a:0:1"}) == []
    assert order_of_log({(0, 0): "a:0:0", (0, 1): "a:0:2"}) != []
    assert order_of_log({(0, 0): "a:0:0", (0, 1): "a:0:0"}) != []
    assert order_of_log({(0, 0): "a:1:0"}) != []
