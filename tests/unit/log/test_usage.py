"""What a broker counts of topics and groups until it reports it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tidegate.log import usage
from tidegate.log.usage import BACK_MAX, Commits, Served, Usage


def topic(name: str, topic_hex: str = "aa") -> Any:
    return SimpleNamespace(org="acme", name=name, topic_hex=topic_hex)


def test_fetch_counts_once_for_each_topic_that_brought_records() -> None:
    counted, t, s = Usage(), topic("t"), topic("s", "bb")

    counted.fetched([(t, 100), (s, 7), (t, 50)])
    counted.fetched([(t, 1)])

    assert counted.topics["acme/t"] == Served(fetch_requests=2, fetched_bytes=151)
    assert counted.topics["acme/s"] == Served(fetch_requests=1, fetched_bytes=7)


def test_usage_read_samples_are_not_counted_again() -> None:
    counted = Usage()
    counted.stored(topic("t"), 3, 300)
    counted.committed("acme/g", "c", [(topic("t"), 0, 5)])

    assert counted.take() == ({"acme/t": Served(records=3, stored_bytes=300)}, {"acme/g": Commits(1)})
    assert counted.take() == ({}, {})


def test_usage_lower_commit_is_reported_even_after_its_predecessor_was() -> None:
    counted, t = Usage(), topic("t")
    counted.committed("acme/g", "first", [(t, 0, 10), (t, 1, 10)])
    counted.take()

    counted.committed("acme/g", "second", [(t, 0, 4), (t, 1, 10)])
    counted.committed("acme/other", "third", [(t, 0, 1)])

    assert counted.groups["acme/g"] == Commits(1, 1, [("t:0", 10, 4, "second")])
    assert counted.groups["acme/other"] == Commits(1)


def test_topic_made_again_begins_at_zero() -> None:
    counted = Usage()
    counted.committed("acme/g", "c", [(topic("t"), 0, 10)])
    counted.committed("acme/g", "c", [(topic("t", "bb"), 0, 1)])

    assert counted.groups["acme/g"].back_count == 0


def test_usage_many_lower_commits_are_counted_and_some_reported() -> None:
    counted = Usage()
    for offset in range(BACK_MAX + 5, -1, -1):
        counted.committed("acme/g", "c", [(topic("t"), 0, offset)])

    assert counted.groups["acme/g"].back_count == BACK_MAX + 5
    assert len(counted.groups["acme/g"].back) == BACK_MAX


def test_only_so_many_partitions_are_remembered(monkeypatch: Any) -> None:
    monkeypatch.setattr(usage, "COMMITTED_MAX", 2)
    counted, t = Usage(), topic("t")
    counted.committed("acme/g", "c", [(t, index, 10) for index in range(3)])
    counted.committed("acme/g", "c", [(t, 0, 1), (t, 2, 1)])

    assert [back[0] for back in counted.groups["acme/g"].back] == ["t:2"]
