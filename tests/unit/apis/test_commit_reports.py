"""Stored commits reach the mirrors and the counters late, and as if each had been reported by itself."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.log.test_usage import topic
from tidegate.apis import commit_reports
from tidegate.apis.commit_reports import CommitReports
from tidegate.log.mirror_news import PartitionNews
from tidegate.log.usage import Usage

T, U = topic("t"), topic("u", "bb")


class FakeMirror:
    """The events of partitions, as the mirror gathers them."""

    def __init__(self) -> None:
        self.partitions: dict[tuple[str, int], PartitionNews] = {}
        self.commits_wait = False
        self.before_step = lambda: None
        self.reports = 0

    def _partition(self, topic: Any, index: int) -> PartitionNews:
        keys: Any = SimpleNamespace(log="log", owners="owners", acknowledged="acknowledged")
        return self.partitions.setdefault((topic.topic_hex, index), PartitionNews("default", keys))

    def committed(self, topic: Any, index: int, group_id: str, offset: int) -> None:
        self.reports += 1
        self._partition(topic, index).committed(group_id, offset)

    def events(self) -> Any:
        """What is to be written, and the positions that later events are compared with."""
        return {
            key: ([(news.committed, news.rewound) for news in one._news], dict(one._committed))
            for key, one in sorted(self.partitions.items())
        }


class Reported:
    """One way of reporting, and what came of it."""

    def __init__(self, at_once: bool) -> None:
        self.usage, self.mirror, self.changed = Usage(), FakeMirror(), list[str]()
        self.reports = CommitReports(self.usage, self.mirror, self.changed.append)  # type: ignore[arg-type]
        self.at_once = at_once

    def add(self, group: str, client_id: str, partitions: Any, offsets: list[int]) -> None:
        self.reports.add(f"default/{group}", group, client_id, partitions, offsets)
        if self.at_once:
            self.reports.flush()

    def outcome(self) -> Any:
        self.reports.flush()
        return self.mirror.events(), self.usage.take()[1], self.usage._committed


@pytest.mark.parametrize("seed", range(30))
async def test_late_reports_end_where_reports_at_once_end(seed: int):
    rng = Random(seed)
    late, at_once = Reported(at_once=False), Reported(at_once=True)
    shapes = [[(T, [0, 1])], [(T, [0, 1]), (U, [0])], [(U, [0])], [(T, [])]]
    for _ in range(40):
        group, client_id, partitions = rng.choice("gh"), rng.choice("cccd"), rng.choice(shapes)
        count = sum(len(indexes) for _, indexes in partitions)
        offsets = [rng.randint(0, 6) for _ in range(count)]
        for one in (late, at_once):
            one.add(group, client_id, [*partitions], offsets)
        if rng.random() < 0.1:
            late.reports.flush()

    events, groups, committed = late.outcome()
    assert events and groups and committed
    assert (events, groups, committed) == at_once.outcome()


async def test_forward_commits_are_reported_once_after_100_ms(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(commit_reports, "REPORT_AFTER_S", 0.01)
    reported = Reported(at_once=False)
    for offset in range(50):
        reported.add("g", "c", [(T, [0, 1])], [offset, offset])
    assert reported.mirror.reports == 0 and reported.mirror.commits_wait
    async with asyncio.timeout(30):
        while not reported.mirror.reports:
            await asyncio.sleep(0.005)

    assert reported.mirror.reports == 4  # the first and the last, of two partitions each
    assert not reported.mirror.commits_wait
    assert reported.usage.groups["default/g"].count == 50


async def test_counters_include_commits_that_wait():
    reported = Reported(at_once=False)
    reported.add("g", "c", [(T, [0])], [5])

    _, groups = reported.usage.take()
    assert groups["default/g"].count == 1


async def test_many_groups_are_reported_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(commit_reports, "GROUPS_MAX", 3)
    reported = Reported(at_once=False)
    for number in range(4):
        reported.add(f"g{number}", "c", [(T, [0])], [5])

    assert reported.mirror.reports == 4


async def test_failing_mirror_loses_that_commit_alone(capsys: pytest.CaptureFixture[str]):
    reported = Reported(at_once=False)
    committed = reported.mirror.committed

    def fail(topic: Any, index: int, group_id: str, offset: int) -> None:
        if group_id == "bad":
            raise RuntimeError("nobody foresaw this")
        committed(topic, index, group_id, offset)

    reported.mirror.committed = fail  # type: ignore[method-assign]
    reported.add("bad", "c", [(T, [0])], [5])
    reported.add("good", "c", [(T, [0])], [5])
    reported.reports.flush()

    assert reported.mirror.reports == 1
