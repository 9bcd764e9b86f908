"""What the doctor finds in Redis about groups that wait."""

from __future__ import annotations

from typing import Any

from tests.support.fake_redis import SHARDS, URL, group_keys
from tidegate.cli.client.redis_access import connected
from tidegate.cli.doctor.finding import Finding
from tidegate.cli.doctor.probe_groups import LATE_MS, LETTERS_LATE_MS, LateGroup, judge, late_groups
from tidegate.cli.places import RedisServer
from tidegate.settings import Settings

NOW_MS = 1_700_000_000_000


def put_group(client: Any, group: str, state: str, since_ms: int) -> None:
    """A group of KIP-848 in a state since a time."""
    keys = group_keys(group)
    client.hset(keys.group, "state_since", since_ms)
    client.hset(keys.shard_keys.groups, keys.ref, f"consumer {state} consumer")


def put_letter(client: Any, group: str, since_ms: int) -> None:
    """A dead letter that waits since a time."""
    keys = group_keys(group)
    client.xadd(keys.dead_letters, {"topic": "t"}, f"{since_ms}-0")
    client.zadd(keys.shard_keys.deadlines, {f"dead-letters|{keys.ref}": NOW_MS})


def found() -> list[LateGroup]:
    with connected(RedisServer(Settings(redis_url=URL))) as client:
        return list(late_groups(client, "tidegate", SHARDS, NOW_MS))


def test_late_groups_members_that_wait(fake_redis: Any) -> None:
    late = NOW_MS - LATE_MS
    put_group(fake_redis, "in time", "Reconciling", late + 1)
    put_group(fake_redis, "done", "Stable", late)
    put_group(fake_redis, "a:b/c", "Reconciling", late)
    put_group(fake_redis, "waits", "Assigning", late - 1_000)

    groups = found()

    assert set(groups) == {
        LateGroup("default", "a:b/c", "Reconciling", LATE_MS),
        LateGroup("default", "waits", "Assigning", LATE_MS + 1_000),
    }
    findings: list[Finding] = list(judge(tuple(groups)))
    assert [(one.kind, one.where) for one in findings] == [
        ("group-not-stable", "default/waits"),
        ("group-not-stable", "default/a:b/c"),
    ]
    assert "for 5 min" in findings[1].sentence


def test_late_groups_dead_letters_that_wait(fake_redis: Any) -> None:
    put_letter(fake_redis, "new", NOW_MS - LETTERS_LATE_MS + 1)
    put_letter(fake_redis, "old", NOW_MS - LETTERS_LATE_MS)

    (group,) = found()

    assert group == LateGroup("default", "old", "", LETTERS_LATE_MS)
    (finding,) = judge((group,))
    assert (finding.kind, finding.where) == ("dead-letters-late", "default/old")
