"""Rounds of lag samples over many groups, commits and notes: other work of the event loop goes on in between."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.logs import FakeTopic
from tests.support.rounds import Rounds, counted_rounds
from tidegate.monitoring import lag_reading, lag_sampler, resting_groups
from tidegate.monitoring.lag_reading import SLICE, GroupName, GroupRead, LagReader, LogEndsReading
from tidegate.monitoring.lag_sampler import LagSampler
from tidegate.monitoring.resting_groups import RestingGroup, RestingGroups
from tidegate.settings import Settings
from tidegate.store.store import Store

TOPIC: Any = FakeTopic(name="t", partition_count=10 * SLICE)
ENDS = LogEndsReading(0, 9, 100, 1_000, 0, {5: 500})
COMMITS = 100
OTHER_LOG = {("default", ("other", 0))}


def group_of(number: int, commits: int) -> GroupRead:
    """A group that rests."""
    committed = {("t", index): (5, 900) for index in range(commits)}
    name = GroupName("default", f"g{number}", 0, f"default/g{number}")
    return GroupRead(name, "Empty", 0, 1, "", "consumer", 0, 0, committed, (b"1", b"1"))


def ends_of(group: GroupRead) -> dict[Any, LogEndsReading]:
    return {("default", place): ENDS for place in group.commits}


class FindTopic:
    """Finds the topic `t`, and counts how often."""

    def __init__(self) -> None:
        self.rounds = Rounds()

    def __call__(self, org: str, name: str) -> Any:
        self.rounds.note()
        return TOPIC


async def added(groups: Iterable[GroupRead]) -> tuple[RestingGroups, FindTopic]:
    """Groups that rest."""
    find = FindTopic()
    resting = RestingGroups(find, 10_000)
    for group in groups:
        await resting.add(group, {}, ends_of(group))
    return resting, find


async def test_groups_are_compared_with_changed_logs_in_slices() -> None:
    groups = [group_of(number, COMMITS) for number in range(4 * SLICE // COMMITS)]
    resting, find = await added(groups)
    changed = {("default", ("other", index)) for index in range(COMMITS)}

    with counted_rounds() as find.rounds:
        await resting.begin_round((), changed)

    assert find.rounds.total == len(groups)
    assert find.rounds.most <= SLICE // COMMITS
    assert all(resting.get(group.name.ref) for group in groups)


async def test_many_small_groups_are_compared_in_slices() -> None:
    groups = [group_of(number, 1) for number in range(4 * SLICE)]
    resting, find = await added(groups)

    with counted_rounds() as find.rounds:
        await resting.begin_round({"default/g7"}, OTHER_LOG)

    assert find.rounds.total == len(groups) - 1
    assert find.rounds.most <= SLICE
    assert resting.get("default/g7") is None


async def test_group_with_a_commit_of_a_changed_log_is_read_again() -> None:
    groups = [group_of(number, 1 + number) for number in range(3)]
    resting, _ = await added(groups)

    await resting.begin_round((), {("default", ("t", 1)), ("another", ("t", 0))})

    assert [resting.get(group.name.ref) is not None for group in groups] == [True, False, False]


async def test_change_in_the_middle_of_a_round_counts_in_the_next() -> None:
    groups = [group_of(number, 1) for number in range(2 * SLICE)]
    resting, find = await added(groups)

    def publish(*_: Any) -> Any:
        resting.on_group_change(b"default/g1:1:2:3")
        return TOPIC

    resting._find_topic = publish
    await resting.begin_round((), OTHER_LOG)
    assert resting.get("default/g1") is not None
    resting._find_topic = find
    await resting.begin_round((), OTHER_LOG)
    assert resting.get("default/g1") is None


async def test_log_ends_of_a_resting_group_are_made_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_of(1, 4 * SLICE)
    one = RestingGroup(group, {}, (TOPIC,), (ENDS,) * len(group.commits), 9)

    with counted_rounds() as rounds:
        monkeypatch.setattr(resting_groups, "replace", rounds.counting(resting_groups.replace))
        found = await one.log_ends(2_000)

    assert (len(found), rounds.total) == (len(group.commits), len(group.commits))
    assert found["default", ("t", 3)].now_ms == 2_000
    assert rounds.most <= SLICE


async def test_commits_of_a_group_that_rests_are_compared_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_of(1, 4 * SLICE)
    resting = RestingGroups(FindTopic(), 10_000)
    ends = LogEndsReading(0, 5, 100, 1_000, 0, {5: 500})

    with counted_rounds() as rounds:
        monkeypatch.setattr(GroupRead, "lag", rounds.counting(GroupRead.lag))
        await resting.add(group, {}, {("default", place): ends for place in group.commits})

    assert rounds.total == len(group.commits)
    assert rounds.most <= SLICE


class Reported:
    """Counts the groups that are reported to it."""

    def __init__(self) -> None:
        self.rounds = Rounds()

    async def group(self, *_: Any) -> None:
        self.rounds.note()


async def test_small_resting_groups_are_reported_with_pauses() -> None:
    reported: Any = Reported()
    settings = Settings(lag_sample_interval_ms=1)
    sampler = LagSampler(
        Store(settings), settings, FindTopic(), lambda _: None, lambda: "1", reported, handover_ms=0
    )  # fmt: skip
    groups = [group_of(number, COMMITS) for number in range(lag_sampler._RESTING_AT_ONCE)]
    resting = [RestingGroup(group, {}, (TOPIC,), (ENDS,) * COMMITS, 9) for group in groups]

    with counted_rounds() as reported.rounds:
        await sampler._report_resting(0.0, resting, len(resting))

    assert reported.rounds.total == len(groups)
    assert reported.rounds.most <= SLICE // COMMITS


class Notes:
    """A store that has notes of changed logs."""

    def __init__(self, notes: list[bytes]) -> None:
        self.notes = notes
        self.cluster_keys = SimpleNamespace(changed_groups="groups", changed_logs="logs")

    async def read(self, _: str, key: str, *__: Any) -> list[bytes]:
        return self.notes if key == "logs" else []

    async def command(self, *_: Any) -> int:
        return 0


async def test_notes_of_changed_logs_are_read_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    store: Any = Notes([f"default/t:{index}:{TOPIC.topic_hex}".encode() for index in range(4 * SLICE)])
    reader = LagReader(store, FindTopic(), lambda _: None)
    with counted_rounds() as rounds:
        monkeypatch.setattr(lag_reading, "_decoded", rounds.counting(lag_reading._decoded))
        groups, logs = await reader.begin_round(1_000)

    assert (groups, len(logs), ("default", ("t", 7)) in logs) == (set(), 4 * SLICE, True)
    assert rounds.total == 4 * SLICE
    assert rounds.most <= SLICE


async def test_commits_of_small_groups_are_gathered_with_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [group_of(number, COMMITS) for number in range(4 * SLICE // COMMITS)]
    store: Any = Notes([])
    reader = LagReader(store, FindTopic(), lambda _: None)

    async def read_ends_of(wanted: Any) -> Any:
        return wanted

    monkeypatch.setattr(reader, "read_ends_of", read_ends_of)
    with counted_rounds() as rounds:
        wanted = await reader.read_log_ends(filter(rounds.counting(lambda _: True), groups))

    assert (len(wanted), rounds.total) == (COMMITS, len(groups))
    assert rounds.most <= SLICE // COMMITS + 1
