"""The ends of a query that its tasks remember in Redis."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.support.fake_redis import URL
from tests.support.topic_reads import access_to
from tidegate_pipeline.errors import PipelineError
from tidegate_pipeline.sources import query_ends
from tidegate_pipeline.sources.planning import PlannedRange
from tidegate_pipeline.sources.query_ends import remembered
from tidegate_pipeline.sources.tiers import Tier

DAY_S = 24 * 3600


def planned(end: int) -> PlannedRange:
    return PlannedRange("orders", "0" * 32, 0, Tier.REDIS, 0, end, 0, end, 1, end, 100)


@pytest.fixture(autouse=True)
def query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_ends, "running_query", lambda: "7")


def test_remembered_second_attempt_reads_what_the_first_found(fake_redis: Any) -> None:
    access = access_to(URL, subscribe="orders")

    first = remembered(access, "plan", 3, lambda: [planned(10)])
    second = remembered(access, "plan", 3, lambda: pytest.fail("it is known"))

    assert list(first) == list(second) == [planned(10)]
    assert [0 < fake_redis.ttl(key) <= DAY_S for key in fake_redis.scan_iter()] == [True]


def test_remembered_another_task_finds_its_own(fake_redis: Any) -> None:
    access = access_to(URL, subscribe="orders")

    ends = [remembered(access, "plan", task, lambda end=end: [planned(end)]) for task, end in ((0, 10), (1, 20))]  # type: ignore[misc]

    assert list(map(list, ends)) == [[planned(10)], [planned(20)]]


def test_remembered_of_two_attempts_at_once_the_first_write_counts(fake_redis: Any) -> None:
    access = access_to(URL, subscribe="orders")

    def find() -> list[PlannedRange]:
        remembered(access, "plan", 0, lambda: [planned(10)])
        return [planned(20)]

    assert list(remembered(access, "plan", 0, find)) == [planned(10)]


def test_remembered_without_the_right_to_write_is_empty(fake_redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    access = access_to(URL, subscribe="orders")
    monkeypatch.setattr(access.client, "set", raising(redis.exceptions.NoPermissionError("no SET")))

    assert remembered(access, "plan", 0, lambda: [planned(10)]) == []


def test_remembered_full_redis_fails_the_task(fake_redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    access = access_to(URL, subscribe="orders")
    monkeypatch.setattr(access.client, "set", raising(redis.exceptions.OutOfMemoryError("used > maxmemory")))

    with pytest.raises(PipelineError, match="latest offsets of a query"):
        remembered(access, "plan", 0, lambda: [planned(10)])


def raising(error: Exception) -> Any:
    def fail(*args: Any, **options: Any) -> Any:
        raise error

    return fail
