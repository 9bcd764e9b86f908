"""The share of a bucket that one broker spends from, with stepped time."""

from __future__ import annotations

import pytest

from tidegate.quotas.buckets import Bucket
from tidegate.quotas.entities import Quota


def bucket(rate: float = 1000.0, burst_s: float = 1.0) -> Bucket:
    return Bucket("b", Quota.PRODUCE, rate, burst_s, 0.0)


def test_spend_within_the_burst_waits_not() -> None:
    one = bucket()

    assert one.spend(1000, 0.0) == 0.0
    assert one.available(0.0) == 0.0


def test_spend_beyond_waits_until_the_debt_is_paid() -> None:
    one = bucket()
    wait_s = one.spend(3500, 0.0)

    assert wait_s == pytest.approx(2.5)
    assert one.available(2.5) == pytest.approx(0.0)
    assert one.wait_s(2.0) == pytest.approx(0.5)


def test_unused_tokens_are_capped() -> None:
    one = bucket()
    one.spend(1000, 0.0)

    assert one.available(3600.0) == 1000.0


def test_bucket_is_full_when_nothing_of_its_share_is_used() -> None:
    one = bucket()
    one.lease(one.report(0.0), 900.0, 0.5, 0.0)

    assert [one.is_full(second) for second in (0.0, 0.05, 0.11)] == [False, False, True]


def test_count_of_a_new_bucket_begins_above_that_of_the_last_one() -> None:
    one = Bucket("b", Quota.PRODUCE, 1000.0, 1.0, 0.0, used=700.0)
    one.spend(200, 0.0)

    report = one.report(0.1)
    assert (report.confirmed, report.used) == (700.0, 900.0)


def test_share_divides_tokens_and_rate() -> None:
    one = bucket()
    one.lease(one.report(0.0), 600.0, 1 / 3, 0.0)

    assert one.available(0.0) == pytest.approx(200.0)
    assert one.spend(300, 0.0) == pytest.approx(0.3)  # 100 too many at a third of 1000/s


def test_debt_of_others_is_waited_for_as_long_by_all() -> None:
    """The cluster's bucket is 2000 in debt: every share of it waits the 2 s that the whole rate needs."""
    one = bucket()
    one.lease(one.report(0.0), -2000.0, 0.25, 0.0)

    assert one.wait_s(0.0) == pytest.approx(2.0)


def test_use_between_report_and_lease_is_not_lost() -> None:
    one = bucket()
    one.spend(400, 0.0)
    report = one.report(0.1)
    one.spend(100, 0.1)
    one.lease(report, 600.0, 1.0, 0.2)

    assert one.available(0.2) == pytest.approx(500.0)
    assert one.report(0.3).used - one.report(0.3).confirmed == 100


def test_report_asks_for_all_while_in_debt() -> None:
    one = bucket()
    one.spend(1500, 0.0)

    assert one.report(0.1).demand == 1000.0
    one.lease(one.report(0.1), -500.0, 1.0, 0.1)
    for second in range(5):
        one.lease(one.report(10.0 + second), 1000.0, 1.0, 10.0 + second)
    assert one.report(20.0).demand < 500.0


def test_changed_rate_applies_at_once() -> None:
    one = bucket()
    one.spend(2000, 0.0)
    one.change_rate(4000.0, 1.0)

    assert one.wait_s(0.0) == pytest.approx(0.25)
