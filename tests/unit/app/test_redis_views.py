"""What the admin HTTP makes of a server's own words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate import errors
from tidegate.errors import KafkaError
from tidegate.http import problems, redis_views
from tidegate.http.overview_views import _of_redis
from tidegate.telemetry.metrics import Meter


def test_replicas_are_shown_with_their_lag() -> None:
    facts = {
        "master_repl_offset": "1000",
        "slave0": "ip=10.0.0.2,port=6379,state=online,offset=990,lag=0",
        "slave1": "ip=10.0.0.3,port=6380,state=wait_bgsave,offset=0,lag=7",
        "slave_read_only": "1",
    }

    assert redis_views._replicas(facts) == [
        {"address": "10.0.0.2:6379", "state": "online", "behind_bytes": 10, "last_contact_s": 0},
        {"address": "10.0.0.3:6380", "state": "wait_bgsave", "behind_bytes": 1000, "last_contact_s": 7},
    ]


def test_latencies_are_listed_slowest_first() -> None:
    facts = {
        "latency_percentiles_usec_get": "p50=1.003,p99=2.007,p99.9=9.023",
        "latency_percentiles_usec_evalsha": "p50=20.095,p99=300.031,p99.9=400",
        "used_memory": "1",
    }

    assert [(one["command"], one["p99_us"]) for one in redis_views._latency(facts)] == [
        ("evalsha", 300.031),
        ("get", 2.007),
    ]


def test_script_s_percentile_is_the_bound_of_its_bucket() -> None:
    quick, slow = Meter(), Meter()
    for _ in range(100):
        quick.observe(0.0003)
    slow.observe(99.0)

    first, second = redis_views.scripts({"quick": quick, "slow": slow, "unused": Meter()})

    assert (first["script"], first["count"], first["p99_ms"]) == ("slow", 1, None)
    assert (second["mean_ms"], second["p99_ms"]) == (0.3, 0.5)


@given(st.lists(st.integers()), st.integers(1, 20))
def test_some_are_spread_over_all(items: list[int], count_max: int) -> None:
    some = redis_views.spread(list(enumerate(items)), count_max)

    assert len(some) == min(len(items), count_max)
    assert sorted(set(some)) == some
    assert len(items) > count_max or some == list(enumerate(items))


GOOD = {
    "memory": {"used_bytes": 10, "max_bytes": 100},
    "eviction": {"policy": "noeviction"},
    "persistence": {"aof": True, "aof_last_write": "ok", "rdb_last_save": "ok"},
}


@pytest.mark.parametrize(
    ("part", "changes", "kinds"),
    [
        ("memory", {}, []),
        ("memory", {"used_bytes": 96}, ["redis_full"]),
        ("memory", {"used_bytes": 81}, ["redis_filling"]),
        ("memory", {"max_bytes": 0}, ["redis_without_limit"]),
        ("eviction", {"policy": "allkeys-lru"}, ["redis_evicts"]),
        ("persistence", {"aof": False, "aof_last_write": "err"}, ["redis_without_aof"]),
        ("persistence", {"aof_last_write": "err"}, ["aof_fails"]),
        ("persistence", {"rdb_last_save": "err"}, ["rdb_fails"]),
    ],
)
def test_redis_problems_are_listed(part: str, changes: dict[str, object], kinds: list[str]) -> None:
    server = GOOD | {part: GOOD[part] | changes}  # type: ignore[operator]

    assert [one["kind"] for one in _of_redis(server)] == kinds


@pytest.mark.parametrize(
    ("error", "status", "detail"),
    [
        (errors.NonEmptyGroup(), 409, "non empty group"),
        (errors.GroupIdNotFound("there is no group a"), 404, "there is no group a"),
        (errors.StoreUnavailable("connection refused"), 503, "Redis does not answer: connection refused"),
        (errors.CoordinatorLoadInProgress(), 503, "coordinator load in progress"),
    ],
)
def test_error_of_kafka_is_a_problem_with_its_code(error: KafkaError, status: int, detail: str) -> None:
    problem = problems.as_problem(error)

    assert (problem.status, problem.detail) == (status, detail)
    assert problem.more == {"kafka_error": error.code.name.upper(), "kafka_code": error.code.value}
