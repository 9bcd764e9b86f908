"""What the doctor finds in Redis about groups that wait."""

from __future__ import annotations

import asyncio

from tidegate.cli.client.redis_access import connected
from tidegate.cli.doctor.finding import Finding
from tidegate.cli.doctor.probe_groups import LATE_MS, LETTERS_LATE_MS, LateGroup, judge, late_groups
from tidegate.cli.places import RedisServer
from tidegate.settings import Settings
from tidegate.store.store import Store

NOW_MS = 1_700_000_000_000


async def put_group(store: Store, settings: Settings, group: str, state: str, since_ms: int) -> None:
    """A group of KIP-848 in a state since a time."""
    keys = store.group_keys("default", group)
    await store.command("HSET", keys.group, "state_since", str(since_ms))
    await store.command("HSET", keys.shard_keys.groups, keys.ref, f"consumer {state} consumer")


async def put_letter(store: Store, group: str, since_ms: int) -> None:
    """A dead letter that waits since a time."""
    keys = store.group_keys("default", group)
    await store.command("XADD", keys.dead_letters, f"{since_ms}-0", "topic", "t")
    await store.command("ZADD", keys.shard_keys.deadlines, str(NOW_MS), f"dead-letters|{keys.ref}")


async def found(settings: Settings) -> list[LateGroup]:
    return await asyncio.to_thread(_found, settings)


def _found(settings: Settings) -> list[LateGroup]:
    with connected(RedisServer(settings)) as client:
        return list(late_groups(client, settings.key_prefix, settings.coordinator_shards, NOW_MS))


async def test_late_groups_members_that_wait(store: Store, settings: Settings) -> None:
    late = NOW_MS - LATE_MS
    await put_group(store, settings, "in time", "Reconciling", late + 1)
    await put_group(store, settings, "done", "Stable", late)
    await put_group(store, settings, "a:b/c", "Reconciling", late)
    await put_group(store, settings, "waits", "Assigning", late - 1_000)

    groups = await found(settings)

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


async def test_late_groups_dead_letters_that_wait(store: Store, settings: Settings) -> None:
    await put_letter(store, "new", NOW_MS - LETTERS_LATE_MS + 1)
    await put_letter(store, "old", NOW_MS - LETTERS_LATE_MS)

    (group,) = await found(settings)

    assert group == LateGroup("default", "old", "", LETTERS_LATE_MS)
    (finding,) = judge((group,))
    assert (finding.kind, finding.where) == ("dead-letters-late", "default/old")
