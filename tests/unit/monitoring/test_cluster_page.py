"""The page of cluster metrics of a group and a topic with many partitions: other work goes on between its lines."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.logs import FakeTopic
from tests.support.rounds import Rounds, counted_rounds
from tidegate.monitoring.cluster_metrics import ClusterPage
from tidegate.monitoring.exporters import Brokers, ForeignNames
from tidegate.monitoring.lag_reading import GroupName, GroupRead, LogEndsReading
from tidegate.settings import Settings
from tidegate.store.store import Store
from tidegate.telemetry.pages import Gauges

COUNT = 5_000
NO_READER: Any = None
"""What only topics with an archive need."""
LINES_AT_ONCE = 10_000
"""Of 1,000 partitions."""
TOPIC: Any = FakeTopic(name="wide", partition_count=COUNT)
ENDS = LogEndsReading(0, 9, 100, 1_000, 0, {5: 500})
LOG_ENDS = {("default", ("wide", index)): ENDS for index in range(COUNT)}


@pytest.fixture
async def page() -> ClusterPage:
    settings = Settings()
    foreign = ForeignNames(Brokers(lambda: [], lambda: [], lambda: "c"), lambda org, name: TOPIC)
    opened = ClusterPage(Store(settings), settings, lambda: [TOPIC], foreign)
    opened.begin(["default/g"], 1_000)
    return opened


def count_lines(monkeypatch: pytest.MonkeyPatch, rounds: Rounds) -> None:
    monkeypatch.setattr(Gauges, "add", rounds.note)


async def test_lines_of_a_group_are_added_with_pauses(page: ClusterPage, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = {("wide", index): (5, 900) for index in range(COUNT)}
    name = GroupName("default", "g", 0, "default/g")
    group = GroupRead(name, "Empty", 0, 1, "", "consumer", 0, 0, commits, (b"1", b"1"))

    with counted_rounds() as rounds:
        count_lines(monkeypatch, rounds)
        await page.group(group, {}, LOG_ENDS)

    assert rounds.total > 5 * COUNT
    assert rounds.most <= LINES_AT_ONCE


async def test_lines_of_a_topic_are_added_with_pauses(page: ClusterPage, monkeypatch: pytest.MonkeyPatch) -> None:
    page._round.log_ends.update(LOG_ENDS)
    monkeypatch.setattr(type(TOPIC), "overrides", {}, raising=False)

    with counted_rounds() as rounds:
        count_lines(monkeypatch, rounds)
        await page._report_topic(TOPIC, NO_READER)

    assert rounds.total > 8 * COUNT
    assert rounds.most <= LINES_AT_ONCE
