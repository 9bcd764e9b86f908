"""Whom of several sentinels brokers believe. Real ones are asked in tests/scripts/test_sentinel.py."""

from __future__ import annotations

import pytest

from tidegate.store.sentinels import Place, SentinelReport, validated

OLD, NEW, OTHER = ("10.0.0.1", 6379), ("10.0.0.2", 6379), ("10.0.0.3", 6379)


def up(place: Place, epoch: int) -> SentinelReport:
    return SentinelReport(place, epoch, up=True)


def down(place: Place, epoch: int) -> SentinelReport:
    return SentinelReport(place, epoch, up=False)


@pytest.mark.parametrize(
    ("views", "place"),
    [
        ([], None),
        ([down(OLD, 3), down(OLD, 3)], None),
        ([up(OLD, 3)], OLD),
        ([up(OLD, 3), up(NEW, 4)], NEW),
        ([up(OLD, 3), up(OLD, 3), up(NEW, 4)], NEW),
        ([down(NEW, 4), up(OLD, 3)], OLD),
        ([up(OTHER, 0), up(OLD, 0), up(OLD, 0)], OLD),
        ([up(OLD, 9), up(OTHER, 10), up(OTHER, 10)], OTHER),
        ([up(OTHER, 0), up(OLD, 0)], OTHER),
    ],
    ids=[
        "nobody answers", "all hold it down", "one alone", "the latest fail-over", "the latest, though most are behind",
        "the latest is down", "even: what most say", "as numbers", "even: in the order of the address",
    ],
)  # fmt: skip
def test_latest_fail_over_confirmed_by_a_sentinel_is_used(views: list[SentinelReport], place: Place | None) -> None:
    assert validated(views) == place
