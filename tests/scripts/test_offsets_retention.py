"""Offsets expire, and empty groups with them (KIP-211; scenarios 93 and 94)."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.scripts.test_offsets_commit import commit_request
from tests.support.clock import SteppedClock
from tests.support.handlers import Broker, FakeCatalog, given_group, topic
from tidegate.groups.offsets import entry_json
from tidegate.groups.retention import Retention, sweep
from tidegate.settings import Settings
from tidegate.store.keys import GroupKeys
from tidegate.store.store import Store

WEEK_MS = 7 * 24 * 3_600_000
T1, T2 = topic("t1", number=1), topic("t2", number=2)


@pytest.fixture
def keys(clock_store: Store) -> GroupKeys:
    return clock_store.group_keys("default", "orders")


async def given_offset(store: Store, keys: GroupKeys, field: str, commit_time: int, expire_time: int = 0) -> None:
    """One committed offset."""
    tail = f',"expire_time":{expire_time}}}' if expire_time else "}"
    value = entry_json(5, -1, T1.topic_hex, '"commit_time":1}') + f',"commit_time":{commit_time}' + tail
    await store.command("HSET", keys.offsets, field, value)


async def swept(store: Store, keys: GroupKeys) -> list[str] | None:
    """What a sweep leaves of the group's offsets; None if the group is gone altogether."""
    await sweep(store, range(store.settings.coordinator_shards), "1")
    if not await store.command("EXISTS", keys.group):
        own = [keys.group, keys.offsets, keys.members, keys.sessions, keys.protocols]
        assert await store.command("EXISTS", *own) == 0
        assert await store.command("HEXISTS", keys.shard_keys.groups, keys.ref) == 0
        return None
    return sorted(field.decode() for field in await store.command("HKEYS", keys.offsets))


@pytest.mark.parametrize("version", [2, 3, 4])
async def test_scenario_93_a_commits_own_retention_counts_once_the_group_is_empty(
    clock: SteppedClock, clock_store: Store, keys: GroupKeys, version: int
) -> None:
    broker = Broker(clock_store, FakeCatalog(T1))
    await broker.ask(commit_request(version, retention_ms=1_000))
    assert await swept(clock_store, keys) == ["t1:0"]
    await clock.advance(999)
    assert await swept(clock_store, keys) == ["t1:0"]
    await clock.advance(1)
    assert await swept(clock_store, keys) is None


async def test_scenario_93_a_stable_groups_subscribed_topic_is_preserved_whatever_its_retention(
    clock: SteppedClock, clock_store: Store, keys: GroupKeys
) -> None:
    await given_group(clock_store, keys, subscribed=["t1"])
    await given_offset(clock_store, keys, "t1:0", clock.now_ms, clock.now_ms + 1_000)
    await given_offset(clock_store, keys, "t2:0", clock.now_ms, clock.now_ms + 1_000)
    await clock.advance(1_000)
    assert await swept(clock_store, keys) == ["t1:0"]


async def test_scenario_94_an_empty_groups_offsets_expire_a_week_after_it_emptied_or_after_their_commit(
    clock: SteppedClock, clock_store: Store, keys: GroupKeys
) -> None:
    await given_group(clock_store, keys, state="Empty", members=(), subscribed=[], state_since=clock.now_ms)
    await given_offset(clock_store, keys, "t1:0", clock.now_ms - 3 * WEEK_MS)
    await given_offset(clock_store, keys, "t1:1", clock.now_ms + 60_000)
    await clock.advance(WEEK_MS - 1)
    assert await swept(clock_store, keys) == ["t1:0", "t1:1"]
    await clock.advance(1)
    assert await swept(clock_store, keys) == ["t1:1"]
    await clock.advance(59_999)
    assert await swept(clock_store, keys) == ["t1:1"]
    await clock.advance(1)
    assert await swept(clock_store, keys) is None


async def test_scenario_94_of_a_stable_group_only_unsubscribed_topics_expire(
    clock: SteppedClock, clock_store: Store, keys: GroupKeys
) -> None:
    await given_group(clock_store, keys, subscribed=["t1"])
    await given_offset(clock_store, keys, "t1:0", clock.now_ms)
    await given_offset(clock_store, keys, "t2:0", clock.now_ms)
    await clock.advance(WEEK_MS - 1)
    assert await swept(clock_store, keys) == ["t1:0", "t2:0"]
    await clock.advance(1)
    assert await swept(clock_store, keys) == ["t1:0"]
    await clock.advance(9 * WEEK_MS)
    assert await swept(clock_store, keys) == ["t1:0"]


@pytest.mark.parametrize(
    ("state", "protocol_type", "subscribed"),
    [
        ("PreparingRebalance", "consumer", []),
        ("CompletingRebalance", "consumer", []),
        ("Stable", "connect", None),
        ("Stable", "consumer", None),
    ],
)
async def test_scenario_94_nothing_expires_while_subscriptions_are_unknown(
    clock: SteppedClock,
    clock_store: Store,
    keys: GroupKeys,
    state: str,
    protocol_type: str,
    subscribed: list[str] | None,
) -> None:
    await given_group(clock_store, keys, state=state, protocol_type=protocol_type, subscribed=subscribed)
    await given_offset(clock_store, keys, "t2:0", clock.now_ms, clock.now_ms + 1)
    await clock.advance(2 * WEEK_MS)
    assert await swept(clock_store, keys) == ["t2:0"]


async def test_simple_group_is_deleted_with_its_last_offset(
    clock: SteppedClock, clock_store: Store, keys: GroupKeys
) -> None:
    broker = Broker(clock_store, FakeCatalog(topic("t1", 1_500)))
    await broker.ask(commit_request(9, topics={"t1": dict.fromkeys(range(1500), (5, ""))}))
    await clock.advance(WEEK_MS // 2)
    await broker.ask(commit_request(9, topics={"t1": {3: (6, "")}}))
    await clock.advance(WEEK_MS // 2)
    assert await swept(clock_store, keys) == ["t1:3"]
    await clock.advance(WEEK_MS // 2)
    assert await swept(clock_store, keys) is None
    assert await swept(clock_store, keys) is None


@pytest.mark.parametrize("kind", ["classic", "consumer", "streams"])
async def test_sweep_empty_group_without_offsets_is_preserved_for_the_retention(
    clock: SteppedClock, clock_store: Store, keys: GroupKeys, kind: str
) -> None:
    """Seed scenario 001: the group's id and generation outlive its last member, though it never committed."""
    await given_group(clock_store, keys, state="Empty", members=(), subscribed=[], state_since=clock.now_ms, type=kind)
    assert await swept(clock_store, keys) == []
    await clock.advance(WEEK_MS - 1)
    assert await swept(clock_store, keys) == []
    await clock.advance(1)
    assert await swept(clock_store, keys) is None


async def test_empty_group_without_offsets_is_not_removed_while_an_id_is_pending(
    clock: SteppedClock, clock_store: Store, keys: GroupKeys
) -> None:
    since = clock.now_ms - WEEK_MS
    await given_group(clock_store, keys, state="Empty", members=(), subscribed=[], state_since=since)
    await clock_store.command("HSET", keys.pending, "p", "{}")
    await clock_store.command("ZADD", keys.sessions, clock.now_ms + 10_000, "p")
    assert await swept(clock_store, keys) == []
    await clock.advance(10_000)
    assert await swept(clock_store, keys) is None

    await given_group(clock_store, keys)
    assert await swept(clock_store, keys) == []


async def test_deletion_of_a_group_is_an_event(clock: SteppedClock, clock_store: Store, keys: GroupKeys) -> None:
    await given_group(clock_store, keys, state="Empty", members=(), subscribed=[])
    assert await swept(clock_store, keys) is None
    ((_, fields),) = await clock_store.command("XRANGE", keys.shard_keys.events, "-", "+")
    event = dict(zip(fields[::2], fields[1::2], strict=True))
    assert (event[b"kind"], event[b"group"], event[b"broker"]) == (b"deleted", keys.ref.encode(), b"1")


@pytest.mark.parametrize("kind", ["group", "offsets"])
async def test_sweep_faulty_group_stops_no_other(
    clock: SteppedClock, clock_store: Store, keys: GroupKeys, kind: str
) -> None:
    shard = keys.shard_keys.shard
    same_shard = (clock_store.group_keys("default", f"g{number}") for number in range(10_000))
    broken = next(one for one in same_shard if one.shard_keys.shard == shard)
    for one in (broken, keys):
        await given_group(clock_store, one, state="Empty", protocol_type="", members=(), subscribed=None)
        await given_offset(clock_store, one, "t1:0", clock.now_ms - WEEK_MS)
    await clock_store.command("SET", getattr(broken, kind), "foreign")
    await clock_store.command("HSET", keys.shard_keys.groups, b"\xff", "foreign")
    await clock_store.command("SET", clock_store.shard_keys((shard + 1) % 50).groups, "foreign")

    assert await sweep(clock_store, [(shard + 1) % 50, shard], "1") == 1
    assert not await clock_store.command("EXISTS", keys.group)


async def test_two_brokers_sweep_at_once(
    clock: SteppedClock, clock_store: Store, keys: GroupKeys, settings: Settings
) -> None:
    other = Store(settings)
    await other.start()
    try:
        await given_group(clock_store, keys, state="Empty", protocol_type="", members=(), subscribed=None)
        for index in range(50):
            await given_offset(clock_store, keys, f"t1:{index}", clock.now_ms - WEEK_MS)
        shards = range(settings.coordinator_shards)
        counts = await asyncio.gather(sweep(clock_store, shards, "1"), sweep(other, shards, "2"))
        assert sum(counts) == 50
        assert await swept(clock_store, keys) is None
    finally:
        await other.close()


async def test_broker_sweeps_its_own_shards_by_itself(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.groups.retention.CHECK_INTERVAL_S", 0.1)
    keys, foreign = store.group_keys("default", "orders"), store.group_keys("default", "payments")
    assert keys.shard_keys.shard != foreign.shard_keys.shard
    for group in (keys, foreign):
        await given_group(store, group, state="Empty", members=(), subscribed=[])
    store.clock.observe(int(time.time() * 1000), 0)
    retention = Retention(store, store.settings, lambda: [keys.shard_keys.shard], lambda: "1")
    await retention.start()
    try:
        async with asyncio.timeout(30):
            while await store.command("EXISTS", keys.group):
                await asyncio.sleep(0.02)
    finally:
        await retention.close()
    assert await store.command("EXISTS", foreign.group) == 1


async def test_sweep_expires_no_offsets_while_the_clock_of_the_node_differs(
    clock: SteppedClock, clock_store: Store, keys: GroupKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Redis Cluster each node judges by its own clock, which may be another than the one that has the leases."""
    broker = Broker(clock_store, FakeCatalog(T1))
    await broker.ask(commit_request(9))
    await clock.advance(WEEK_MS)
    own = clock_store.node(keys.group).clock
    monkeypatch.setattr(Store, "is_sharded", property(lambda store: True))
    for difference_ms in (None, 8 * 86_400_000):
        own.difference_ms = difference_ms
        assert await swept(clock_store, keys) == ["t1:0"]
    own.difference_ms = 0
    assert await swept(clock_store, keys) is None
